"""The driver of a Spark worker: claim, run the pipeline over the claim in one Spark job, close, and again.

All that must outlive the driver is in the broker: the claim that is open, and what was said about its
messages. A job that fails is run again, and so is one whose driver was killed; what is settled by then is
left out. Each run of a job has a generation of its own, so that a task of the run before, should it still
live, is told that it is no longer wanted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from fairlead.errors import (
    ClaimClosed,
    ClaimNotNext,
    ClaimReleased,
    FairleadError,
    Rejected,
    SparkNotReady,
    Unavailable,
)
from fairlead.model.durations import to_ms
from fairlead.spark.connection import client_for
from fairlead.spark.options import Options
from fairlead.spark.worker.claim_size import FIRST, FIRST_RUN, next_run, next_size
from fairlead.spark.worker.resident import patiently
from fairlead.spark.worker.run_slice import RunSlice, SliceRow
from fairlead.spark.worker.slice_jobs import JobFailed, SliceJobs
from fairlead.spark.worker.slice_target import BEAT_S
from fairlead.wire.faults import error_of
from fairlead.worker.job import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fairlead.client.bulk import BulkConsumers
    from fairlead.model.consumer import ConsumerInfo

_log = logging.getLogger("fairlead.spark")

T = TypeVar("T")

#: The driver tries this long by itself, and then as long as it is not told to stop.
DRIVER_TIMEOUT = "5s"
_POLL = "1s"
_TICK_S = 0.1
_LONGEST_BEAT_S = 30.0
#: By then tasks of the run before, should they live, have noticed that they are no longer wanted, and killed
#: their steps.
_FIRST_PAUSE_S = 2 * BEAT_S
_LONGEST_PAUSE_S = 30.0
#: How long a cancelled job may take to end; Spark gives its Python workers two seconds.
_CANCEL_S = 15.0

#: The claim in hand ended without us: its messages went back to their queue, and the next claim has them.
_GONE = (ClaimReleased, ClaimClosed, ClaimNotNext)


@dataclass
class WorkerSummary:
    """What a run has done. `failed` counts tries that will be repeated, `dead` those after which the message
    is a dead letter.
    """

    worker: str
    queue: str
    consumer: str
    claims: int = 0
    completed: int = 0
    failed: int = 0
    dead: int = 0
    #: Given back unworked: behind one that failed in their stream, or in doubt when the worker stopped.
    released: int = 0
    lost: int = 0
    #: Calls of steps that ended well, as far as the tasks lived to tell.
    steps: int = 0
    #: Step processes that died and were replaced.
    restarts: int = 0
    #: Spark jobs that failed and were run again.
    reruns: int = 0
    #: Failed tries by their reason.
    reasons: dict[str, int] = field(default_factory=dict)
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class Progress:
    """Where a worker is. `claim` 0: it waits for messages."""

    summary: WorkerSummary
    claim: int = 0
    messages: int = 0
    tasks: int = 0
    tasks_done: int = 0
    #: Settled messages of the last claims, for each second of their time.
    per_second: float = 0.0


class SparkWorker:
    """`run` works until `stop` is set, or in a burst until nothing is ready; `hurry` ends the job under way
    at once.

    `slices` is asked before each job: executors come and go. `changed` is asked between claims for another
    job to go on with. Raises `StaleConsumer` when another run has taken over, and what makes the work
    impossible, such as `StepNotLoaded`. However it ends, the next run goes on from there.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        options: Options,
        *,
        consumer: str,
        ttl: str,
        slices: Callable[[], int],
        max_messages: int,
        burst: bool = False,
        grace_s: float = 30.0,
        shipped: str = "",
        stop: threading.Event,
        hurry: threading.Event,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        changed: Callable[[], tuple[Job, str] | None] = lambda: None,
    ) -> None:
        self.summary = WorkerSummary(job.name, job.queue, consumer)
        self._job = job
        self._options = options
        self._client = client_for(replace(options, timeout=DRIVER_TIMEOUT))
        self._ttl = ttl
        self._slices = slices
        self._most = max_messages
        self._size = min(FIRST, max_messages)
        self._run = FIRST_RUN
        self._burst = burst
        self._grace_s = grace_s
        self._shipped = shipped
        self._stop = stop
        self._hurry = hurry
        self._on_progress = on_progress
        self._changed = changed
        self._jobs = SliceJobs(spark, f"fairlead worker {job.name}")
        self._known: ConsumerInfo | None = None
        #: What a heartbeat was refused for.
        self._refused: Rejected | None = None
        #: A heartbeat between a new generation and its answer would take it for somebody else's.
        self._one_voice = threading.Lock()
        #: Some task has reached the broker: its address is right.
        self._reached = False
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._rates: list[tuple[int, float]] = []

    def run(self) -> WorkerSummary:
        try:
            self._register()
        except Unavailable:
            return self.summary  # told to stop while the broker was away
        beats = threading.Thread(target=self._beat, name="fairlead-heartbeat", daemon=True)
        beats.start()
        try:
            while self._work_off_next():
                pass
        finally:
            self._ended.set()
            self._jobs.close()
            self.summary.elapsed_s = time.monotonic() - self._began
        return self.summary

    # One claim

    @property
    def _is_told(self) -> bool:
        """To end, soon or at once."""
        return self._stop.is_set() or self._hurry.is_set()

    def _work_off_next(self) -> bool:
        """False when there is none and none is waited for."""
        if self._is_told:
            return False
        try:
            try:
                return self._take_and_work_off()
            except _GONE as gone:
                self._look_again(gone)
                return True
        except Unavailable:
            if not self._is_told:
                raise
            return False  # what is open stays so for the next run

    def _take_and_work_off(self) -> bool:
        change = self._changed()
        if change is not None:
            self._job, self._shipped = change
        number = (
            self._info.last_closed + 1
        )  # the claim that is open, if one is; asked for again, it is the same
        asked, wait = self._size, None if self._burst else _POLL
        claim = self._patiently(
            lambda: self._consumers.claim(
                self._name,
                self._info.queue,
                self._info.generation,
                number,
                limit=asked,
                wait=wait,
                max_per_stream=self._run,
            )
        )
        if not claim.count:
            self._tell()
            return not self._burst
        self._run = next_run(self._run, asked, claim.count, most=self._most)
        began = time.monotonic()
        rows = self._work_off(number, claim.count)
        self._close(number, rows)
        self._learn(asked, claim.count, rows, time.monotonic() - began)
        self._tell(claim=number, messages=claim.count, tasks=len(rows), tasks_done=len(rows))
        return True

    def _learn(self, asked: int, claimed: int, rows: Sequence[SliceRow], took_s: float) -> None:
        """Sizes go by the longest task. What Spark takes for a job besides is the same however small the
        claim is.
        """
        settled = sum(row.completed + row.failed for row in rows)
        self._rates = [*self._rates[-4:], (settled, took_s)]
        worked_s = max((row.took_ms / 1000 for row in rows), default=took_s)
        if len(self._rates) > 1 or settled < claimed // 2:
            # The first takes longer than the others ever will: Python workers and step processes start in it.
            least = min(self._most, self._slices() * self._job.spec.concurrency * self._job.plan.most_rows)
            self._size = next_size(asked, settled, worked_s, least=least, most=self._most)

    def _work_off(self, number: int, count: int) -> Sequence[SliceRow]:
        """The rows of the tasks; none when the job was given up because we are to stop."""
        pause_s, slices, reruns = _FIRST_PAUSE_S, self._slices(), 0
        while True:
            try:
                return self._run_job(number, count, slices, reruns)
            except SparkNotReady:
                if not self._is_told:
                    raise
                self._dismiss_tasks()  # whoever stops everything at once has stopped the JVM as well
                return []
            except JobFailed as failed:
                fields = {"worker": self._job.name, "claim": number, "why": failed.why}
                if self._is_told:
                    _log.warning(
                        "the job has failed; what it has not settled goes back", extra={"fields": fields}
                    )
                    self._dismiss_tasks()
                    return []
                _log.warning(
                    "the job has failed and is run again; what is settled is left out",
                    extra={"fields": fields},
                )
                reruns += 1
                self.summary.reruns += 1
                self._dismiss_tasks()
                self._pause(pause_s - _FIRST_PAUSE_S)
                if self._is_told:
                    return []
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                if self._info.open != number:
                    raise ClaimReleased(
                        self._name, number, "it was let go of while its job was away"
                    ) from None

    def _run_job(self, number: int, count: int, slices: int, reruns: int) -> Sequence[SliceRow]:
        work = RunSlice(
            self._options,
            self._name,
            self._info.queue,
            self._info.generation,
            number,
            slices,
            self._job,
            self._shipped,
            reruns,
        )
        self._jobs.start(work, f"claim {number}: {count} messages")
        stop_by: float | None = None
        told = 0.0
        while not self._jobs.wait(_TICK_S):
            now = time.monotonic()
            if self._refused is not None:
                self._jobs.cancel(_CANCEL_S)
                raise self._refused
            if self._stop.is_set() and stop_by is None:
                stop_by = now + self._grace_s
                _log.info(
                    "stopping when the job is done",
                    extra={"fields": {"claim": number, "within_s": round(self._grace_s)}},
                )
            if self._hurry.is_set() or (stop_by is not None and now >= stop_by):
                _log.warning(
                    "the job is cancelled; what it has not settled goes back",
                    extra={"fields": {"claim": number}},
                )
                self._jobs.cancel(_CANCEL_S)
                self._dismiss_tasks()
                return []
            if now - told >= 1.0:
                told = now
                done, tasks = self._jobs.tasks()
                self._tell(claim=number, messages=count, tasks=tasks or slices, tasks_done=done)
        return self._jobs.rows()

    def _dismiss_tasks(self) -> None:
        """What may be left of a job hears within a second that it is no longer wanted. Raises `StaleConsumer`
        if it is we who are not.
        """
        with suppress(Unavailable):
            self._patiently(
                lambda: self._consumers.heartbeat(self._name, self._info.queue, self._info.generation)
            )
            self._register()
        time.sleep(_FIRST_PAUSE_S)

    def _pause(self, pause_s: float) -> None:
        """Unless we are told to end."""
        ends = time.monotonic() + pause_s
        while not self._is_told and time.monotonic() < ends:
            self._hurry.wait(_TICK_S)

    def _close(self, number: int, rows: Sequence[SliceRow]) -> None:
        """What nobody spoke of goes back. Then errors of the tasks are raised: nothing of the claim is held
        for them.
        """
        errors = [error_of(row.error) for row in rows if row.error is not None]
        try:
            closed = self._patiently(
                lambda: self._consumers.close(self._name, self._info.queue, self._info.generation, number)
            )
        except Unavailable:
            _log.warning(
                "the broker is away; the claim stays open for the next run",
                extra={"fields": {"claim": number}},
            )
            return
        self._known = msgspec.structs.replace(self._info, open=0, last_closed=closed.last_closed)
        self._count(rows, closed.settled)
        self._let_by(sorted({stream for row in rows for stream in row.let_by}))
        away = [error for error in errors if isinstance(error, Unavailable)]
        self._reached = self._reached or len(away) < len(rows)
        if away and self._reached:
            _log.warning(
                "tasks could not reach the broker; their messages went back",
                extra={"fields": {"claim": number, "why": str(away[0])}},
            )
            errors = [error for error in errors if error not in away]
        if errors:
            raise errors[0]

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

    def _let_by(self, streams: Sequence[str]) -> None:
        """What comes later in these streams need not wait for what has failed, unless the queue is strict."""
        if not streams:
            return
        try:
            if any(
                queue.config.ordering == "strict"
                for queue in self._client.queues(self._job.queue)
                if queue.name == self._job.queue
            ):
                return
            for stream in streams:
                self._client.release_stream(self._job.queue, stream)
        except FairleadError as error:
            # What is behind waits for its turn then, as it would without us.
            _log.warning(
                "a stream could not be let by",
                extra={"fields": {"queue": self._job.queue, "error": error.code}},
            )

    # The consumer

    @property
    def _consumers(self) -> BulkConsumers:
        return self._client.consumers

    @property
    def _name(self) -> str:
        return self.summary.consumer

    @property
    def _info(self) -> ConsumerInfo:
        assert self._known is not None
        return self._known

    def _register(self) -> None:
        with self._one_voice:
            self._known = self._patiently(
                lambda: self._consumers.register(
                    self._name, self._job.queue, ttl=self._ttl, default_outcome="release"
                )
            )

    def _look_again(self, gone: FairleadError) -> None:
        _log.warning(
            "a claim is gone, going on with the next",
            extra={"fields": {"worker": self._job.name, "why": str(gone)}},
        )
        self._known = self._patiently(
            lambda: self._consumers.heartbeat(self._name, self._info.queue, self._info.generation)
        )

    def _beat(self) -> None:
        every_s = min(to_ms(self._ttl, "ttl") / 4000, _LONGEST_BEAT_S)
        while not self._ended.wait(every_s):
            try:
                with self._one_voice:
                    self._consumers.heartbeat(self._name, self._info.queue, self._info.generation)
            except Rejected as refused:
                self._refused = refused
                return
            except FairleadError as trouble:
                _log.warning(
                    "a heartbeat did not get through",
                    extra={"fields": {"worker": self._job.name, "error": trouble.code}},
                )

    def _patiently(self, call: Callable[[], T]) -> T:
        def say(error: Unavailable) -> None:
            _log.warning(
                "the broker cannot be asked now, trying again",
                extra={"fields": {"worker": self._job.name, "error": error.code}},
            )

        return patiently(call, lambda: not self._is_told, say)

    def _tell(self, **where: int) -> None:
        self.summary.elapsed_s = time.monotonic() - self._began
        messages, took_s = (sum(part) for part in zip(*self._rates, strict=True)) if self._rates else (0, 0.0)
        self._on_progress(
            Progress(replace(self.summary), per_second=messages / took_s if took_s else 0.0, **where)
        )
