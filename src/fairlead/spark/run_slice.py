"""What a task of a Spark worker does: run the pipeline over its slice of the claim, and tell in one row how it went.

Payloads do not pass through the JVM: the task reads its slice from the broker, and records the outcomes there. A deliberate error
is a value in the row, so that the driver raises the same one and Spark does not try the task again; everything else fails the task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from fairlead.errors import FairleadError
from fairlead.spark.connection import client_for
from fairlead.spark.options import Options
from fairlead.spark.resident import work_here
from fairlead.spark.slice_target import Slice
from fairlead.wire.faults import fault_of
from fairlead.worker.job import Job

if TYPE_CHECKING:
    import pyarrow as pa

#: The row of a task.
TALLY = (
    "slice int, completed long, failed long, released long, steps long, restarts long, lost long, "
    "reasons map<string, long>, let_by array<string>, took_ms long, error string"
)


@dataclass(frozen=True)
class RunSlice:
    """Called by Spark with the numbers of slices, one for each task. Pickled by name: an executor has fairlead installed.

    `shipped` is the name under which the runbook's folder was sent; "": it is `job.base` there too.
    """

    options: Options
    consumer: str
    generation: int
    number: int
    slices: int
    job: Job
    shipped: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                yield self._row(at)

    def _row(self, at: int) -> pa.RecordBatch:
        import pyarrow as pa

        began = time.monotonic()
        job = replace(self.job, base=_base(self.shipped)) if self.shipped else self.job
        part = Slice(self.consumer, self.generation, self.number, at, self.slices)
        row = {"slice": at, "reasons": {}, "let_by": []}
        try:
            said, worked = work_here(part, (job, self.options), job, lambda: client_for(self.options).consumers)
        except FairleadError as error:
            row["error"] = msgspec.json.encode(fault_of(error)).decode()
        else:
            row |= {"completed": said.completed, "failed": said.failed, "released": said.released}
            row |= {"steps": worked.steps, "restarts": worked.restarts, "lost": worked.lost}
            row |= {"reasons": dict(said.reasons), "let_by": sorted(said.let_by)}
        row["took_ms"] = round((time.monotonic() - began) * 1000)
        return pa.RecordBatch.from_pylist([row], schema=_arrow_schema())


def _base(shipped: str) -> str:
    from pyspark import SparkFiles

    return os.path.join(SparkFiles.getRootDirectory(), shipped)


def _arrow_schema() -> pa.Schema:
    import pyarrow as pa

    count = pa.int64()
    return pa.schema(
        [
            ("slice", pa.int32()),
            *((name, count) for name in ("completed", "failed", "released", "steps", "restarts", "lost")),
            ("reasons", pa.map_(pa.string(), count)),
            ("let_by", pa.list_(pa.string())),
            ("took_ms", count),
            ("error", pa.string()),
        ]
    )
