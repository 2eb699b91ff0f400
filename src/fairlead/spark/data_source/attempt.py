"""Which attempt of which task this is, and of which micro-batch, as Spark tells its Python workers."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import uuid4

from pyspark import TaskContext

from fairlead.errors import SparkNotReady

#: Spark's own names for them, which it does not document; a test notices when they change.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


class Attempt(NamedTuple):
    """`name` is of this attempt alone: a retry, a speculative copy, and a task of a driver that is believed
    dead have others.
    """

    partition: int
    name: str


def this_attempt() -> Attempt:
    context = _context()
    partition = context.partitionId()
    # Numbers of tasks begin anew with each driver, so by themselves they would not tell a late task of the
    # last one apart.
    return Attempt(
        partition, f"{partition:05}-{context.attemptNumber()}-{context.taskAttemptId()}-{uuid4().hex[:12]}"
    )


def token_of_micro_batch() -> str:
    """The same whenever this micro-batch of this checkpoint is run, whoever runs it."""
    context = _context()
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if not query or not batch:
        raise SparkNotReady(
            f"the local properties {QUERY_ID} and {BATCH_ID} in a task that writes a stream",
            f"{query!r} and {batch!r}",
            "Without them a replay could not be told from a new batch. Write inside foreachBatch instead, with the option dedupeToken",
        )
    return f"{query}/{batch}"


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SparkNotReady(
            "a Spark task", "none", "Writers are run by Spark: use df.write or df.writeStream"
        )
    return context
