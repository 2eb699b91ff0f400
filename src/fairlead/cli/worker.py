"""`fairlead worker run`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fairlead.cli.global_options import current_options, wants_json, wrong_usage
from fairlead.cli.runbook import read_files
from fairlead.cli.spark_worker import run_on_spark
from fairlead.cli.target import Target, open_target
from fairlead.cli.worker_process import LOG, show_summary, stopped_by_signals, warn_of_dead_letters
from fairlead.config import LogSettings
from fairlead.errors import FairleadError, QueueNotFound, RunbookNotFound, StepNotLoaded, Unavailable
from fairlead.model.durations import to_ms
from fairlead.model.limits import MAX_CLAIM
from fairlead.runbook.apply import apply_plan, find_in_force, plan_for
from fairlead.runbook.model import Runbook
from fairlead.runbook.progress_bits import with_progress_bits
from fairlead.server import logs
from fairlead.worker.step_output import printing_to_stderr
from fairlead.worker.workers import Workers

_CHECK_S = 1.0
_WAIT_S = 0.25
_REPORT_S = 10.0


class WorkerEngine(StrEnum):
    local = "local"
    spark = "spark"


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="Workers: claim messages, run the steps of a pipeline, settle the messages.",
    )
    group.callback()(_group)
    group.command("run")(run)
    app.add_typer(group, name="worker")


def _group() -> None: ...


def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Workers of the runbook. Default: all workers."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="FILE", help="Read pipelines and workers from this runbook file."),
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="End when no message is ready.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Apply the files now and after each change; without files, follow the runbook in force.",
        ),
    ] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=10_000, help="Process N messages at a time, whatever the runbook says."
        ),
    ] = None,
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="How long a stop waits for running steps.")
    ] = "30s",
    engine: Annotated[
        WorkerEngine | None,
        typer.Option(
            metavar="local|spark",
            help="Run the steps in this process or in tasks of Spark, whatever the runbook says.",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark: its master, such as spark://host:7077. Default: local[*]."),
    ] = None,
    max_messages: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=MAX_CLAIM, help="Spark: process at most N messages in one job."),
    ] = 50_000,
) -> None:
    """Run workers of a runbook until SIGTERM or Ctrl-C.

    A stop claims no more messages, returns messages whose steps have not begun, and lets running steps
    finish; a second signal returns all messages at once. Output of steps goes to stderr; stdout gets the
    summary at the end.
    """
    grace_s = to_ms(grace, "grace") / 1000
    logs.set_up(LogSettings(level="info", format="json" if wants_json() else "text"))
    with open_target(patience="30s") as target:
        source = _RunbookSource(target, file or [])
        runbook = _with_engine(source.apply() if watch else source.read(), engine)
        spark_worker = _find_spark_worker(runbook, names or ())
        if spark_worker is not None:
            run_on_spark(
                target,
                spark_worker,
                runbook,
                base=source.base,
                master=master,
                max_messages=max_messages,
                burst=burst,
                grace=grace,
                concurrency=concurrency,
                follow=source.changed if watch else None,
            )
            return
        workers = Workers(
            target,
            runbook,
            names or (),
            base=source.base,
            burst=burst,
            grace_s=grace_s,
            concurrency=concurrency,
        )
        began = time.monotonic()
        with printing_to_stderr(), stopped_by_signals(lambda hurry: workers.stop(hurry=hurry)):
            workers.start()
            _supervise(workers, source if watch else None)
        with _advice(source):
            workers.check()
        rows = [
            {"worker": name, "queue": loop.job.queue, **vars(loop.counts)}
            for name, loop in workers.loops.items()
        ]
        show_summary(target, rows, time.monotonic() - began, burst=burst)


@contextmanager
def _advice(source: _RunbookSource) -> Iterator[None]:
    """Add what to do about an error that ended the workers."""
    try:
        yield
    except StepNotLoaded as error:
        error.add_note(
            f"modules are searched in {source.base.resolve()} first; run the worker in another directory, or name the runbook with --file"
        )
        raise
    except QueueNotFound as error:
        error.add_note(
            "create the queues of a runbook with: fairlead apply FILE, or run the worker with --file FILE --watch"
        )
        raise


def _with_engine(runbook: Runbook, engine: WorkerEngine | None) -> Runbook:
    """The runbook with this engine for all its workers; None changes nothing."""
    if engine is None:
        return runbook
    workers = {
        name: msgspec.structs.replace(worker, engine=engine.value) for name, worker in runbook.workers.items()
    }
    return msgspec.structs.replace(runbook, workers=workers)


def _find_spark_worker(runbook: Runbook, names: Sequence[str]) -> str | None:
    """Return the name of the worker that runs on Spark; it must be the only worker of the command."""
    wanted = list(dict.fromkeys(names or runbook.workers))
    on_spark = [
        name for name in wanted if name in runbook.workers and runbook.workers[name].engine == "spark"
    ]
    if not on_spark:
        return None
    if len(wanted) > 1:
        wrong_usage(
            f"expected a single worker, because {' and '.join(on_spark)} would run on Spark; run: fairlead worker run {on_spark[0]}"
        )
    return on_spark[0]


class _RunbookSource:
    """The origin of the runbook: files, or the runbook in force in the broker."""

    def __init__(self, target: Target, files: list[Path]) -> None:
        self._target = target
        self._files = files
        self._project = current_options().project or None
        self._last: Runbook | None = None
        self._applied: Runbook | None = None
        self._reported_error = ""

    @property
    def base(self) -> Path:
        return self._files[0].parent if self._files else Path()

    def read(self) -> Runbook:
        if self._files:
            return self._with_bits(read_files(self._files).runbook)
        found = find_in_force(self._target, self._project)
        if found is None:
            missing = RunbookNotFound(self._project or "")
            others = sorted(project for project in self._target.runbooks.list() if project)
            if others:
                missing.add_note(
                    f"project {' and '.join(others)} has one; give --project {others[0]}, or set FAIRLEAD_PROJECT"
                )
            missing.add_note("to use a runbook file: fairlead worker run --file FILE")
            raise missing
        return found

    def _with_bits(self, runbook: Runbook) -> Runbook:
        return with_progress_bits(runbook, find_in_force(self._target, runbook.project))

    def apply(self) -> Runbook:
        """Apply the files, if there are any, and return the runbook in force."""
        if self._files:
            written = read_files(self._files).runbook
            for entry in apply_plan(plan_for(self._target, written), self._target):
                logs.event(
                    LOG, logging.INFO, "applied", kind=entry.kind, name=entry.name, action=entry.action
                )
            self._applied = written
            # Do not read the files again: a later save is a change that is still to be applied.
            self._last = self._with_bits(written)
        else:
            self._last = self.read()
        return self._last

    def changed(self) -> Runbook | None:
        """Return a changed runbook, or None. A mistake is logged once, and the workers keep the old runbook."""
        try:
            if not self._has_changed():
                return None
            found = self.apply()
        except Unavailable:
            return None  # The client has logged it, and tries again.
        except (FairleadError, OSError) as error:
            if str(error) != self._reported_error:
                self._reported_error = str(error)
                logs.event(
                    LOG,
                    logging.ERROR,
                    "the changed runbook cannot be used, keeping the old one",
                    error=str(error),
                )
            return None
        self._reported_error = ""
        return found

    def _has_changed(self) -> bool:
        """Files are compared without the broker, which may be away."""
        if self._files:
            return read_files(self._files).runbook != self._applied
        return self.read() != self._last


def _supervise(workers: Workers, source: _RunbookSource | None) -> None:
    """Log the progress of the workers until they end; with a source, change them with the runbook."""
    checked = reported_at = time.monotonic()
    reported = _counts(workers)
    dead = dict.fromkeys(workers.loops, 0)
    _log_start(workers)
    while not workers.wait(_WAIT_S) or (source is not None and workers.has_no_worker):
        if workers.has_no_worker:
            time.sleep(_WAIT_S)  # A file that is being saved may be empty for a moment.
        now = time.monotonic()
        if now - checked >= _CHECK_S:
            checked = now
            _warn_of_new_dead_letters(workers, dead)
            _change_workers(workers, source)
        if now - reported_at >= _REPORT_S and reported != _counts(workers):
            reported_at, reported = now, _counts(workers)
            logs.event(LOG, logging.INFO, "progress", **reported)
    _warn_of_new_dead_letters(workers, dead)


def _change_workers(workers: Workers, source: _RunbookSource | None) -> None:
    runbook = None if source is None else source.changed()
    if runbook is not None:
        workers.change(runbook)


def _log_start(workers: Workers) -> None:
    for name, loop in workers.loops.items():
        logs.event(
            LOG,
            logging.INFO,
            "working",
            worker=name,
            queue=loop.job.queue,
            pipeline=loop.job.plan.name,
            concurrency=loop.concurrency,
        )


def _warn_of_new_dead_letters(workers: Workers, known: dict[str, int]) -> None:
    """One line for each worker with its number of new dead letters, at most once a second."""
    for name, loop in workers.loops.items():
        new = loop.counts.dead - known.get(name, 0)
        if new > 0:
            known[name] = loop.counts.dead
            warn_of_dead_letters(name, loop.job.queue, new)


def _counts(workers: Workers) -> dict[str, Any]:
    return {name: count for name, count in vars(workers.counts).items() if count or name == "completed"}
