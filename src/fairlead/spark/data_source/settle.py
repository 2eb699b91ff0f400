"""Rows settle messages that a stream read: tasks record outcomes with the claim, the driver chooses the
attempts that count.

Outcomes take effect when the source closes the claim, after the micro-batch is in Spark's commit log. Until
then the messages stay as they are, and a replay reads them unchanged. A message of the claim without a row is
completed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fairlead.errors import InvalidRequest, RowsRefused
from fairlead.spark.connection import client_for
from fairlead.spark.data_source.chunks import Chunker
from fairlead.spark.data_source.columns import describe_rows
from fairlead.spark.data_source.settle_columns import Receipt, check_settled, to_settlements
from fairlead.spark.data_source.task import this_attempt
from fairlead.spark.options import SparkOptions

_ADVICE = "No outcome of this write counts; a row needs id and receipt as they were read, and an outcome"


@dataclass(frozen=True)
class RecordedPart(WriterCommitMessage):
    """The part under which one attempt of a task recorded outcomes, and the claims of these outcomes."""

    part: str
    claims: tuple[Receipt, ...]


class SettleWriter(DataSourceArrowWriter):
    """Settles with `df.write` inside a `foreachBatch`."""

    def __init__(self, options: SparkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        _check(options, schema, overwrite, 'mode("append")')
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RecordedPart:
        return record_rows(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        choose(self._options, messages)


class SettleStreamWriter(DataSourceStreamArrowWriter):
    """Settles with `df.writeStream` in the query that reads the messages."""

    def __init__(self, options: SparkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        _check(options, schema, overwrite, 'outputMode("append")')
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RecordedPart:
        return record_rows(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        choose(self._options, messages)


def record_rows(options: SparkOptions, batches: Iterator[pa.RecordBatch]) -> RecordedPart:
    """Record the outcomes of a task's rows. Outcomes of an attempt that is not chosen never count, so a
    failed attempt needs no undo.
    """
    part = this_attempt().name
    client = client_for(options)
    claims: dict[Receipt, Chunker] = {}
    for batch in batches:
        sent, errors = to_settlements(batch)
        if errors:
            rows = sorted(errors)
            raise RowsRefused(
                options.queue,
                len(rows),
                describe_rows(batch.take(pa.array(rows)), [errors[row] for row in rows]),
                _ADVICE,
            )
        for receipt, rows_of_claim in sent:
            for chunk in claims.setdefault(receipt, Chunker()).add(rows_of_claim, rows_of_claim):
                client.consumers.record_batch(*receipt, chunk.wire, part=part)
    for receipt, chunker in claims.items():
        for chunk in chunker.rest():
            client.consumers.record_batch(*receipt, chunk.wire, part=part)
    return RecordedPart(part, tuple(claims))


def choose(options: SparkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Choose, on the driver, the attempts whose outcomes count.

    The choice adds to earlier ones, because a foreachBatch may settle more than once. The source clears the
    choice of an earlier run before it replays a micro-batch.
    """
    parts: dict[Receipt, list[str]] = {}
    for message in messages:
        if isinstance(message, RecordedPart):
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
            "left out with operation settle: a row that settles nothing is an error of the query",
            "a folder",
        )
    if options.dedupe_token:
        raise InvalidRequest(
            "option dedupeToken",
            "left out with operation settle: settling twice has the effect of settling once",
            options.dedupe_token,
        )
    check_settled(schema)
