"""`python -m bench --profile doors`: where a lifecycle through the door that speaks Redis spends CPU, in the client
and in the server.
"""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.doors.contender import make_bodies
from bench.doors.profiled import COMMAND, DIRECTORY, ask
from bench.doors.profiler import Profiler, Snapshot, between
from bench.doors.resp import Resp

_BATCHES = (500, 1)


def show_profile(home: Path, console: Console, *, seconds: float = 4.0, rows: int = 30) -> None:
    """Compare shares with the measured rates, not sums: counting calls slows both sides down."""
    asked = home / "asked"
    asked.mkdir(parents=True)
    os.environ[DIRECTORY] = str(asked)
    bodies = make_bodies(5_000)
    profiler = Profiler()
    with profiler:
        door = Resp(home / "served", "os", COMMAND)
    try:
        for batch in _BATCHES:
            batches = door.prepare(bodies, batch)
            with profiler:
                door.lifecycles(batches, seconds / 8)
            before = profiler.snapshot(), ask(asked)
            with profiler:
                count = door.lifecycles(batches, seconds)
            after = profiler.snapshot(), ask(asked)
            for side, early, late in zip(("client", "server"), before, after, strict=True):
                _show(console, f"{side}, batch {batch}", between(early, late), count, rows)
    finally:
        door.close()


def _show(console: Console, title: str, seen: Snapshot, count: int, rows: int) -> None:
    threads = sorted(
        ((name, cpu) for name, cpu in seen.threads.items() if cpu > 0), key=lambda item: -item[1]
    )
    whole = sum(cpu for _, cpu in threads)
    said = ", ".join(f"{name} {cpu / whole:.0%}" for name, cpu in threads if cpu / whole >= 0.005)
    in_python = sum(function.own for function in seen.functions.values())
    table = Table(
        "own us",
        "share",
        "with callees us",
        "calls",
        "function",
        title=f"{title}: CPU microseconds a message, under the profiler",
    )
    for name, function in sorted(seen.functions.items(), key=lambda item: -item[1].own)[:rows]:
        per = [f"{spent / count * 1e6:.2f}" for spent in (function.own, function.total)]
        table.add_row(
            per[0], f"{function.own / in_python:.1%}", per[1], f"{function.calls / count:.3f}", name
        )
    console.print(table)
    console.print(
        f"process {whole / count * 1e6:.1f} us a message, of which Python threads {in_python / count * 1e6:.1f}; by thread: {said}"
    )
