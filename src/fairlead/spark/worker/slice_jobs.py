"""The Spark jobs of a worker, one after the other, in a thread of their own: the driver's loop must hear
signals meanwhile.
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

_MOST_WORDS = 300


class JobFailed(Exception):
    """Spark gave up a job: tasks crashed, or their executors. `why` is one line."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class SliceJobs:
    """One job at a time. `spark` must be a classic session: with Spark Connect there is nobody to cancel a
    job at.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._name = f"{name} {secrets.token_hex(4)}"
        #: One for each job, so that it is the only one that is asked about and cancelled.
        self._group = ""
        self._started = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fairlead-job")
        self._running: Future[Sequence[SliceRow]] | None = None

    def start(self, work: RunSlice, words: str) -> None:
        self._started += 1
        self._group = f"{self._name} {self._started}"
        self._running = self._thread.submit(self._run, work, self._group, words)

    def wait(self, timeout_s: float) -> bool:
        """True when the job is over."""
        assert self._running is not None
        try:
            self._running.exception(timeout_s)
        except NotYet:
            return False
        return True

    def rows(self) -> Sequence[SliceRow]:
        """Of the job that is over. Raises `JobFailed`, or `SparkNotReady` when it is no use to try again."""
        assert self._running is not None
        try:
            return self._running.result()
        except Exception as error:
            self._refuse_hopeless(error)
            raise JobFailed(_in_a_line(error)) from error

    def tasks(self) -> tuple[int, int]:
        """How many tasks of the job are done, of how many; 0 of 0 while nobody knows."""
        try:
            return self._count_tasks()
        except Exception:
            return 0, 0  # the JVM is going; whoever waits for the job hears of it

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
        with suppress(Exception):  # a JVM that is gone runs no job
            self._spark.sparkContext.cancelJobGroup(self._group)
        self.wait(patience_s)

    def close(self) -> None:
        """In the middle of a job when something went wrong beside it: nobody waits for that any longer."""
        if self._running is not None and not self._running.done():
            self.cancel(0.0)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: RunSlice, group: str, words: str) -> Sequence[SliceRow]:
        context = self._spark.sparkContext
        context.setJobGroup(group, f"{group}, {words}", interruptOnCancel=True)
        # Not a DataFrame: planning one and its Arrow batches cost a tenth of a second more, and each Python
        # worker imports pandas for it.
        return context.parallelize(range(work.slices), work.slices).mapPartitions(work).collect()

    def _refuse_hopeless(self, error: Exception) -> None:
        text = str(error)
        if "No module named 'fairlead" in text or "No module named 'pyarrow" in text:
            advice = "Install fairlead[spark] for the Python of the executors, or ship an environment: docs/how-to/spark-worker.md"
            raise SparkNotReady("fairlead on the executors", _in_a_line(error), advice) from error
        try:
            stopped = self._spark.sparkContext._jsc.sc().isStopped()
        except Exception:
            stopped = True
        if stopped:
            advice = "Start the worker again: it goes on with the claim that is open"
            raise SparkNotReady(
                "a Spark session that runs", "one that has stopped, or whose JVM is gone", advice
            ) from error


def _in_a_line(error: Exception) -> str:
    """What matters in the pages that Spark makes of it: the last line of a Python traceback, or the first
    line that says something.
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
    return chosen[:_MOST_WORDS]
