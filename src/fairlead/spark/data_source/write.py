"""Rows become messages: tasks stage them where nobody sees them, the driver publishes all of them at once.

A write has a token: of query and micro-batch for a stream, the option `dedupeToken` or one made up for a
batch. The broker publishes a token once, so a commit that is repeated after a crash changes nothing. What a
write that failed has staged is discarded by `abort` where its token is known, dropped when the token is
published after all, or goes with its time to live.
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
from fairlead.spark.data_source.attempt import this_attempt, token_of_micro_batch
from fairlead.spark.data_source.chunks import Chunk, Chunker
from fairlead.spark.data_source.columns import show_rows, without_rows
from fairlead.spark.data_source.rejects import RejectsFile, RejectsFolder, check_folder
from fairlead.spark.data_source.write_columns import check_written, to_messages
from fairlead.spark.options import SparkOptions

_ADVICE = 'Nothing of this write becomes visible; .option("rejects", "/shared/folder") sets such rows aside and writes the others'
#: Nobody waits for what an abort has to say.
_ABORT_TIMEOUT = "5s"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one attempt of a task has staged; `rejects` is the name of its file of refused rows."""

    token: str
    partition: int
    chunks: tuple[str, ...]
    rejects: str


class ProduceWriter(DataSourceArrowWriter):
    """`df.write`: made once by the driver, and pickled to tasks and to the commit."""

    def __init__(self, options: SparkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        _check(options, schema, overwrite, 'mode("append")')
        self._options = options
        self._schema = schema
        self._token = _own_token(options) if options.dedupe_token else str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage_rows(self._options, self._schema, self._token, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        publish(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        discard(self._options, self._token)


class ProduceStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: made anew for each micro-batch, and again for its commit."""

    def __init__(self, options: SparkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        _check(options, schema, overwrite, 'outputMode("append"), or a foreachBatch')
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage_rows(self._options, self._schema, token_of_micro_batch(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        publish(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # Spark may have lost all messages, and with them the token: then the next run of this micro-batch
        # drops what is staged.
        for token in {message.token for message in messages if isinstance(message, Staged)}:
            discard(self._options, token)


def stage_rows(
    options: SparkOptions, schema: StructType, token: str, batches: Iterator[pa.RecordBatch]
) -> Staged:
    """In a task. Raises `RowsRefused` at the first row that is none, unless there is a place for such rows."""
    attempt = this_attempt()
    client = client_for(options)
    refused = RejectsFile(options.rejects, token, attempt.name, schema) if options.rejects else None
    names: list[str] = []
    numbers = count()

    def refuse(rows: pa.RecordBatch, errors: list[str]) -> None:
        if refused is None:
            raise RowsRefused(options.queue, len(errors), show_rows(rows, errors), _ADVICE)
        refused.add(rows, errors)

    def stage(chunk: Chunk) -> None:
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
        wire, faults = to_messages(batch)
        if faults:
            rows = sorted(faults)
            refuse(batch.take(pa.array(rows)), [faults[row] for row in rows])
            batch, wire = without_rows(batch, set(rows)), without_rows(wire, set(rows))
        for chunk in chunker.add(wire, batch):
            stage(chunk)
    for chunk in chunker.rest():
        stage(chunk)
    return Staged(token, attempt.partition, tuple(names), refused.close() if refused is not None else "")


def publish(options: SparkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """On the driver. All or nothing, and once per token: in the order of the partitions, and of the rows in
    them.
    """
    staged = sorted(
        (message for message in messages if isinstance(message, Staged)),
        key=lambda message: message.partition,
    )
    if not staged:
        return
    token = staged[0].token
    rejects = [message.rejects for message in staged if message.rejects]
    folder = RejectsFolder(options.rejects, token) if rejects else None
    if folder is not None:
        folder.check(rejects)
    client_for(options).staging.publish(
        token, options.queue, [chunk for message in staged for chunk in message.chunks]
    )
    if folder is not None:
        folder.keep(rejects)


def discard(options: SparkOptions, token: str) -> None:
    """On the driver, after a failure that is told already: what cannot be discarded now goes with its time to
    live.
    """
    hasty = (
        replace(options, timeout=_ABORT_TIMEOUT)
        if to_ms(options.timeout, "timeout") > to_ms(_ABORT_TIMEOUT, "timeout")
        else options
    )
    with suppress(FairleadError):
        client_for(hasty).staging.discard(token, options.queue)
    if options.rejects:
        with suppress(FairleadError, OSError):
            RejectsFolder(options.rejects, token).drop()


def _own_token(options: SparkOptions) -> str:
    """With the queue in it: files of refused rows are kept by token, and writes to two queues may share a
    folder for them.
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
            f"{instead}: what is in a queue is work to be done and is not replaced; to empty it first, use `fairlead queue purge`",
            "overwrite",
        )
    check_written(schema)
    if options.rejects:
        check_folder(options.rejects)
