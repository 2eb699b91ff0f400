"""The task of a Spark worker: run the pipeline over one slice of the claim, and return one row of counts.

Payloads do not pass through the JVM: the task reads its slice from the broker and records outcomes there. A
`FairleadError` is a value in the row, so that the driver raises the same error and Spark does not retry the
task. Any other exception fails the task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from fairlead.errors import FairleadError
from fairlead.spark.connection import client_for
from fairlead.spark.options import SparkOptions
from fairlead.spark.worker.slice_queue import ClaimSlice
from fairlead.spark.worker.slice_worker import work_in_process
from fairlead.wire.faults import Fault, fault_of
from fairlead.worker.job import Job

#: A slice delivers no more messages after this time, whatever the size of the claim: retries, and a stop,
#: wait until the claim is closed.
_MAX_S = 20.0


@dataclass(frozen=True)
class SliceRow:
    """The counts of one task. `error` ended it early."""

    slice: int
    completed: int = 0
    failed: int = 0
    released: int = 0
    steps: int = 0
    restarts: int = 0
    lost: int = 0
    #: Failed tries by reason.
    reasons: dict[str, int] = field(default_factory=dict)
    #: Streams whose later messages may pass one that failed.
    streams_to_release: tuple[str, ...] = ()
    took_ms: int = 0
    error: Fault | None = None


@dataclass(frozen=True)
class RunSlice:
    """Spark calls it with slice numbers, one for each task. It is pickled by name: an executor has fairlead
    installed.

    `shipped` is the folder on executors to which the runbook's folder was sent; "" if they have `job.base`.
    """

    options: SparkOptions
    consumer: str
    queue: str
    generation: int
    number: int
    slices: int
    job: Job
    shipped: str = ""
    #: Jobs of this claim that failed before.
    reruns: int = 0

    def __call__(self, numbers: Iterable[int]) -> Iterator[SliceRow]:
        return map(self._run, numbers)

    def _run(self, slice: int) -> SliceRow:
        began = time.monotonic()
        job = replace(self.job, base=_unpacked(self.shipped)) if self.shipped else self.job
        name = ClaimSlice(
            self.consumer,
            self.queue,
            self.generation,
            self.number,
            slice,
            self.slices,
            crashes=self.reruns + _failed_attempts(),
        )
        try:
            recorded, worked = work_in_process(
                name, (job, self.options), job, lambda: client_for(self.options).consumers, _MAX_S
            )
        except FairleadError as error:
            return SliceRow(slice, error=fault_of(error))
        return SliceRow(
            slice,
            recorded.completed,
            recorded.failed,
            recorded.released,
            worked.steps,
            worked.restarts,
            worked.lost,
            dict(recorded.reasons),
            tuple(sorted(recorded.streams_to_release)),
            round((time.monotonic() - began) * 1000),
        )


def _failed_attempts() -> int:
    """Earlier attempts of this task in the same Spark job."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


def _unpacked(shipped: str) -> str:
    from pyspark import SparkFiles

    # Absolute: on an executor the root is ".", and steps have another working directory.
    return os.path.abspath(os.path.join(SparkFiles.getRootDirectory(), shipped))
