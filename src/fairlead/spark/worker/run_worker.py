"""`fairlead.spark.run_worker`: run a worker of a runbook on Spark."""

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
from fairlead.spark.options import FIELDS, SparkOptions, read_options
from fairlead.spark.runtime.installed import found_version
from fairlead.spark.runtime.spark_session import DEFAULT_MASTER
from fairlead.worker.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from fairlead.spark.worker.loop import SparkWorkerProgress, WorkerSummary

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
_MAX_SLICES = 10_000
#: Spark's own default on a cluster.
_TASK_ATTEMPTS = 4


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
    on_progress: Callable[[SparkWorkerProgress], None] | None = None,
    follow: Callable[[], Runbook | None] | None = None,
    **connection: object,
) -> WorkerSummary:
    """Run a worker of a runbook on Spark until `stop` is set, or in a `burst` until nothing is ready.

    `runbook` is a file; without it, the runbook in force of `project` runs. Modules and commands of its steps
    are looked up in the file's folder, or in `base`; on a cluster that folder is sent to the executors.
    `spark` is a session of yours; without it, a session is made for `master` and stopped at the end. A job
    has `slices` tasks, by default one for each core of the executors. Each task runs as many step processes
    as the worker's `concurrency`, or this argument.

    A stop lets the running job finish within `grace`; `hurry` cancels it. Unsettled messages of a cancelled
    job return to the queue. If this process dies, the next run continues with the open claim. A second run of
    the same worker takes over, and this one raises `StaleConsumer`. The broker returns an open claim to the
    queue `ttl` after the last heartbeat. `follow` is called between claims, and may return a changed runbook.
    `connection` takes options of the data source in Python's spelling: api_key_file, api_key_env, tls, tls_ca
    and so on.

    Raises `WorkerNotFound`, `RunbookNotFound`, `QueueNotFound`, `EngineNotInstalled`, `SparkNotReady`,
    `StepNotLoaded`.
    """
    # Many branches, but each is a default or a check of one argument.
    if found_version("pyspark") is None:
        raise EngineNotInstalled(name, "spark")
    _check_count("max_messages", max_messages, MAX_CLAIM)
    if slices is not None:
        _check_count("slices", slices, _MAX_SLICES)
    if spark is not None and master is not None:
        raise InvalidRequest("master", "left out when a session is given", master)
    grace_s, ttl_ms = to_ms(grace, "grace") / 1000, to_ms(ttl, "ttl")
    options = _read_options(endpoint, connection)
    folder = _folder_of(runbook, base)
    found = runbook if isinstance(runbook, Runbook) else _load_runbook(runbook, project, options)
    job = _make_job(found, name, folder, concurrency)
    _check_queue_exists(options, job.queue)
    from fairlead.spark.worker.loop import RunSettings, SparkWorker
    from fairlead.spark.worker.ship import ship

    with ExitStack() as stack:
        if spark is None:
            # Last, so that the errors above do not wait seconds for a JVM.
            spark = stack.enter_context(_session(name, master))
        _check_session(spark)

        def prepare(runbook: Runbook) -> tuple[Job, str]:
            new = _make_job(runbook, name, folder, concurrency)
            _check_same_queue(name, job.queue, new.queue)
            return new, ship(spark, folder)

        settings = RunSettings(
            consumer=consumer or consumer_name(found.project, name),
            ttl=f"{ttl_ms}ms",
            slices=lambda: slices or spark.sparkContext.defaultParallelism,
            max_messages=max_messages,
            burst=burst,
            grace_s=grace_s,
            shipped=ship(spark, folder),
            stop=stop or threading.Event(),
            hurry=hurry or threading.Event(),
            on_progress=on_progress or (lambda progress: None),
            changed=lambda: _follow_runbook(follow, prepare),
        )
        worker = SparkWorker(spark, job, options, settings)
        with _explained_errors(name, folder):
            return worker.run()


def consumer_name(project: str | None, worker: str) -> str:
    """The durable consumer of a worker, the same in all its runs."""
    return f"worker:{project}/{worker}" if project else f"worker:{worker}"


def retry_tasks(master: str) -> str:
    """Let a local master retry tasks as a cluster does. By default it fails the job with the first task that
    crashes, and kills the other tasks while they work.
    """
    local = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*])?", master)
    return f"local[{local[1] or 1},{_TASK_ATTEMPTS}]" if local else master


def _check_count(name: str, count: object, most: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
        raise InvalidRequest(name, f"a whole number from 1 to {most}", count)


def _check_queue_exists(options: SparkOptions, queue: str) -> None:
    try:
        client_for(options).stats(queue)
    except QueueNotFound as error:
        error.add_note("create the runbook's queues with: fairlead apply FILE")
        raise


def _check_same_queue(worker: str, running: str, changed: str) -> None:
    if changed != running:
        expected = f"{running!r} while the worker runs; restart it to change the queue"
        raise InvalidRequest(f"the queue of worker {worker!r}", expected, changed)


def _check_session(spark: Any) -> None:
    if not hasattr(spark, "_jsparkSession"):
        advice = 'Give a master instead, such as master="spark://host:7077", or a session of SparkSession.builder.master(...)'
        raise SparkNotReady("a session with its driver in this process", "a session of Spark Connect", advice)
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        advice = "Set spark.speculation to false: two tasks must not work on the same messages"
        raise SparkNotReady("a session without speculation", "spark.speculation = true", advice)


def _follow_runbook(
    follow: Callable[[], Runbook | None] | None, prepare: Callable[[Runbook], tuple[Job, str]]
) -> tuple[Job, str] | None:
    """The job of a changed runbook, if it changed and is valid."""
    runbook = None if follow is None else follow()
    if runbook is None:
        return None
    try:
        return prepare(runbook)
    except Rejected as error:
        _log.error(
            "the changed runbook is refused; the worker continues with the old one",
            extra={"fields": {"error": str(error)}},
        )
        return None


@contextmanager
def _explained_errors(name: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except StepNotLoaded as error:
        error.add_note(
            f"modules of steps are looked up in {folder} first, then in the packages of the executors' Python"
        )
        raise
    except StaleConsumer as error:
        error.add_note(f"another run of worker {name!r} took over")
        raise


def _folder_of(runbook: str | Path | Runbook | None, base: str | Path | None) -> Path:
    if base is not None:
        return Path(base).resolve()
    if isinstance(runbook, str | Path):
        return Path(runbook).parent.resolve()
    return Path().resolve()


def _make_job(runbook: Runbook, name: str, folder: Path, concurrency: int | None) -> Job:
    job = Job.of(runbook, name, str(folder), engine=None)
    if concurrency is not None:
        job = replace(job, spec=msgspec.structs.replace(job.spec, concurrency=concurrency))
    if job.external is not None:
        raise InvalidRequest(f"the engine of worker {name!r}", '"local" for an external queue', "spark")
    return job


def _read_options(endpoint: str, connection: dict[str, object]) -> SparkOptions:
    unknown = sorted(set(connection) - set(_CONNECTION))
    if unknown:
        raise InvalidRequest(
            "every option of the connection", f"one of {', '.join(_CONNECTION)}", ", ".join(unknown)
        )
    names = {field: option for option, field in FIELDS.items()}
    given = {names[name]: str(value) for name, value in connection.items() if value not in (None, "", False)}
    return read_options({"endpoint": endpoint, **given})


def _load_runbook(runbook: str | Path | None, project: str | None, options: SparkOptions) -> Runbook:
    client = client_for(options)
    if runbook is not None:
        written = read_runbook([Path(runbook)], project=project).runbook
        return with_progress_bits(written, find_in_force(client, written.project))
    found = find_in_force(client, project)
    if found is None:
        missing = RunbookNotFound(project or "")
        missing.add_note("put a runbook in force with: fairlead apply FILE, or give its file: runbook=")
        raise missing
    return found


@contextmanager
def _session(name: str, master: str | None) -> Iterator[SparkSession]:
    """The session that runs in this process; or a new one, stopped at the end."""
    from pyspark.sql import SparkSession

    from fairlead.spark.runtime.spark_session import session

    if SparkSession.getActiveSession() is not None:
        yield session(master=master)
        return
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = retry_tasks(master or DEFAULT_MASTER)
    before = signal.getsignal(signal.SIGINT)
    # The JVM does little work here, so compiling its code well costs more than it gains.
    spark = session(f"fairlead worker {name}", master, short_job=True)
    # Spark's own handler would cancel all jobs, and raise in the middle of a call.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)
    try:
        yield spark
    finally:
        spark.stop()
