"""What noticing damage costs: the census before an open, and the marks after commits and syncs.

The census is measured on logs of about 250 MB (RocksDB keeps at most 256 MiB of them) that a process left
behind without closing: written in batches of 500, and message by message. Each round opens a copy in a fresh
process. Processor time is of all threads. The marks are measured by enqueueing, beside a broker whose marks
do nothing, in interleaved rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import msgspec

import fairlead
from bench.backlog import run_child
from bench.lifecycle import DURABILITIES, drafts_over
from bench.rates import Spread, per_second, ratio, spread
from fairlead.engine.broker import Durability
from fairlead.store.rocks.census import examine
from fairlead.store.rocks.marks import Mark, Marks, read_mark

BATCHES: tuple[int, ...] = (1, 500)
_COUNT = {("os", 1): 3_000, ("os", 500): 20_000, ("fsync", 1): 300, ("fsync", 500): 20_000}


class Plan(msgspec.Struct, frozen=True):
    open_rounds: int = 5
    mark_rounds: int = 7
    megabytes: int = 250


QUICK = Plan(open_rounds=1, mark_rounds=1, megabytes=20)


class Opened(msgspec.Struct, frozen=True):
    records: int
    census_s: float
    census_cpu_s: float
    open_s: float
    open_cpu_s: float


class Enqueued(msgspec.Struct):
    """By round: messages per second, and processor time of all threads for one."""

    rates: list[float] = []
    cpu_us: list[float] = []


class NoMarks(Marks):
    """Holds the lock, and notes nothing."""

    def before_sync(self, sequence: int) -> Mark:
        return Mark()

    def keep(self, mark: Mark) -> None: ...

    def keep_written(self, sequence: int) -> None: ...


def prepare(data: Path, batch: int, megabytes: int) -> None:
    broker = fairlead.open(data, durability="os")
    broker.create_queue("work")
    while _log_bytes(data) < megabytes * 1_000_000:
        for drafts in drafts_over(1_000, 10_000, batch):
            broker.enqueue_many("work", drafts)
    os._exit(0)


def visit(data: Path) -> Opened:
    began, began_cpu = perf_counter(), process_time()
    census = examine(data, read_mark(data))
    census_s, census_cpu_s = perf_counter() - began, process_time() - began_cpu
    assert census is not None
    began, began_cpu = perf_counter(), process_time()
    broker = fairlead.open(data, durability="os")
    opened = Opened(
        census.sequence, census_s, census_cpu_s, perf_counter() - began, process_time() - began_cpu
    )
    broker.close()
    return opened


class Opening(msgspec.Struct, frozen=True):
    written_by: str
    logs_mb: float
    census_s: Spread
    census_cpu_s: Spread
    open_s: Spread
    open_cpu_s: Spread
    load: float


class Marking(msgspec.Struct, frozen=True):
    durability: str
    batch: int
    rate: Spread
    rate_without: Spread
    rate_of_without: Spread
    cpu_us: Spread
    cpu_us_without: Spread
    cpu_of_without: Spread
    load: float


class CensusFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    opened: list[Opening] = []
    marked: list[Marking] = []


def steps(plan: Plan) -> int:
    return len(BATCHES) + len(DURABILITIES) * len(BATCHES)


def measure(plan: Plan, home: Path, tick: Callable[[str], None]) -> CensusFigures:
    found = CensusFigures([], [])
    for batch in reversed(BATCHES):
        found.opened.append(_open_copies(home, plan, batch))
        tick(found.opened[-1].written_by)
    for durability in DURABILITIES:
        for batch in BATCHES:
            found.marked.append(_mark(home, plan, durability, batch))
            tick(f"marks, {durability}, batch {batch}")
    return found


def _open_copies(home: Path, plan: Plan, batch: int) -> Opening:
    base, copy = home / f"batch-{batch}", home / "copy"
    run_child(
        "bench.census", "--prepare", str(base), "--batch", str(batch), "--megabytes", str(plan.megabytes)
    )
    seen: list[Opened] = []
    for _ in range(plan.open_rounds):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(base, copy)
        seen.append(msgspec.json.decode(run_child("bench.census", "--visit", str(copy)), type=Opened))
    opening = Opening(
        written_by="single messages" if batch == 1 else f"batches of {batch}",
        logs_mb=_log_bytes(base) / 1e6,
        census_s=spread([one.census_s for one in seen]),
        census_cpu_s=spread([one.census_cpu_s for one in seen]),
        open_s=spread([one.open_s for one in seen]),
        open_cpu_s=spread([one.open_cpu_s for one in seen]),
        load=round(os.getloadavg()[0], 1),
    )
    shutil.rmtree(base)
    return opening


def _mark(home: Path, plan: Plan, durability: Durability, batch: int) -> Marking:
    marked, unmarked = _enqueue_both(home, durability, batch, plan.mark_rounds)
    return Marking(
        durability=durability,
        batch=batch,
        rate=spread(marked.rates),
        rate_without=spread(unmarked.rates),
        rate_of_without=ratio(marked.rates, unmarked.rates),
        cpu_us=spread(marked.cpu_us),
        cpu_us_without=spread(unmarked.cpu_us),
        cpu_of_without=ratio(marked.cpu_us, unmarked.cpu_us),
        load=round(os.getloadavg()[0], 1),
    )


def _enqueue_both(home: Path, durability: Durability, batch: int, rounds: int) -> tuple[Enqueued, Enqueued]:
    found = {True: Enqueued(), False: Enqueued()}
    brokers = {
        with_marks: fairlead.open(home / f"marks-{with_marks}", durability=durability) for with_marks in found
    }
    count = _COUNT[durability, batch]
    brokers[False]._core.store._marks.__class__ = NoMarks  # type: ignore[attr-defined]
    for broker in brokers.values():
        broker.create_queue("work")
    for turn in range(rounds):
        drafts = drafts_over(10, count, batch)
        for with_marks in (True, False) if turn % 2 else (False, True):
            broker = brokers[with_marks]
            began_cpu = process_time()
            rate = per_second(count, lambda: [broker.enqueue_many("work", some) for some in drafts])  # noqa: B023 called at once
            found[with_marks].rates.append(rate)
            found[with_marks].cpu_us.append((process_time() - began_cpu) / count * 1e6)
            broker.purge("work")
    for broker in brokers.values():
        broker.close()
    for with_marks in found:
        shutil.rmtree(home / f"marks-{with_marks}")
    return found[True], found[False]


def _log_bytes(data: Path) -> int:
    return sum(log.stat().st_size for log in data.glob("*.log"))


def main() -> None:
    """What the group starts in processes of their own."""
    parser = argparse.ArgumentParser(prog="python -m bench.census")
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--visit", type=Path)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--megabytes", type=int, default=250)
    options = parser.parse_args()
    if options.prepare:
        prepare(options.prepare, options.batch, options.megabytes)
    print(msgspec.json.encode(visit(options.visit)).decode())


if __name__ == "__main__":
    main()
