"""The cost of a claim in the scheduler alone: `python -m bench.schedule`.

CPU microseconds per message for claims of 1, 10 and 500 messages over several numbers of keys: the scheduler
of `fairlead.schedule` (`plan` and `apply`) beside that of `fairlead.decide.drr` (`take`), in turn, the best
of several rounds. Adding the messages is not counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from bench.conditions import conditions_here
from fairlead.decide.drr import Memory, QueueScheduler
from fairlead.decide.throttle import Buckets as OldBuckets
from fairlead.model.lane import pack_lane, pack_row
from fairlead.schedule.drr import Scheduler
from fairlead.schedule.throttle import Bucket, Buckets

BATCHES = (1, 10, 500)
KEYS = (1, 10, 1_000, 100_000)
#: How the messages are: all weights 1, weights 1 to 3, or all under four buckets that never run dry.
KINDS = ("plain", "weights", "throttled")
ROUNDS = 3

Claim = Callable[[int], int]


def weight_of(kind: str, key: int) -> int:
    return 1 + key % 3 if kind == "weights" else 1


def throttles_of(kind: str, key: int) -> tuple[str, ...]:
    return (f"t{key % 4}",) if kind == "throttled" else ()


def new(kind: str, keys: int, messages: int) -> Claim:
    buckets = Buckets()
    for number in range(4):
        buckets.set(f"t{number}", Bucket(1e9, 1e9, 1e9, 0))
    scheduler = Scheduler(lambda number: number, buckets)
    for key in range(keys):
        name = (f"k{key}", *throttles_of(kind, key))
        scheduler.add(name, weight_of(kind, key), range(1 + key, 1 + messages, keys))

    def claim(limit: int) -> int:
        plan = scheduler.plan(limit, 0)
        scheduler.apply(plan)
        return len(plan.numbers)

    return claim


def old(kind: str, keys: int, messages: int) -> Claim:
    buckets = OldBuckets()
    for number in range(4):
        buckets.set(f"t{number}", 1e9, 1e9, 0)
    scheduler = QueueScheduler(lambda lane, place, limit: [], buckets, Memory(row_limit=10**9))
    lanes = [pack_lane(f"k{key}", throttles_of(kind, key)) for key in range(keys)]
    for place in range(1, 1 + messages):
        key = (place - 1) % keys
        scheduler.add(lanes[key], pack_row(place, place.to_bytes(16, "big"), weight_of(kind, key), 0, 10))
    return lambda limit: len(scheduler.take(limit, 0))


def measure(make: Callable[[str, int, int], Claim], kind: str, keys: int, batch: int) -> float:
    """CPU microseconds per message. A third of the messages stays, so no key runs dry."""
    claims = max(20, min(2_000, 100_000 // batch))
    messages = max(2 * keys, claims * batch * 3 // 2)
    claim = make(kind, keys, messages)
    began = time.thread_time_ns()
    taken = sum(claim(batch) for _ in range(claims))
    spent = time.thread_time_ns() - began
    assert taken == claims * batch
    return spent / 1000 / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append", help="measure only these")
    kinds = parser.parse_args().kind or KINDS
    table = Table("kind", "keys", "batch", "new us/message", "old us/message", "old / new")
    for kind in kinds:
        for keys in KEYS:
            for batch in BATCHES:
                best_new = min(measure(new, kind, keys, batch) for _ in range(ROUNDS))
                best_old = min(measure(old, kind, keys, batch) for _ in range(ROUNDS))
                ratio = f"{best_old / best_new:.1f}"
                table.add_row(kind, f"{keys:,}", str(batch), f"{best_new:.2f}", f"{best_old:.2f}", ratio)
    console = Console()
    console.print(table)
    console.print(str(conditions_here()))


if __name__ == "__main__":
    main()
