"""What a task of a Spark worker does: run the pipeline over its slice of the claim, and tell in one row how
it went.

Payloads do not pass through the JVM: the task reads its slice from the broker, and records the outcomes
there. A deliberate error is a value in the row, so that the driver raises the same one and Spark does not try
the task again; everything else fails the task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from fairlead.errors import FairleadError
from fairlead.spark.connection import client_for
from fairlead.spark.options import Options
from fairlead.spark.worker.resident import work_here
from fairlead.spark.worker.slice_target import Slice
from fairlead.wire.faults import Fault, fault_of
from fairlead.worker.job import Job

#: A slice hands out nothing more after so long, whatever the size of the claim: what failed is tried again,
#: and a stop is heard, only when the claim is closed.
_MOST_S = 20.0


@dataclass(frozen=True)
class SliceRow:
    """What a task has said about its messages. `error` is what ended it early."""

    slice: int
    completed: int = 0
    failed: int = 0
    released: int = 0
    steps: int = 0
    restarts: int = 0
    lost: int = 0
    #: Failed tries by their reason.
    reasons: dict[str, int] = field(default_factory=dict)
    #: Streams whose later messages may pass one that failed.
    let_by: tuple[str, ...] = ()
    took_ms: int = 0
    error: Fault | None = None


@dataclass(frozen=True)
class RunSlice:
    """Called by Spark with the numbers of slices, one for each task. Pickled by name: an executor has
    fairlead installed.

    `shipped` is the name under which the runbook's folder was sent; "": it is `job.base` there too.
    """

    options: Options
    consumer: str
    queue: str
    generation: int
    number: int
    slices: int
    job: Job
    shipped: str = ""
    #: How many jobs of this claim have failed before.
    reruns: int = 0

    def __call__(self, numbers: Iterable[int]) -> Iterator[SliceRow]:
        return map(self._run, numbers)

    def _run(self, at: int) -> SliceRow:
        began = time.monotonic()
        job = replace(self.job, base=_base(self.shipped)) if self.shipped else self.job
        part = Slice(
            self.consumer,
            self.queue,
            self.generation,
            self.number,
            at,
            self.slices,
            self.reruns + _tries_before(),
        )
        try:
            said, worked = work_here(
                part, (job, self.options), job, lambda: client_for(self.options).consumers, _MOST_S
            )
        except FairleadError as error:
            return SliceRow(at, error=fault_of(error))
        return SliceRow(
            at,
            said.completed,
            said.failed,
            said.released,
            worked.steps,
            worked.restarts,
            worked.lost,
            dict(said.reasons),
            tuple(sorted(said.let_by)),
            round((time.monotonic() - began) * 1000),
        )


def _tries_before() -> int:
    """Of this task, by Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


def _base(shipped: str) -> str:
    from pyspark import SparkFiles

    # Absolute: on an executor it is ".", and steps run elsewhere.
    return os.path.abspath(os.path.join(SparkFiles.getRootDirectory(), shipped))
