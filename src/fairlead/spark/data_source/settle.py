"""Rows say what became of messages that a stream has read: tasks record it with the claim, the driver chooses
what counts.

What is recorded takes effect when the source closes the claim, after the micro-batch is in Spark's commit
log; until then the messages stay where they are, and a replay finds them as they were. A message of the claim
that no row speaks of is completed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fairlead.errors import InvalidRequest, RowsRefused
from fairlead.spark.connection import client_for
from fairlead.spark.data_source.attempt import this_attempt
from fairlead.spark.data_source.chunks import Chunker
from fairlead.spark.data_source.columns import show_rows
from fairlead.spark.data_source.settle_columns import Receipt, check_settled, to_settlements
from fairlead.spark.options import SparkOptions

_ADVICE = "Nothing of this write counts; a row needs id and receipt as they were read, and an outcome"


@dataclass(frozen=True)
class SettledPart(WriterCommitMessage):
    """The name under which one attempt of a task has recorded outcomes, and the claims they belong to."""

    part: str
    claims: tuple[Receipt, ...]


class SettleWriter(DataSourceArrowWriter):
    """`df.write` in a `foreachBatch`."""

    def __init__(self, options: SparkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        _check(options, schema, overwrite, 'mode("append")')
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SettledPart:
        return record_rows(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        choose(self._options, messages)


class SettleStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream` of the query that reads them."""

    def __init__(self, options: SparkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        _check(options, schema, overwrite, 'outputMode("append")')
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SettledPart:
        return record_rows(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        choose(self._options, messages)


def record_rows(options: SparkOptions, batches: Iterator[pa.RecordBatch]) -> SettledPart:
    """In a task. What an attempt that is not chosen has recorded never counts, so there is nothing to take
    back.
    """
    part = this_attempt().name
    client = client_for(options)
    claims: dict[Receipt, Chunker] = {}
    for batch in batches:
        sent, faults = to_settlements(batch)
        if faults:
            rows = sorted(faults)
            raise RowsRefused(
                options.queue,
                len(rows),
                show_rows(batch.take(pa.array(rows)), [faults[row] for row in rows]),
                _ADVICE,
            )
        for receipt, rows_of_claim in sent:
            for chunk in claims.setdefault(receipt, Chunker()).add(rows_of_claim, rows_of_claim):
                client.consumers.record_batch(*receipt, chunk.wire, part=part)
    for receipt, chunker in claims.items():
        for chunk in chunker.rest():
            client.consumers.record_batch(*receipt, chunk.wire, part=part)
    return SettledPart(part, tuple(claims))


def choose(options: SparkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """On the driver. Adds to what was chosen: a foreachBatch may settle more than once. The source forgets
    the choice of a run that is replayed before the replay begins.
    """
    parts: dict[Receipt, list[str]] = {}
    for message in messages:
        if isinstance(message, SettledPart):
            for receipt in message.claims:
                parts.setdefault(receipt, []).append(message.part)
    client = client_for(options) if parts else None
    for receipt, names in parts.items():
        assert client is not None
        client.consumers.choose(*receipt, sorted(names), add=True)


def _check(options: SparkOptions, schema: StructType, overwrite: bool, instead: str) -> None:
    if overwrite:
        raise InvalidRequest("the mode of a write that settles", instead, "overwrite")
    if options.rejects:
        raise InvalidRequest(
            "option rejects",
            "left out with operation settle: a row that settles nothing is a mistake in the query",
            "a folder",
        )
    if options.dedupe_token:
        raise InvalidRequest(
            "option dedupeToken",
            "left out with operation settle: to settle twice is to settle once",
            options.dedupe_token,
        )
    check_settled(schema)
