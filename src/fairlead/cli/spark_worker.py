"""`fairlead worker run --engine spark`: one worker, run by Spark."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.cli import credentials
from fairlead.cli.global_options import current_options, wants_json, wrong_usage
from fairlead.cli.output import console
from fairlead.cli.target import Target
from fairlead.cli.worker_process import LOG, show_summary, stopped_by_signals, warn_of_dead_letters
from fairlead.config import LogSettings
from fairlead.runbook.model import Runbook
from fairlead.server import logs

if TYPE_CHECKING:
    from fairlead.spark.worker.loop import SparkWorkerProgress

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
            "expected a server, with --addr: the tasks of a Spark worker are other processes, and only one process can open a data directory"
        )
    began = time.monotonic()
    reporter = _ProgressReporter(name)
    stop, hurry = threading.Event(), threading.Event()

    def on_signal(again: bool) -> None:
        if again:
            hurry.set()
        stop.set()

    # PySpark starts the JVM so that it does not receive Ctrl-C.
    with reporter, stopped_by_signals(on_signal):
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
            on_progress=reporter.report,
            follow=follow,
            **_connection(),
        )
    row = {key: value for key, value in vars(done).items() if key != "elapsed_s"}
    show_summary(target, [row], time.monotonic() - began, burst=burst)


def _connection() -> dict[str, Any]:
    """How the tasks reach the server. A job carries the name of the key's file or variable, never the key:
    everybody on the cluster can read the parameters of a job.
    """
    options = current_options()
    in_env = options.api_key_file is None and bool(os.environ.get(credentials.API_KEY))
    system = options.tls_ca is not None and str(options.tls_ca) == credentials.SYSTEM
    return {
        "api_key_file": _absolute(options.api_key_file),
        "api_key_env": credentials.API_KEY if in_env else None,
        "tls": True if system else None,
        "tls_ca": None if system else _absolute(options.tls_ca),
        "tls_cert": _absolute(options.tls_cert),
        "tls_key": _absolute(options.tls_key),
    }


def _absolute(file: Path | None) -> Path | None:
    return None if file is None else file.resolve()


class _ProgressReporter:
    """Shows the progress of the worker: one line at a terminal, which is overwritten, else lines in the log."""

    def __init__(self, name: str) -> None:
        self._name = name
        on_terminal = sys.stderr.isatty() and not wants_json()
        self._status = console(stderr=True).status("starting Spark") if on_terminal else None
        self._reported_at = 0.0
        self._reported = ""
        self._dead = 0

    def __enter__(self) -> _ProgressReporter:
        if self._status is not None:
            self._status.start()
            # Rich has replaced stderr: set up anew, the log prints above the line.
            logs.set_up(LogSettings(level="info"))
        logs.event(LOG, logging.INFO, "starting Spark", worker=self._name)
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()
            logs.set_up(LogSettings(level="info"))

    def report(self, progress: SparkWorkerProgress) -> None:
        self._warn_of_new_dead_letters(progress)
        if self._status is not None:
            self._status.update(_line(progress))
            return
        fields = {"worker": self._name, **_log_fields(progress)}
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_S and str(fields) != self._reported:
            self._reported_at, self._reported = now, str(fields)
            logs.event(LOG, logging.INFO, "progress", **fields)

    def _warn_of_new_dead_letters(self, progress: SparkWorkerProgress) -> None:
        new = progress.summary.dead - self._dead
        if new > 0:
            self._dead += new
            warn_of_dead_letters(self._name, progress.summary.queue, new)


def _log_fields(progress: SparkWorkerProgress) -> dict[str, Any]:
    done = progress.summary
    counts = {
        name: getattr(done, name) for name in ("completed", "failed", "dead", "released", "lost", "reruns")
    }
    fields: dict[str, Any] = {
        "claims": done.claims,
        **{name: count for name, count in counts.items() if count or name == "completed"},
        "per_second": round(progress.per_second),
        **done.reasons,
    }
    if progress.claim:
        fields |= {
            "claim": progress.claim,
            "messages": progress.messages,
            "tasks": f"{progress.tasks_done}/{progress.tasks}",
        }
    return fields


def _line(progress: SparkWorkerProgress) -> str:
    done = progress.summary
    parts = [f"{done.completed:,} completed"]
    counts = (("failed", done.failed), ("dead", done.dead), ("released", done.released))
    parts += [f"{count:,} {outcome}" for outcome, count in counts if count]
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
