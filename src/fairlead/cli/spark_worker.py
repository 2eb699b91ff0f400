"""`fairlead worker run --engine spark`: one worker, run by Spark."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fairlead.cli import credentials
from fairlead.cli.global_options import current_options, wants_json, wrong_usage
from fairlead.cli.output import console
from fairlead.cli.target import Target
from fairlead.cli.worker_summary import show_summary
from fairlead.config import LogSettings
from fairlead.runbook.model import Runbook
from fairlead.server import logs

if TYPE_CHECKING:
    from fairlead.spark.worker.loop import SparkWorkerProgress

_log = logging.getLogger("fairlead.worker")

_REPORT_S = 5.0


def run_on_spark(
    target: Target,
    name: str,
    runbook: Runbook,
    *,
    base: Path,
    master: str | None,
    max_messages: int,
    burst: bool,
    grace: str,
    concurrency: int | None,
    follow: Callable[[], Runbook | None] | None,
) -> None:
    from fairlead.spark.worker.run_worker import run_worker

    address = current_options().target()
    if isinstance(address, Path):
        wrong_usage(
            "expected a server, with --addr: the tasks of a Spark worker are other processes, and cannot open a data directory too"
        )
    began = time.monotonic()
    telling = _ProgressReporter(name)
    with telling, _stopped_by_signals() as (stop, hurry):
        done = run_worker(
            name,
            endpoint=address,
            runbook=runbook,
            base=base,
            master=master,
            max_messages=max_messages,
            burst=burst,
            grace=grace,
            concurrency=concurrency,
            stop=stop,
            hurry=hurry,
            on_progress=telling.tell,
            follow=follow,
            **_connection(),
        )
    row = {key: value for key, value in vars(done).items() if key != "elapsed_s"}
    show_summary(target, [row], time.monotonic() - began, burst=burst)


def _connection() -> dict[str, Any]:
    """What leads the tasks to the server. A key goes by the name of its file or variable: what a job carries
    is for all to see.
    """
    given = current_options().credentials
    in_env = given.api_key_file is None and bool(os.environ.get(credentials.API_KEY))
    system = given.tls_ca is not None and str(given.tls_ca) == credentials.SYSTEM
    return {
        "api_key_file": _absolute(given.api_key_file),
        "api_key_env": credentials.API_KEY if in_env else None,
        "tls": True if system else None,
        "tls_ca": None if system else _absolute(given.tls_ca),
        "tls_cert": _absolute(given.tls_cert),
        "tls_key": _absolute(given.tls_key),
    }


def _absolute(file: Path | None) -> Path | None:
    return None if file is None else file.resolve()


@contextmanager
def _stopped_by_signals() -> Iterator[tuple[threading.Event, threading.Event]]:
    """The first signal stops, the second hurries. The JVM does not hear Ctrl-C: PySpark starts it so."""
    stop, hurry = threading.Event(), threading.Event()

    def told(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop, hurry
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _ProgressReporter:
    """Where the worker is: one line that is written over at a terminal, a line every few seconds in a log."""

    def __init__(self, name: str) -> None:
        self._name = name
        on_terminal = sys.stderr.isatty() and not wants_json()
        self._status = console(stderr=True).status("starting Spark") if on_terminal else None
        self._told_at = 0.0
        self._told = ""
        self._dead = 0

    def __enter__(self) -> _ProgressReporter:
        if self._status is not None:
            self._status.start()
            # Lines of the log go above it: what rich has put in the place of stderr sees to that.
            logs.set_up(LogSettings(level="info"))
        logs.event(_log, logging.INFO, "starting Spark", worker=self._name)
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()
            logs.set_up(LogSettings(level="info"))

    def tell(self, progress: SparkWorkerProgress) -> None:
        done, now = progress.summary, time.monotonic()
        self._tell_deaths(progress)
        if self._status is not None:
            self._status.update(_line(progress))
            return
        counts = {
            name: getattr(done, name)
            for name in ("completed", "failed", "dead", "released", "lost", "reruns")
        }
        counts = {name: count for name, count in counts.items() if count or name == "completed"}
        fields = {
            "worker": self._name,
            "claims": done.claims,
            **counts,
            "per_second": round(progress.per_second),
        } | dict(done.reasons)
        if progress.claim:
            fields |= {
                "claim": progress.claim,
                "messages": progress.messages,
                "tasks": f"{progress.tasks_done}/{progress.tasks}",
            }
        if now - self._told_at >= _REPORT_S and str(fields) != self._told:
            self._told_at, self._told = now, str(fields)
            logs.event(_log, logging.INFO, "progress", **fields)

    def _tell_deaths(self, progress: SparkWorkerProgress) -> None:
        new = progress.summary.dead - self._dead
        if new > 0:
            self._dead += new
            see = f"fairlead queue show {progress.summary.queue} --status dead"
            logs.event(_log, logging.WARNING, "new dead letters", worker=self._name, count=new, see=see)


def _line(progress: SparkWorkerProgress) -> str:
    done = progress.summary
    parts = [f"{done.completed:,} completed"]
    counts = (("to be tried again", done.failed), ("dead", done.dead), ("given back", done.released))
    parts += [f"{count:,} {word}" for word, count in counts if count]
    parts += [
        f"{reason} {count:,}" for reason, count in sorted(done.reasons.items(), key=lambda pair: -pair[1])[:3]
    ]
    parts.append(f"{progress.per_second:,.0f}/s")
    if progress.claim:
        parts.append(
            f"claim {progress.claim}: {progress.messages:,} messages, {progress.tasks_done} of {progress.tasks} tasks"
        )
    else:
        parts.append("waiting for messages" if done.claims or done.elapsed_s else "starting")
    return " · ".join(parts)
