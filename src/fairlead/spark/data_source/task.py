"""Facts about the running Spark task: its attempt, its micro-batch, and whether its input has ended.

Spark does not document the names used here. Tests fail when they change.

Spark ends a task early when a `limit` has enough rows, or when the task's source fails. It then closes the
connection to the Python worker, which Arrow takes for the end of the rows if it falls between two batches.
Only at the real end does Spark send a mark, which its worker reads after the function returned.
`check_input_ended` looks at the mark and leaves it in place.
"""

from __future__ import annotations

import sys
from typing import Any, Final, NamedTuple
from uuid import uuid4

from pyspark import TaskContext

from fairlead.errors import SparkNotReady

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
#: The module and the local variable that hold the connection in Spark's worker.
_WORKER_MODULE: Final = "pyspark.worker"
_CONNECTION_NAME: Final = "input_data_stream"
#: `SpecialLengths.END_OF_STREAM`, as Spark sends it.
_END_OF_STREAM: Final = (-4).to_bytes(4, "big", signed=True)


class Attempt(NamedTuple):
    """`name` is unique: a retry, a speculative copy, and a task of an earlier driver have other names."""

    partition: int
    name: str


def this_attempt() -> Attempt:
    context = _context()
    partition = context.partitionId()
    # A new driver counts tasks from 0 again, so the numbers alone could equal those of a late task.
    return Attempt(
        partition, f"{partition:05}-{context.attemptNumber()}-{context.taskAttemptId()}-{uuid4().hex[:12]}"
    )


def micro_batch_token() -> str:
    """The token of a micro-batch: the same in every run of this batch from this checkpoint."""
    context = _context()
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if not query or not batch:
        raise SparkNotReady(
            f"the local properties {QUERY_ID} and {BATCH_ID} in a task that writes a stream",
            f"{query!r} and {batch!r}",
            "Without them a replay looks like a new batch. Write inside foreachBatch instead, with the option dedupeToken",
        )
    return f"{query}/{batch}"


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SparkNotReady(
            "a Spark task", "none", "Writers are run by Spark: use df.write or df.writeStream"
        )
    return context


class InputCutShort(Exception):
    """The task was ended before its last row. Only Spark's worker sees this error, in a task that has ended
    already.
    """


def check_input_ended() -> None:
    """Check that no more rows would have come; for a task's function, after its last row. Raises
    `InputCutShort`.
    """
    seen = _connection().peek(len(_END_OF_STREAM))[: len(_END_OF_STREAM)]
    if not seen or not _END_OF_STREAM.startswith(seen):
        raise InputCutShort("Spark ended this task before the last row of its partition")


def _connection() -> Any:
    frame = sys._getframe()
    while frame is not None:
        if _is_worker_module(frame.f_globals) and hasattr(frame.f_locals.get(_CONNECTION_NAME), "peek"):
            return frame.f_locals[_CONNECTION_NAME]
        frame = frame.f_back  # type: ignore[assignment]
    raise SparkNotReady(
        f"a Python worker of Spark 4.3 with its connection ({_WORKER_MODULE}.{_CONNECTION_NAME})",
        "none",
        "Without it a task that Spark ended early looks complete. Use a version of Spark that fairlead supports",
    )


def _is_worker_module(module: dict[str, Any]) -> bool:
    """Without Spark's daemon the worker is the main module of its process, and only its spec has its name."""
    return _WORKER_MODULE in (module.get("__name__"), getattr(module.get("__spec__"), "name", None))
