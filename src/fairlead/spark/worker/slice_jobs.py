"""The Spark jobs of a worker, one at a time, in a thread of their own: the driver's loop reacts to signals
meanwhile.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from typing import TYPE_CHECKING

from fairlead.errors import SparkNotReady
from fairlead.spark.worker.run_slice import RunSlice, SliceRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_REASON_CHARACTERS = 300


class JobFailed(Exception):
    """Spark gave up a job because tasks or executors crashed. `why` is one line."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class SliceJobs:
    """Runs one job at a time. `spark` must be a classic session: Spark Connect has no call that cancels a
    job.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._name = f"{name} {secrets.token_hex(4)}"
        #: Each job has a group of its own, so that only this job is counted and cancelled.
        self._group = ""
        self._started = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fairlead-job")
        self._running: Future[Sequence[SliceRow]] | None = None

    def start(self, work: RunSlice, description: str) -> None:
        self._started += 1
        self._group = f"{self._name} {self._started}"
        self._running = self._thread.submit(self._run, work, self._group, description)

    def wait(self, timeout_s: float) -> bool:
        """True when the job has ended."""
        assert self._running is not None
        try:
            self._running.exception(timeout_s)
        except NotYet:
            return False
        return True

    def rows(self) -> Sequence[SliceRow]:
        """The rows of the ended job. Raises `JobFailed`, or `SparkNotReady` if running the job again cannot
        help.
        """
        assert self._running is not None
        try:
            return self._running.result()
        except Exception as error:
            self._raise_if_permanent(error)
            raise JobFailed(_reason_of(error)) from error

    def tasks(self) -> tuple[int, int]:
        """The completed tasks and all tasks of the job; (0, 0) while Spark does not know."""
        try:
            return self._count_tasks()
        except Exception:
            return 0, 0  # the JVM is ending; `rows` raises the error

    def _count_tasks(self) -> tuple[int, int]:
        tracker = self._spark.sparkContext.statusTracker()
        done = tasks = 0
        for job in tracker.getJobIdsForGroup(self._group):
            found = tracker.getJobInfo(job)
            if found is None or found.status != "RUNNING":
                continue
            for stage in map(tracker.getStageInfo, found.stageIds):
                if stage is not None:
                    done, tasks = done + stage.numCompletedTasks, tasks + stage.numTasks
        return done, tasks

    def cancel(self, patience_s: float) -> None:
        with suppress(Exception):  # a JVM that has ended runs no job
            self._spark.sparkContext.cancelJobGroup(self._group)
        self.wait(patience_s)

    def close(self) -> None:
        """Cancel a job that still runs, without waiting for its end."""
        if self._running is not None and not self._running.done():
            self.cancel(0.0)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: RunSlice, group: str, description: str) -> Sequence[SliceRow]:
        context = self._spark.sparkContext
        context.setJobGroup(group, f"{group}, {description}", interruptOnCancel=True)
        # Not a DataFrame: its plan and Arrow batches take a tenth of a second more, and each Python worker
        # would import pandas.
        return context.parallelize(range(work.slices), work.slices).mapPartitions(work).collect()

    def _raise_if_permanent(self, error: Exception) -> None:
        text = str(error)
        if "No module named 'fairlead" in text or "No module named 'pyarrow" in text:
            advice = "Install fairlead[spark] for the Python of the executors, or ship an environment: docs/how-to/spark-worker.md"
            raise SparkNotReady("fairlead on the executors", _reason_of(error), advice) from error
        try:
            stopped = self._spark.sparkContext._jsc.sc().isStopped()
        except Exception:
            stopped = True
        if stopped:
            advice = "Start the worker again: it continues with the open claim"
            raise SparkNotReady(
                "a running Spark session", "a session that has stopped, or whose JVM has ended", advice
            ) from error


def _reason_of(error: Exception) -> str:
    """One line of Spark's long message: the last line of a Python traceback, or the line with Spark's own
    reason, or the first line.
    """
    text = str(error)
    raised = re.findall(
        r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)(?:: .*)?$",
        text.split("Driver stacktrace")[0],
        re.MULTILINE,
    )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line for line in lines if "Most recent failure" in line or "Job aborted" in line]
    chosen = (raised[-1:] or reasons[:1] or lines[:1] or [type(error).__name__])[0]
    return chosen[:_MAX_REASON_CHARACTERS]
