"""What noticing damage costs: the census before an open, and the marks after commits and syncs. `python -m
bench.census`.

The census is measured on logs of about 250 MB (RocksDB keeps at most 256 MiB of them) that a process left
behind without closing: written in batches of 500, and message by message. Each round opens a copy in a fresh
process. Processor time is of all threads. The marks are measured by enqueueing, beside a broker whose marks
do nothing, in interleaved rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

import msgspec
from rich.console import Console
from rich.table import Table

import fairlead
from bench.backlog import run_child
from bench.conditions import conditions_here
from bench.lifecycle import DURABILITIES, drafts_over
from bench.rates import per_second, ratio, spread
from fairlead.broker.broker import Durability
from fairlead.store.rocks.census import examine
from fairlead.store.rocks.marks import Mark, Marks, read_mark

BATCHES = (1, 500)
_COUNT = {("os", 1): 3_000, ("os", 500): 20_000, ("fsync", 1): 300, ("fsync", 500): 20_000}


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


def measure_open(home: Path, rounds: int, megabytes: int, console: Console) -> None:
    table = Table("written by", "logs MB", "census s", "census CPU s", "open in all s", "open in all CPU s")
    for batch in (500, 1):
        base, copy = home / f"batch-{batch}", home / "copy"
        run_child(
            "bench.census", "--prepare", str(base), "--batch", str(batch), "--megabytes", str(megabytes)
        )
        seen: list[Opened] = []
        for _ in range(rounds):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(base, copy)
            seen.append(msgspec.json.decode(run_child("bench.census", "--visit", str(copy)), type=Opened))
        columns = [
            [v.census_s for v in seen],
            [v.census_cpu_s for v in seen],
            [v.open_s for v in seen],
            [v.open_cpu_s for v in seen],
        ]
        name = "single messages" if batch == 1 else f"batches of {batch}"
        table.add_row(name, f"{_log_bytes(base) / 1e6:.0f}", *(spread(column).show() for column in columns))
        shutil.rmtree(base)
    console.print(table)


def measure_marks(home: Path, rounds: int, console: Console) -> None:
    table = Table(
        "durability",
        "batch",
        "messages/s with marks",
        "without",
        "of without",
        "CPU µs a message",
        "without",
        "of without",
    )
    for durability in DURABILITIES:
        for batch in BATCHES:
            marked, unmarked = _enqueue_both(home, durability, batch, rounds)
            cells = [
                spread(marked.rates).show(0),
                spread(unmarked.rates).show(0),
                ratio(marked.rates, unmarked.rates).show(),
            ]
            cells += [
                spread(marked.cpu_us).show(1),
                spread(unmarked.cpu_us).show(1),
                ratio(marked.cpu_us, unmarked.cpu_us).show(),
            ]
            table.add_row(durability, str(batch), *cells)
    console.print(table)


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
    parser = argparse.ArgumentParser(
        prog="python -m bench.census",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=250)
    parser.add_argument("--batch", type=int, default=500, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--visit", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        prepare(options.prepare, options.batch, options.megabytes)
    if options.visit:
        print(msgspec.json.encode(visit(options.visit)).decode())
        sys.exit()
    console = Console()
    console.print(conditions_here())
    home = Path(tempfile.mkdtemp(prefix="fairlead-bench-"))
    try:
        measure_open(home, options.rounds, options.megabytes, console)
        measure_marks(home, options.rounds, console)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
