"""The driver of a Spark worker: claim, run the pipeline over the claim in one Spark job, close, repeat.

Everything that must outlive the driver is in the broker: the open claim, and the outcomes recorded for its
messages. A job that fails is run again, and so is a job whose driver was killed; messages that are settled by
then are left out. Each rerun registers the consumer anew, so tasks of an earlier run that are still alive are
refused by their generation.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fairlead.errors import (
    ClaimClosed,
    ClaimNotNext,
    ClaimReleased,
    FairleadError,
    SparkNotReady,
    Unavailable,
)
from fairlead.spark.connection import client_for
from fairlead.spark.options import SparkOptions
from fairlead.spark.worker.claim_size import FIRST_RUN, FIRST_SIZE, next_run, next_size
from fairlead.spark.worker.run_slice import RunSlice, SliceRow
from fairlead.spark.worker.slice_handler import CHECK_PERIOD_S
from fairlead.spark.worker.slice_jobs import JobFailed, SliceJobs
from fairlead.spark.worker.worker_consumer import WorkerConsumer
from fairlead.wire.faults import error_of
from fairlead.worker.job import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("fairlead.spark")

#: The timeout of one call of the driver. The driver repeats a call until it is stopped.
DRIVER_TIMEOUT = "5s"
_CLAIM_WAIT = "1s"
_TICK_S = 0.1
_REPORT_PERIOD_S = 1.0
#: After this pause, tasks of an earlier run that are still alive have been refused and have killed their
#: steps.
_MIN_PAUSE_S = 2 * CHECK_PERIOD_S
_MAX_PAUSE_S = 30.0
#: How long a cancelled job may take to end. Spark gives its Python workers two seconds.
_CANCEL_S = 15.0
#: How many claims the reported rate is computed from.
_RATE_CLAIMS = 5

#: The open claim ended without this driver. Its messages returned to their queue, and a later claim delivers
#: them.
_CLAIM_ENDED = (ClaimReleased, ClaimClosed, ClaimNotNext)


@dataclass
class WorkerSummary:
    """The counts of a run. `failed` counts tries that are retried, `dead` the tries after which the message
    is a dead letter.
    """

    worker: str
    queue: str
    consumer: str
    claims: int = 0
    completed: int = 0
    failed: int = 0
    dead: int = 0
    #: Returned to the queue without an outcome: behind a failed message of their stream, or unsettled at a
    #: stop.
    released: int = 0
    lost: int = 0
    #: Successful calls of steps, without those of tasks that died.
    steps: int = 0
    #: Step processes that died and were replaced.
    restarts: int = 0
    #: Spark jobs that failed and were run again.
    reruns: int = 0
    #: Failed tries by reason.
    reasons: dict[str, int] = field(default_factory=dict)
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class SparkWorkerProgress:
    """The state of a worker. `claim` is 0 while it waits for messages."""

    summary: WorkerSummary
    claim: int = 0
    messages: int = 0
    tasks: int = 0
    tasks_done: int = 0
    #: Messages settled per second, over the last claims.
    per_second: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a worker runs. `slices` is called before each job, because executors come and go. `changed` is called
    between claims, and may return another job with the folder that was shipped for it.
    """

    consumer: str
    ttl: str
    slices: Callable[[], int]
    max_messages: int
    burst: bool = False
    grace_s: float = 30.0
    shipped: str = ""
    stop: threading.Event = field(default_factory=threading.Event)
    hurry: threading.Event = field(default_factory=threading.Event)
    on_progress: Callable[[SparkWorkerProgress], None] = lambda progress: None
    changed: Callable[[], tuple[Job, str] | None] = lambda: None

    @property
    def is_stopping(self) -> bool:
        return self.stop.is_set() or self.hurry.is_set()


class SparkWorker:
    """`run` works until `stop` is set, or in a burst until nothing is ready. `hurry` cancels the running job at
    once.

    `run` raises `StaleConsumer` when another run took the consumer over, and errors that make the work
    impossible, such as `StepNotLoaded`. However a run ends, the next one continues with the open claim.
    """

    def __init__(self, spark: SparkSession, job: Job, options: SparkOptions, settings: RunSettings) -> None:
        self.summary = WorkerSummary(job.name, job.queue, settings.consumer)
        self._job = job
        self._options = options
        self._settings = settings
        self._client = client_for(replace(options, timeout=DRIVER_TIMEOUT))
        self._consumer = WorkerConsumer(
            self._client.consumers,
            settings.consumer,
            job.queue,
            ttl=settings.ttl,
            is_stopping=lambda: settings.is_stopping,
        )
        self._shipped = settings.shipped
        self._size = min(FIRST_SIZE, settings.max_messages)
        self._run_length = FIRST_RUN
        self._jobs = SliceJobs(spark, f"fairlead worker {job.name}")
        #: A task has reached the broker, so the executors have a working address.
        self._was_reached = False
        self._began = time.monotonic()
        #: Settled messages and seconds of the last claims.
        self._rates: list[tuple[int, float]] = []

    def run(self) -> WorkerSummary:
        try:
            self._consumer.register()
        except Unavailable:
            return self.summary  # stopped while the broker could not be reached
        self._consumer.start_heartbeats()
        try:
            while self._work_on_next_claim():
                pass
        finally:
            self._consumer.end()
            self._jobs.close()
            self.summary.elapsed_s = time.monotonic() - self._began
        return self.summary

    def _work_on_next_claim(self) -> bool:
        """Return False when the run is over."""
        if self._settings.is_stopping:
            return False
        try:
            try:
                return self._claim_and_work()
            except _CLAIM_ENDED as ended:
                _log.warning(
                    "the open claim ended; the worker continues with the next one",
                    extra={"fields": {"worker": self._job.name, "why": str(ended)}},
                )
                self._consumer.refresh()
                return True
        except Unavailable:
            if not self._settings.is_stopping:
                raise
            return False  # an open claim stays open for the next run

    def _claim_and_work(self) -> bool:
        change = self._settings.changed()
        if change is not None:
            self._job, self._shipped = change
        # The open claim if there is one: claiming its number again returns the same claim.
        number = self._consumer.info.last_closed + 1
        asked = self._size
        claim = self._consumer.claim(
            number,
            limit=asked,
            wait=None if self._settings.burst else _CLAIM_WAIT,
            max_per_stream=self._run_length,
        )
        if not claim.count:
            self._report()
            return not self._settings.burst
        self._run_length = next_run(self._run_length, asked, claim.count, at_most=self._settings.max_messages)
        began = time.monotonic()
        rows = self._work_on(number, claim.count)
        self._close(number, rows)
        self._adjust_size(asked, claim.count, rows, time.monotonic() - began)
        self._report(claim=number, messages=claim.count, tasks=len(rows), tasks_done=len(rows))
        return True

    def _adjust_size(self, asked: int, claimed: int, rows: Sequence[SliceRow], took_s: float) -> None:
        """Size the next claim by the longest task: the rest of the job takes the same time for any claim."""
        settled = sum(row.completed + row.failed for row in rows)
        self._rates = [*self._rates, (settled, took_s)][-_RATE_CLAIMS:]
        worked_s = max((row.took_ms / 1000 for row in rows), default=took_s)
        if len(self._rates) == 1 and settled >= claimed // 2:
            # The first claim takes longer than any other: Python workers and step processes start during it.
            return
        least = self._settings.slices() * self._job.spec.concurrency * self._job.plan.max_rows
        self._size = next_size(
            asked,
            settled,
            worked_s,
            at_least=min(self._settings.max_messages, least),
            at_most=self._settings.max_messages,
        )

    def _work_on(self, number: int, count: int) -> Sequence[SliceRow]:
        """The rows of the tasks; none if the job was given up because of a stop."""
        pause_s, slices, reruns = _MIN_PAUSE_S, self._settings.slices(), 0
        while True:
            try:
                return self._run_job(number, count, slices, reruns)
            except SparkNotReady:
                if not self._settings.is_stopping:
                    raise
                self._fence_tasks()  # the same signal may have stopped the JVM
                return []
            except JobFailed as failed:
                self._log_failed_job(number, failed)
                if self._settings.is_stopping:
                    self._fence_tasks()
                    return []
            reruns += 1
            self.summary.reruns += 1
            self._fence_tasks()
            self._pause(pause_s - _MIN_PAUSE_S)
            if self._settings.is_stopping:
                return []
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)
            if self._consumer.info.open != number:
                raise ClaimReleased(self._consumer.name, number, "it was released between two jobs")

    def _log_failed_job(self, number: int, failed: JobFailed) -> None:
        if self._settings.is_stopping:
            text = "the job failed; its unsettled messages return to the queue"
        else:
            text = "the job failed and is run again without the settled messages"
        _log.warning(text, extra={"fields": {"worker": self._job.name, "claim": number, "why": failed.why}})

    def _run_job(self, number: int, count: int, slices: int, reruns: int) -> Sequence[SliceRow]:
        work = RunSlice(
            self._options,
            self._consumer.name,
            self._consumer.queue,
            self._consumer.info.generation,
            number,
            slices,
            self._job,
            self._shipped,
            reruns,
        )
        self._jobs.start(work, f"claim {number}: {count} messages")
        stop_by: float | None = None
        reported_at = 0.0
        while not self._jobs.wait(_TICK_S):
            now = time.monotonic()
            if self._consumer.refused is not None:
                self._jobs.cancel(_CANCEL_S)
                raise self._consumer.refused
            if self._settings.stop.is_set() and stop_by is None:
                stop_by = now + self._settings.grace_s
                _log.info(
                    "the worker stops when its job is done",
                    extra={"fields": {"claim": number, "within_s": round(self._settings.grace_s)}},
                )
            if self._settings.hurry.is_set() or (stop_by is not None and now >= stop_by):
                self._cancel_job(number)
                return []
            if now - reported_at >= _REPORT_PERIOD_S:
                reported_at = now
                done, tasks = self._jobs.tasks()
                self._report(claim=number, messages=count, tasks=tasks or slices, tasks_done=done)
        return self._jobs.rows()

    def _cancel_job(self, number: int) -> None:
        _log.warning(
            "the job is cancelled; its unsettled messages return to the queue",
            extra={"fields": {"claim": number}},
        )
        self._jobs.cancel(_CANCEL_S)
        self._fence_tasks()

    def _fence_tasks(self) -> None:
        """Register a new generation, and wait until tasks of the old one have noticed. Raises `StaleConsumer`
        if another run took the consumer over.
        """
        with suppress(Unavailable):
            self._consumer.refresh()
            self._consumer.register()
        time.sleep(_MIN_PAUSE_S)

    def _pause(self, pause_s: float) -> None:
        """Returns early when the worker is stopped."""
        ends = time.monotonic() + pause_s
        while not self._settings.is_stopping and time.monotonic() < ends:
            self._settings.hurry.wait(_TICK_S)

    def _close(self, number: int, rows: Sequence[SliceRow]) -> None:
        """Close the claim: messages without an outcome return to the queue. Then raise an error of the tasks,
        so that the error keeps no message.
        """
        try:
            closed = self._consumer.close(number)
        except Unavailable:
            _log.warning(
                "the broker cannot be reached; the claim stays open for the next run",
                extra={"fields": {"claim": number}},
            )
            return
        self._count(rows, closed.settled)
        self._release_streams(sorted({stream for row in rows for stream in row.streams_to_release}))
        self._raise_task_errors(number, rows)

    def _raise_task_errors(self, number: int, rows: Sequence[SliceRow]) -> None:
        """A task that could not reach the broker ends the worker only if no task ever reached it."""
        errors = _errors_of(rows)
        unavailable = [error for error in errors if isinstance(error, Unavailable)]
        self._was_reached = self._was_reached or len(unavailable) < len(rows)
        if unavailable and not self._was_reached:
            raise unavailable[0]
        if unavailable:
            _log.warning(
                "tasks could not reach the broker; their messages returned to the queue",
                extra={"fields": {"claim": number, "why": str(unavailable[0])}},
            )
        others = [error for error in errors if error not in unavailable]
        if others:
            raise others[0]

    def _count(self, rows: Sequence[SliceRow], settled: dict[str, int]) -> None:
        summary = self.summary
        summary.claims += 1
        summary.completed += settled.get("completed", 0)
        summary.failed += settled.get("retry", 0)
        summary.dead += settled.get("dead", 0)
        summary.released += settled.get("released", 0)
        for row in rows:
            summary.steps += row.steps
            summary.restarts += row.restarts
            summary.lost += row.lost
            summary.reasons = dict(Counter(summary.reasons) + Counter(row.reasons))

    def _release_streams(self, streams: Sequence[str]) -> None:
        """Let later messages of these streams pass the failed one, unless the queue is strict."""
        if not streams:
            return
        queue = self._job.queue
        try:
            for info in self._client.queues(queue):
                if info.name == queue and info.config.ordering == "strict":
                    return
            for stream in streams:
                self._client.release_stream(queue, stream)
        except FairleadError as error:
            # Later messages of the streams wait for the failed one, as they do without a release.
            _log.warning(
                "a stream could not be released", extra={"fields": {"queue": queue, "error": error.code}}
            )

    def _report(self, **state: int) -> None:
        self.summary.elapsed_s = time.monotonic() - self._began
        messages = sum(settled for settled, _ in self._rates)
        took_s = sum(seconds for _, seconds in self._rates)
        per_second = messages / took_s if took_s else 0.0
        self._settings.on_progress(SparkWorkerProgress(replace(self.summary), per_second=per_second, **state))


def _errors_of(rows: Sequence[SliceRow]) -> list[FairleadError]:
    return [error_of(row.error) for row in rows if row.error is not None]
