"""The engine by case, beside bare RocksDB: `python -m bench.cases [--rounds 5] [--case streams ...]`.

A message is enqueued, claimed and completed: 1 KB, durability `os`, on RocksDB in a fresh directory. The
contenders run in turn, in this process; each round starts with another one. The figures are CPU time per message
and the ratios within each round. Bare RocksDB puts, gets and deletes the same bodies under ids (`bench/bare.py`).
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.bare import Bare
from bench.conditions import conditions_here
from bench.rates import ratio, spread, timed
from fairlead import Complete, Delivery, Fail, NewMessage
from fairlead.engine.engine import Engine
from fairlead.model.ids import IdSource
from fairlead.request import Request
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigSet
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle

PAYLOAD_BYTES = 1024
CONTENDERS = ("engine", "bare")
#: Messages of a run, by batch.
MESSAGES = {500: 50_000, 10: 10_000, 1: 3_000}
_WARM_SHARE = 5
_BUCKETS = 4
_DELAY_MS = 1000

Do = Callable[[Request[Any]], Any]
#: The fields that the n-th message has beside its payload and its key.
Fields = Callable[[int], dict[str, Any]]


class Case(NamedTuple):
    """`fails`: each message fails once and is delivered again. `bare`: bare RocksDB does the same work."""

    name: str
    batch: int
    keys: int
    fields: Fields | None = None
    delay_ms: int = 0
    fails: bool = False
    bare: bool = False

    @property
    def messages(self) -> int:
        return MESSAGES[self.batch]


SHAPES: dict[str, dict[str, Any]] = {
    "streams": {"fields": lambda n: {"stream": f"s{n}"}},
    "throttled": {"fields": lambda n: {"throttle_keys": (f"t{n % _BUCKETS}",)}},
    "dedup": {"fields": lambda n: {"dedup_key": f"d{n}"}},
    "delay": {"fields": lambda n: {"delay": "1s"}, "delay_ms": _DELAY_MS},
    "fail and retry": {"fails": True},
}
CASES = [
    *[Case("plain", 500, keys, bare=True) for keys in (10, 1_000, 100_000)],
    *[Case("plain", batch, keys, bare=True) for batch, keys in ((10, 10), (1, 10), (1, 1_000))],
    *[Case(name, batch, 10, **shape) for name, shape in SHAPES.items() for batch in MESSAGES],
]


class Contender(NamedTuple):
    do: Do
    clock: ManualClock | None


@contextmanager
def opened(case: Case) -> Iterator[Contender]:
    """Time passes by itself, unless the case has to wait."""
    clock = ManualClock() if case.delay_ms else None
    with tempfile.TemporaryDirectory(prefix="fairlead-cases-", ignore_cleanup_errors=True) as home:
        engine = Engine(RocksKeyValueStore.open(Path(home) / "data"), durability="os", clock=clock)
        engine.do(CreateQueue("q", {"visibility_timeout": "10m"}))
        for bucket in range(_BUCKETS):
            # So fast that no message waits: the cost of tokens counts, and not the time between them.
            engine.do(ConfigSet(f"throttle:t{bucket}:rate", "1000000000"))
        yield Contender(engine.do, clock)
        engine.close()


def run_lifecycles(contender: Contender, case: Case, messages: int, start: int) -> None:
    do, clock = contender
    payload = os.urandom(PAYLOAD_BYTES)
    batch, keys = case.batch, case.keys
    fields = case.fields or (lambda n: {})
    for first in range(start, start + messages, batch):
        if batch == 1:
            do(Enqueue("q", payload, fairness_key=f"k{first % keys}", **fields(first)))
        elif case.fields is None:
            numbers = range(first, first + batch)
            do(EnqueueMany("q", [NewMessage(payload, fairness_key=f"k{n % keys}") for n in numbers]))
        else:
            numbers = range(first, first + batch)
            do(
                EnqueueMany(
                    "q", [NewMessage(payload, fairness_key=f"k{n % keys}", **fields(n)) for n in numbers]
                )
            )
        if clock is not None:
            clock.advance(ms=case.delay_ms)
        if case.fails:
            do(Settle([Fail(delivery, "bench") for delivery in _claim(do, batch)]))
        do(Settle([Complete(delivery) for delivery in _claim(do, batch)]))


def _claim(do: Do, batch: int) -> Sequence[Delivery]:
    found: Sequence[Delivery] = do(Claim("q", batch))
    if len(found) != batch:
        raise AssertionError(f"expected {batch} deliveries, got {len(found)}")
    return found


def cpu_us(name: str, case: Case) -> float:
    warm = max(case.batch, case.messages // _WARM_SHARE)
    gc.collect()
    if name == "bare":
        return _bare_cpu_us(case, warm)
    with opened(case) as contender:
        run_lifecycles(contender, case, warm, 0)
        return timed(case.messages, lambda: run_lifecycles(contender, case, case.messages, warm)).cpu_us


def _bare_cpu_us(case: Case, warm: int) -> float:
    count = warm + case.messages
    ids, body = IdSource().next(1_700_000_000_000, count), os.urandom(PAYLOAD_BYTES)
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-cases-", ignore_cleanup_errors=True) as home,
        Bare(Path(home) / "bare", synced=False) as bare,
    ):
        bare.lifecycles(ids[:warm], [body] * warm, case.batch)
        bodies = [body] * case.messages
        return timed(case.messages, lambda: bare.lifecycles(ids[warm:], bodies, case.batch)).cpu_us


def chosen(names: Sequence[str], batches: Sequence[int]) -> list[Case]:
    return [
        case for case in CASES if (not names or case.name in names) and (not batches or case.batch in batches)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cases", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument(
        "--case", action="append", default=[], choices=["plain", *SHAPES], help="default: all"
    )
    parser.add_argument(
        "--batch", action="append", default=[], type=int, choices=MESSAGES, help="default: all"
    )
    options = parser.parse_args()
    cases = chosen(options.case, options.batch)
    seen: dict[Case, dict[str, list[float]]] = {case: {name: [] for name in CONTENDERS} for case in cases}
    for turn in track(range(options.rounds), "rounds"):
        order = CONTENDERS[turn % len(CONTENDERS) :] + CONTENDERS[: turn % len(CONTENDERS)]
        for case, found in seen.items():
            for name in order:
                if name != "bare" or case.bare:
                    found[name].append(cpu_us(name, case))
    here = conditions_here()
    console = Console(width=max(120, Console().width))
    console.print(f"{here.machine}, {here.cores} cores, Python {here.python}, commit {here.commit}")
    console.print(f"{options.rounds} rounds, load {here.load} at the end, {here.measured}", _table(seen))


def _table(seen: dict[Case, dict[str, list[float]]]) -> Table:
    table = Table("case", "batch", "keys", "CPU µs a message", "bare RocksDB", "bare / engine")
    for case, found in seen.items():
        engine, bare = (found[name] for name in CONTENDERS)
        table.add_row(
            case.name,
            str(case.batch),
            f"{case.keys:,}",
            spread(engine).show(1),
            spread(bare).show(1) if bare else "",
            ratio(bare, engine).show() if bare else "",
        )
    return table


if __name__ == "__main__":
    main()
