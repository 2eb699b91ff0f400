"""What `fairlead worker run` does alike for local workers and for Spark: signals, warnings, the summary."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fairlead.cli.global_options import wants_json
from fairlead.cli.output import console, show, table
from fairlead.cli.target import Target
from fairlead.server import logs

LOG = logging.getLogger("fairlead.worker")
_OUTCOMES = ("completed", "failed", "dead", "released", "lost")


@contextmanager
def stopped_by_signals(stop: Callable[[bool], None]) -> Iterator[None]:
    """Call `stop(False)` at the first SIGTERM or SIGINT, and `stop(True)`, which must not wait, at each later
    one.
    """
    was_stopped = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal was_stopped
        stop(was_stopped)
        was_stopped = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def warn_of_dead_letters(worker: str, queue: str, count: int) -> None:
    logs.event(
        LOG,
        logging.WARNING,
        "new dead letters",
        worker=worker,
        count=count,
        see=f"fairlead queue show {queue} --status dead",
    )


def show_summary(target: Target, rows: Sequence[dict[str, Any]], elapsed_s: float, *, burst: bool) -> None:
    """Print what the workers have done. A row has `worker`, `queue` and the counts of outcomes.

    After a burst the summary also has the messages that are left in each queue.
    """
    if burst:
        for row in rows:
            stats = target.stats(row["queue"])
            row["left"] = {"ready": stats.ready, "waiting": stats.waiting, "leased": stats.leased}
    lines = table("worker", "queue", *_OUTCOMES, right=_OUTCOMES)
    for row in rows:
        lines.add_row(row["worker"], row["queue"], *(f"{row[name]:,}" for name in _OUTCOMES))
    show({"elapsed_ms": round(elapsed_s * 1000), "workers": rows}, lines)
    if burst and not wants_json():
        for row in rows:
            _print_left(row)


def _print_left(row: dict[str, Any]) -> None:
    left = ", ".join(f"{count:,} {place}" for place, count in row["left"].items() if count)
    if left:
        console().print(f"left in {row['queue']}: {left}")
