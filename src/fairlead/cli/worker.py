"""`fairlead worker run`."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import msgspec
import typer

from fairlead.cli.global_options import current_options, wants_json, wrong_usage
from fairlead.cli.runbook import read_files
from fairlead.cli.spark_worker import run_on_spark
from fairlead.cli.target import Target, open_target
from fairlead.cli.worker_summary import show_summary
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

_log = logging.getLogger("fairlead.worker")

_LOOK_S = 1.0
_WAIT_S = 0.25
_REPORT_S = 10.0


class WorkerEngine(StrEnum):
    local = "local"
    spark = "spark"


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Workers: claim messages, run the steps of a pipeline, say how it went."
    )
    group.callback()(_group)
    group.command("run")(run)
    app.add_typer(group, name="worker")


def _group() -> None: ...


def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Workers of the runbook. Without any, all of them."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="FILE", help="Take pipelines and workers from this runbook file."),
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="End when nothing is ready any longer.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Apply the files now and on each change; without any, follow the runbook in force.",
        ),
    ] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="So many messages at a time, whatever the runbook says."),
    ] = None,
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="How long a stop lets steps finish that are under way.")
    ] = "30s",
    engine: Annotated[
        WorkerEngine | None,
        typer.Option(help="Where the steps run, whatever the runbook says: here, or in the tasks of Spark."),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Spark: its master, such as spark://host:7077. By default local[*]."
        ),
    ] = None,
    max_messages: Annotated[
        int, typer.Option(min=1, max=MAX_CLAIM, help="Spark: most messages of one job, if they are quick.")
    ] = 50_000,
) -> None:
    """Run workers of a runbook until SIGTERM or Ctrl-C.

    A stop takes no more messages, gives back those that have not begun, and lets the others finish; a second
    signal gives back everything at once. What a step prints goes to stderr; stdout has the summary at the
    end.
    """
    grace_s = to_ms(grace, "grace") / 1000
    logs.set_up(LogSettings(level="info", format="json" if wants_json() else "text"))
    with open_target(patience="30s") as target:
        source = _RunbookSource(target, file or [])
        runbook = _on_engine(source.apply() if watch else source.read(), engine)
        on_spark = _named_for_spark(runbook, names or ())
        if on_spark:
            run_on_spark(
                target,
                on_spark,
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
        with printing_to_stderr(), _stopped_by_signals(workers):
            workers.start()
            _attend(workers, source if watch else None)
        try:
            workers.check()
        except StepNotLoaded as error:
            error.add_note(
                f"modules are looked for in {source.base.resolve()} first; run the worker elsewhere, or name the runbook with --file"
            )
            raise
        except QueueNotFound as error:
            error.add_note(
                "a runbook's queues are made with: fairlead apply FILE, or here with --file FILE --watch"
            )
            raise
        rows = [
            {"worker": name, "queue": loop.job.queue, **vars(loop.counts)}
            for name, loop in workers.loops.items()
        ]
        show_summary(target, rows, time.monotonic() - began, burst=burst)


def _on_engine(runbook: Runbook, engine: WorkerEngine | None) -> Runbook:
    """All its workers on this one; with None each on its own."""
    if engine is not None:
        for name in runbook.workers:
            runbook = _with_worker(runbook, name, engine=engine.value)
    return runbook


def _with_worker(runbook: Runbook, name: str, **changes: Any) -> Runbook:
    changed = msgspec.structs.replace(runbook.workers[name], **changes)
    return msgspec.structs.replace(runbook, workers={**runbook.workers, name: changed})


def _named_for_spark(runbook: Runbook, names: Sequence[str]) -> str:
    """The one worker that is to run on Spark; "" when none of them is."""
    wanted = list(dict.fromkeys(names or runbook.workers))
    on_spark = [
        name for name in wanted if name in runbook.workers and runbook.workers[name].engine == "spark"
    ]
    if not on_spark:
        return ""
    if len(wanted) > 1:
        wrong_usage(
            f"expected one worker where one runs on Spark, as {' and '.join(on_spark)} would; alone: fairlead worker run {on_spark[0]}"
        )
    return on_spark[0]


class _RunbookSource:
    """Where the runbook comes from: files, or the engine."""

    def __init__(self, target: Target, files: list[Path]) -> None:
        self._target = target
        self._files = files
        self._project = current_options().project or None
        self._last: Runbook | None = None
        self._applied: Runbook | None = None
        self._complaint = ""

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
                    f"there is one for project {' and '.join(others)}; say --project {others[0]}, or set FAIRLEAD_PROJECT"
                )
            missing.add_note("to take one from a file: fairlead worker run --file FILE")
            raise missing
        return found

    def _with_bits(self, runbook: Runbook) -> Runbook:
        return with_progress_bits(runbook, find_in_force(self._target, runbook.project))

    def apply(self) -> Runbook:
        """Files are put in force first."""
        if self._files:
            written = read_files(self._files).runbook
            for entry in apply_plan(plan_for(self._target, written), self._target):
                logs.event(
                    _log, logging.INFO, "applied", kind=entry.kind, name=entry.name, action=entry.action
                )
            self._applied = written
            # Not read again: what is saved meanwhile is a change that is still to come.
            self._last = self._with_bits(written)
        else:
            self._last = self.read()
        return self._last

    def changed(self) -> Runbook | None:
        """The new one, if there is one that can be used. A mistake in it is said once, and the old one goes
        on.
        """
        try:
            # Files are compared without the broker, which may be away.
            if (
                (read_files(self._files).runbook == self._applied)
                if self._files
                else (self.read() == self._last)
            ):
                return None
            found = self.apply()
        except Unavailable:
            return None  # whoever tries again has said so
        except (FairleadError, OSError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                logs.event(
                    _log,
                    logging.ERROR,
                    "the changed runbook cannot be used, going on with the old one",
                    error=str(error),
                )
            return None
        self._complaint = ""
        return found


@contextmanager
def _stopped_by_signals(workers: Workers) -> Iterator[None]:
    told = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal told
        workers.stop(hurry=told)
        told = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _attend(workers: Workers, source: _RunbookSource | None) -> None:
    looks = reports = time.monotonic()
    buried = dict.fromkeys(workers.loops, 0)
    reported = _counts(workers)
    for name, loop in workers.loops.items():
        logs.event(
            _log,
            logging.INFO,
            "working",
            worker=name,
            queue=loop.job.queue,
            pipeline=loop.job.plan.name,
            concurrency=loop.concurrency,
        )
    while not workers.wait(_WAIT_S) or (source is not None and workers.has_no_worker):
        if workers.has_no_worker:
            time.sleep(_WAIT_S)  # a file that is being saved may be empty for a moment
        now = time.monotonic()
        if now - looks >= _LOOK_S:
            looks = now
            _tell_deaths(workers, buried)
            found = source.changed() if source is not None else None
            if found is not None:
                workers.change(found)
        if now - reports >= _REPORT_S and reported != _counts(workers):
            reports, reported = now, _counts(workers)
            logs.event(_log, logging.INFO, "progress", **reported)
    _tell_deaths(workers, buried)


def _tell_deaths(workers: Workers, told: dict[str, int]) -> None:
    """By number, and at most once a second for each worker: when everything dies, a line for each would help
    nobody.
    """
    for name, loop in workers.loops.items():
        new = loop.counts.dead - told.get(name, 0)
        if new > 0:
            told[name] = loop.counts.dead
            see = f"fairlead queue show {loop.job.queue} --status dead"
            logs.event(_log, logging.WARNING, "new dead letters", worker=name, count=new, see=see)


def _counts(workers: Workers) -> dict[str, int]:
    return {name: count for name, count in vars(workers.counts).items() if count or name == "completed"}
