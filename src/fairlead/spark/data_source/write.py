"""Write rows as messages: tasks stage them invisibly, then the driver publishes all of them at once.

A write has a token: query and micro-batch for a stream; for a batch the option `dedupeToken`, or a random
token. The broker publishes a token once, so a commit that is repeated after a crash changes nothing. Rows
that a failed write staged are discarded by `abort` if the token is known, dropped when the token is published
later, or expire with their time to live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fairlead.errors import FairleadError, InvalidRequest, RowsRefused
from fairlead.model.durations import to_ms
from fairlead.model.limits import MAX_STAGING_NAME_BYTES
from fairlead.spark.connection import client_for
from fairlead.spark.data_source.chunks import Chunker, RowChunk
from fairlead.spark.data_source.columns import describe_rows, without_rows
from fairlead.spark.data_source.rejects import RejectsFile, RejectsFolder, check_folder
from fairlead.spark.data_source.task import micro_batch_token, this_attempt
from fairlead.spark.data_source.write_columns import check_written, to_messages
from fairlead.spark.options import SparkOptions

_ADVICE = 'No row of this write becomes a message; .option("rejects", "/shared/folder") keeps refused rows as files and writes the others'
#: An abort follows a failure, which is reported without waiting long for the broker.
_ABORT_TIMEOUT = "5s"


@dataclass(frozen=True)
class StagedAttempt(WriterCommitMessage):
    """The rows that one attempt of a task staged; `rejects` is the name of its file of refused rows, or ""."""

    token: str
    partition: int
    chunks: tuple[str, ...]
    rejects: str


class ProduceWriter(DataSourceArrowWriter):
    """`df.write`: made once by the driver, then pickled for tasks and for the commit."""

    def __init__(self, options: SparkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        _check(options, schema, overwrite, 'mode("append")')
        self._options = options
        self._schema = schema
        self._token = _own_token(options) if options.dedupe_token else str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
        return stage_rows(self._options, self._schema, self._token, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        publish(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        discard(self._options, self._token)


class ProduceStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: made for each micro-batch, and again for its commit."""

    def __init__(self, options: SparkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        _check(options, schema, overwrite, 'outputMode("append"), or a foreachBatch')
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
        return stage_rows(self._options, self._schema, micro_batch_token(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        publish(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # After a failed task Spark may pass no messages, so the token is unknown: publishing the next run of
        # this micro-batch drops the staged rows.
        for token in {message.token for message in messages if isinstance(message, StagedAttempt)}:
            discard(self._options, token)


def stage_rows(
    options: SparkOptions, schema: StructType, token: str, batches: Iterator[pa.RecordBatch]
) -> StagedAttempt:
    """Stage the rows of a task. Raises `RowsRefused` at the first bad row, unless the option `rejects` is
    set.
    """
    attempt = this_attempt()
    client = client_for(options)
    refused = RejectsFile(options.rejects, token, attempt.name, schema) if options.rejects else None
    names: list[str] = []
    numbers = count()

    def refuse(rows: pa.RecordBatch, errors: list[str]) -> None:
        if refused is None:
            raise RowsRefused(options.queue, len(errors), describe_rows(rows, errors), _ADVICE)
        refused.add(rows, errors)

    def stage(chunk: RowChunk) -> None:
        name = f"{attempt.name}-{next(numbers)}"
        result = client.staging.stage_batch(token, name, options.queue, chunk.wire, skip_invalid=True)
        if result.refused:
            refuse(
                chunk.given.take(pa.array([one.row for one in result.refused])),
                [one.error for one in result.refused],
            )
        if result.count:
            names.append(name)

    chunker = Chunker()
    for batch in batches:
        wire, errors = to_messages(batch)
        if errors:
            rows = sorted(errors)
            refuse(batch.take(pa.array(rows)), [errors[row] for row in rows])
            batch, wire = without_rows(batch, set(rows)), without_rows(wire, set(rows))
        for chunk in chunker.add(wire, batch):
            stage(chunk)
    for chunk in chunker.rest():
        stage(chunk)
    return StagedAttempt(
        token, attempt.partition, tuple(names), refused.close() if refused is not None else ""
    )


def publish(options: SparkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Publish, on the driver, the committed attempts: all or none, once per token, in the order of partitions
    and rows.
    """
    staged = [message for message in messages if isinstance(message, StagedAttempt)]
    if not staged:
        return
    staged.sort(key=lambda message: message.partition)
    token = staged[0].token
    chunks = [chunk for message in staged for chunk in message.chunks]
    rejects = [message.rejects for message in staged if message.rejects]
    if not rejects:
        client_for(options).staging.publish(token, options.queue, chunks)
        return
    folder = RejectsFolder(options.rejects, token)
    folder.check(rejects)
    client_for(options).staging.publish(token, options.queue, chunks)
    folder.keep(rejects)


def discard(options: SparkOptions, token: str) -> None:
    """Discard, on the driver, what a failed write staged. Rows that cannot be discarded now expire with their
    time to live.
    """
    if to_ms(options.timeout, "timeout") > to_ms(_ABORT_TIMEOUT, "timeout"):
        options = replace(options, timeout=_ABORT_TIMEOUT)
    with suppress(FairleadError):
        client_for(options).staging.discard(token, options.queue)
    if options.rejects:
        with suppress(FairleadError, OSError):
            RejectsFolder(options.rejects, token).drop()


def _own_token(options: SparkOptions) -> str:
    """The token with the queue's name: writes to two queues may share a folder of refused rows, whose files
    are named by token.
    """
    room = MAX_STAGING_NAME_BYTES - len(f"{options.queue}/".encode())
    size = len(options.dedupe_token.encode())
    if size > room:
        raise InvalidRequest("option dedupeToken", f"at most {room} bytes", f"{size} bytes")
    return f"{options.queue}/{options.dedupe_token}"


def _check(options: SparkOptions, schema: StructType, overwrite: bool, instead: str) -> None:
    if overwrite:
        raise InvalidRequest(
            "the mode of a write",
            f"{instead}: messages of a queue are work to be done and are not replaced; to empty the queue first, use `fairlead queue purge`",
            "overwrite",
        )
    check_written(schema)
    if options.rejects:
        check_folder(options.rejects)
