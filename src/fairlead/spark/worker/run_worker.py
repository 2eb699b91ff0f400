"""`fairlead.spark.run_worker`: a worker of a runbook, run by Spark."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.errors import (
    EngineNotInstalled,
    InvalidRequest,
    QueueNotFound,
    Rejected,
    RunbookNotFound,
    SparkNotReady,
    StaleConsumer,
    StepNotLoaded,
)
from fairlead.model.durations import Duration, to_ms
from fairlead.model.limits import MAX_CLAIM
from fairlead.runbook.apply import find_in_force
from fairlead.runbook.check import read_runbook
from fairlead.runbook.model import Runbook
from fairlead.runbook.progress_bits import with_progress_bits
from fairlead.spark.connection import client_for
from fairlead.spark.options import FIELDS, Options, read_options
from fairlead.spark.runtime.installed import found_version
from fairlead.spark.runtime.spark_session import DEFAULT_MASTER
from fairlead.worker.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from fairlead.spark.worker.loop import Progress, WorkerSummary

_log = logging.getLogger("fairlead.spark")

_CONNECTION = (
    "api_key_file",
    "api_key_env",
    "tls",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_server_name",
    "timeout",
)
_MOST_SLICES = 10_000
#: As on a cluster.
_TASK_TRIES = 4


def run_worker(
    name: str,
    *,
    endpoint: str,
    spark: SparkSession | None = None,
    master: str | None = None,
    runbook: str | Path | Runbook | None = None,
    project: str | None = None,
    base: str | Path | None = None,
    burst: bool = False,
    max_messages: int = 50_000,
    slices: int | None = None,
    concurrency: int | None = None,
    consumer: str | None = None,
    ttl: Duration = "10m",
    grace: Duration = "30s",
    stop: threading.Event | None = None,
    hurry: threading.Event | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    follow: Callable[[], Runbook | None] | None = None,
    **connection: object,
) -> WorkerSummary:
    """Run a worker of a runbook on Spark until `stop` is set, or in a `burst` until nothing is ready any
    longer.

    `runbook` is a file; without one it is the runbook in force of `project`. Modules and commands of its
    steps are looked for in its folder, or in `base`; on a cluster that folder is sent along. `spark` is a
    session of yours; without one a session is made for `master` and stopped at the end. Each of the `slices`
    tasks of a job (by default one for each core of the executors) has as many step processes as the worker's
    `concurrency`, or this one, says.

    A stop lets the job under way finish within `grace`; `hurry` cancels it. What it had not settled goes back
    to the queue. Whatever happens to this process, the next run goes on from there; a second run beside this
    one takes over, and this one ends with `StaleConsumer`. `ttl` after the last sign of life the broker gives
    back what was claimed. `follow` is asked between claims for a changed runbook. `connection` are the
    options of the data source in Python's spelling: api_key_file, api_key_env, tls, tls_ca, ...

    Raises `WorkerNotFound`, `RunbookNotFound`, `QueueNotFound`, `EngineNotInstalled`, `SparkNotReady`,
    `StepNotLoaded`.
    """
    if found_version("pyspark") is None:
        raise EngineNotInstalled(name, "spark")
    if (
        isinstance(max_messages, bool)
        or not isinstance(max_messages, int)
        or not 1 <= max_messages <= MAX_CLAIM
    ):
        raise InvalidRequest("max_messages", f"a whole number from 1 to {MAX_CLAIM}", max_messages)
    if slices is not None and (
        isinstance(slices, bool) or not isinstance(slices, int) or not 1 <= slices <= _MOST_SLICES
    ):
        raise InvalidRequest("slices", f"a whole number from 1 to {_MOST_SLICES}", slices)
    if spark is not None and master is not None:
        raise InvalidRequest("master", "left out where a session is given", master)
    grace_s = to_ms(grace, "grace") / 1000
    to_ms(ttl, "ttl")
    options = _options(endpoint, connection)
    folder = (
        Path(base)
        if base is not None
        else Path(runbook).parent
        if isinstance(runbook, (str, Path))
        else Path()
    )
    folder = folder.resolve()
    found = runbook if isinstance(runbook, Runbook) else _read(runbook, project, options)
    job = _job(found, name, folder, concurrency)
    try:
        client_for(options).stats(job.queue)
    except QueueNotFound as error:
        error.add_note("a runbook's queues are made with: fairlead apply FILE")
        raise
    from fairlead.spark.worker.loop import SparkWorker
    from fairlead.spark.worker.ship import ship

    with ExitStack() as ending:
        if spark is None:
            # Only now: a mistake above is told before seconds of starting a JVM.
            spark = ending.enter_context(_session(name, master))
        _refuse_unfit(spark)

        def changed() -> tuple[Job, str] | None:
            other = follow() if follow is not None else None
            if other is None:
                return None
            try:
                fresh = _job(other, name, folder, concurrency)
                if fresh.queue != job.queue:
                    raise InvalidRequest(
                        f"the queue of worker {name!r}",
                        f"{job.queue!r} as long as it runs; start it anew for another",
                        fresh.queue,
                    )
                return fresh, ship(spark, folder)
            except Rejected as error:
                _log.error(
                    "the changed runbook cannot be run, going on with the old one",
                    extra={"fields": {"error": str(error)}},
                )
                return None

        worker = SparkWorker(
            spark,
            job,
            options,
            consumer=consumer or consumer_name(found.project, name),
            ttl=str(ttl) if isinstance(ttl, str) else f"{to_ms(ttl, 'ttl')}ms",
            slices=lambda: slices or spark.sparkContext.defaultParallelism,
            max_messages=max_messages,
            burst=burst,
            grace_s=grace_s,
            shipped=ship(spark, folder),
            stop=stop or threading.Event(),
            hurry=hurry or threading.Event(),
            on_progress=on_progress or (lambda progress: None),
            changed=changed,
        )
        try:
            return worker.run()
        except StepNotLoaded as error:
            error.add_note(
                f"modules of steps are looked for in {folder} first, and then where the Python of the executors has its packages"
            )
            raise
        except StaleConsumer as error:
            error.add_note(f"another run of worker {name!r} has taken over; this one leaves the work to it")
            raise


def _job(runbook: Runbook, name: str, folder: Path, concurrency: int | None) -> Job:
    job = Job.of(runbook, name, str(folder), engine=None)
    if concurrency is not None:
        job = replace(job, spec=msgspec.structs.replace(job.spec, concurrency=concurrency))
    if job.external is not None:
        raise InvalidRequest(f"the engine of worker {name!r}", '"local" for an external queue', "spark")
    return job


def consumer_name(project: str | None, worker: str) -> str:
    """Under which the broker keeps the place of a worker: one for all its runs."""
    return f"worker:{project}/{worker}" if project else f"worker:{worker}"


def _options(endpoint: str, connection: dict[str, object]) -> Options:
    unknown = sorted(set(connection) - set(_CONNECTION))
    if unknown:
        raise InvalidRequest(
            "every option of the connection", f"one of {', '.join(_CONNECTION)}", ", ".join(unknown)
        )
    names = {field: option for option, field in FIELDS.items()}
    given = {names[name]: str(value) for name, value in connection.items() if value not in (None, "", False)}
    return read_options({"endpoint": endpoint, **given})


def _read(runbook: str | Path | None, project: str | None, options: Options) -> Runbook:
    client = client_for(options)
    if runbook is not None:
        written = read_runbook([Path(runbook)], project=project).runbook
        return with_progress_bits(written, find_in_force(client, written.project))
    found = find_in_force(client, project)
    if found is None:
        missing = RunbookNotFound(project or "")
        missing.add_note("put one in force with: fairlead apply FILE, or name its file: runbook=")
        raise missing
    return found


@contextmanager
def _session(name: str, master: str | None) -> Iterator[SparkSession]:
    """The one that runs in this process, left as it is; or a new one, stopped at the end."""
    from pyspark.sql import SparkSession

    from fairlead.spark.runtime.spark_session import session

    if SparkSession.getActiveSession() is not None:
        yield session(master=master)
        return
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = tries_tasks_again(master or DEFAULT_MASTER)
    before = signal.getsignal(signal.SIGINT)
    # The JVM does little here, whatever the steps do: what it would gain from compiling well is less than
    # that costs.
    spark = session(f"fairlead worker {name}", master, short_job=True)
    # Spark's own handler would cancel all jobs and raise in the middle of whatever goes on.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)
    try:
        yield spark
    finally:
        spark.stop()


def tries_tasks_again(master: str) -> str:
    """A local master fails a job with its first task that crashes, and then kills the others in the middle of
    their work.
    """
    return re.sub(
        r"^local(?:\[\s*(\d+|\*)\s*])?$", lambda found: f"local[{found[1] or 1},{_TASK_TRIES}]", master
    )


def _refuse_unfit(spark: Any) -> None:
    if not hasattr(spark, "_jsparkSession"):
        advice = 'Give a master instead, such as master="spark://host:7077", or a session of SparkSession.builder.master(...)'
        raise SparkNotReady("a session that has its driver in this process", "one of Spark Connect", advice)
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        advice = "Set spark.speculation to false for the worker: two tasks must not work on the same messages"
        raise SparkNotReady("a session without speculation", "spark.speculation = true", advice)
