"""Backlogs over many random keys: `python -m bench.many_keys --other PATH_OF_A_CHECKOUT`.

Messages of 100 B are enqueued in batches of 500. The process is then killed, and a fresh one reopens the directory,
claims and completes a part of the backlog, 500 at a time. Each step runs in a process of its own; the contenders take
turns, and each round starts with another one. CPU time is that of all threads. *Claim* is the longest claim in CPU
time of its thread without Python's collector, *hold* the longest hold of the engine lock (0: not measured), and
*collector* the longest run of the collector.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Any

import msgspec

BATCH = 500
PAYLOAD = b"x" * 100


class Fill(msgspec.Struct):
    fill_us: float


class Visit(msgspec.Struct):
    """Memory is what the process grew by, in MB: by the opening, and until the end."""

    reopen_s: float
    drain_us: float
    claim_wall_ms: float
    claim_ms: float
    hold_ms: float
    collector_ms: float
    opened_mb: float
    drained_mb: float


class Collector:
    """The CPU time that Python's collector took, and its longest run."""

    def __init__(self) -> None:
        self.spent = self.longest = self._began = 0.0
        gc.callbacks.append(self._run)

    def _run(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = thread_time()
            return
        took = thread_time() - self._began
        self.spent += took
        self.longest = max(self.longest, took)


def fill(data: Path, messages: int, keys: int) -> None:
    import fairlead

    broker = fairlead.open(data, durability="os")
    broker.create_queue("work", visibility_timeout="10m")
    rng = Random(messages)
    spent = 0.0
    for _ in range(0, messages, BATCH):
        batch = [fairlead.NewMessage(PAYLOAD, fairness_key=f"k{rng.randrange(keys)}") for _ in range(BATCH)]
        began = process_time()
        broker.enqueue_many("work", batch)
        spent += process_time() - began
    print(msgspec.json.encode(Fill(1e6 * spent / messages)).decode(), flush=True)
    # As in a crash: the log is left for the next process to replay.
    os._exit(0)


def visit(data: Path, claimed: int) -> None:
    import fairlead

    _measure_lock()
    collector = Collector()
    before_mb = _memory_mb()
    began = process_time()
    broker = fairlead.open(data, durability="os")
    reopen_s = process_time() - began
    opened_mb = _memory_mb() - before_mb
    _holds_of(broker).clear()
    collector.longest = longest = longest_wall = 0.0
    began = process_time()
    for _ in range(0, claimed, BATCH):
        cpu, wall = thread_time() - collector.spent, perf_counter()
        deliveries = broker.claim("work", limit=BATCH)
        longest = max(longest, thread_time() - collector.spent - cpu)
        longest_wall = max(longest_wall, perf_counter() - wall)
        if len(deliveries) != BATCH or any(one.payload != PAYLOAD for one in deliveries):
            raise AssertionError("messages or their payloads are not there")
        broker.settle([fairlead.Complete(one) for one in deliveries])
    drained_s = process_time() - began
    hold_s = max([cpu for cpu, _ in _holds_of(broker).values()], default=0.0)
    seen = Visit(
        reopen_s,
        1e6 * drained_s / claimed,
        1000 * longest_wall,
        1000 * longest,
        1000 * hold_s,
        1000 * collector.longest,
        opened_mb,
        _memory_mb() - before_mb,
    )
    print(msgspec.json.encode(seen).decode(), flush=True)
    os._exit(0)


def _measure_lock() -> None:
    """The engine takes a lock that notes its holds, if the checkout has one."""
    with suppress(ImportError):
        import fairlead.engine.engine as engine_module
        from bench.holds import MeasuredLock

        engine_module.FairLock = MeasuredLock  # type: ignore[attr-defined]


def _holds_of(broker: Any) -> dict[int, tuple[float, float]]:
    """The longest hold of each thread; empty: they are not measured."""
    return getattr(getattr(getattr(broker, "engine", None), "lock", None), "holds", {})


def _memory_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def run_child(checkout: Path, *arguments: str) -> bytes:
    environment = {**os.environ, "PYTHONPATH": f"{checkout}/src:{checkout}"}
    command = [sys.executable, str(Path(__file__)), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.many_keys", description=__doc__)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--claimed", type=int, default=100_000)
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other", type=Path, action="append", default=[], help="another checkout")
    options = parser.parse_args()
    contenders = [Path(__file__).parents[1], *options.other]
    for keys in options.keys:
        found: dict[Path, list[tuple[Fill, Visit]]] = {}
        for turn in range(options.rounds):
            for at in range(len(contenders)):
                checkout = contenders[(turn + at) % len(contenders)]
                one = _measure(checkout, options.messages, keys, options.claimed)
                found.setdefault(checkout, []).append(one)
        print(
            f"{options.messages:,} over {keys:,}, {options.claimed:,} drained; load {os.getloadavg()[0]:.1f}"
        )
        for checkout, figures in found.items():
            print(f"  {checkout}")
            for name in Fill.__struct_fields__:
                _show(name, [getattr(filled, name) for filled, _ in figures])
            for name in Visit.__struct_fields__:
                _show(name, [getattr(seen, name) for _, seen in figures])


def _measure(checkout: Path, messages: int, keys: int, claimed: int) -> tuple[Fill, Visit]:
    with tempfile.TemporaryDirectory() as home:
        data = Path(home, "data")
        filled = run_child(checkout, "fill", str(data), str(messages), str(keys))
        seen = run_child(checkout, "visit", str(data), str(claimed))
        shutil.rmtree(data)
    return msgspec.json.decode(filled, type=Fill), msgspec.json.decode(seen, type=Visit)


def _show(name: str, figures: list[float]) -> None:
    print(f"    {name:14} {median(figures):8.2f}  ({min(figures):.2f} to {max(figures):.2f})")


if __name__ == "__main__":
    if sys.argv[1:2] == ["fill"]:
        fill(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1:2] == ["visit"]:
        visit(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
