"""The bad rows of one partition: kept until the partition ends, then staged and published as dead letters at
once.

The token of the write has the run, the partition and a digest of the rows. The same work done again has the
same token, and the broker does nothing: in a retried task, a speculative copy, a replayed micro-batch, or a
second action on the DataFrame. Work with another result has another token, and its bad rows become dead
letters too, because they are not among its good rows. So a row may become a dead letter twice, and is never
lost.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

import msgspec
import pyarrow as pa

from fairlead.errors import RowsRefused
from fairlead.model.limits import MAX_KEY_BYTES, MAX_PAYLOAD_BYTES
from fairlead.spark.bad_rows.checks import RowDefect
from fairlead.spark.connection import client_for
from fairlead.spark.data_source.chunks import Chunker
from fairlead.spark.data_source.task import this_attempt
from fairlead.spark.options import SparkOptions
from fairlead.wire.columns import make_batch
from fairlead.wire.schemas import MESSAGES

_ADVICE = (
    "Drop its largest column before the check, or give payload= the column that a dead letter carries. Until then the job fails, "
    "because a row that is neither good nor a dead letter would be lost"
)
_KEPT = pa.schema(
    [("payload", pa.binary()), ("fairness_key", pa.utf8()), ("reason", pa.utf8()), ("error", pa.utf8())]
)
#: More bytes of rows than this wait in a file.
_MAX_IN_MEMORY = 16 * 1024 * 1024
#: The wire carries up to 2,000 characters of each row's error beside the rows.
_CHUNK_ROWS = 5_000

_pack = msgspec.msgpack.Encoder().encode


class BadRows:
    """The bad rows of one attempt of a task. Nothing leaves the process before `publish`, so an attempt that
    ends early leaves nothing behind.
    """

    def __init__(self, options: SparkOptions, *, max_in_memory: int = _MAX_IN_MEMORY) -> None:
        self._options = options
        self._max_in_memory = max_in_memory
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._sink: pa.RecordBatchStreamWriter | None = None
        self._sum = 0
        self.count = 0

    def add(
        self, payloads: Sequence[bytes], keys: Sequence[str | None], defects: Sequence[RowDefect]
    ) -> None:
        """Raises `RowsRefused` for a row larger than a message may be."""
        for payload, defect in zip(payloads, defects, strict=True):
            if len(payload) > MAX_PAYLOAD_BYTES:
                shown = f"a bad row of {len(payload)} bytes as JSON; a payload has at most {MAX_PAYLOAD_BYTES} ({defect.error})"
                raise RowsRefused(self._options.queue, 1, [shown], _ADVICE)
            # A sum does not depend on the order of the rows, which may differ in the next run.
            self._sum += int.from_bytes(hashlib.sha256(payload).digest(), "big")
            self._bytes += len(payload) + len(defect.error)
        self.count += len(payloads)
        columns = [
            payloads,
            [_fit_key(key) for key in keys],
            [one.reason for one in defects],
            [one.error for one in defects],
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _KEPT, strict=True)]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=_KEPT))
        if self._bytes > self._max_in_memory:
            self._write_to_file()

    @property
    def content(self) -> str:
        """A digest of the rows that does not depend on their order."""
        return f"{self.count}-{self._sum % (1 << 128):032x}"

    def publish(self, run: str, headers: dict[str, str]) -> None:
        """Publish the rows under the token `run` and their digest. Returns when all rows are dead letters,
        from this call or an earlier one.
        """
        token = f"{run}/{self.content}"
        attempt, staging = this_attempt(), client_for(self._options).staging
        packed = pa.scalar(_pack(headers), pa.binary())
        chunker = Chunker(max_rows=_CHUNK_ROWS)
        names: list[str] = []

        def stage(kept: pa.RecordBatch) -> None:
            names.append(f"{attempt.name}-{len(names)}")
            staging.stage_batch(
                token, names[-1], self._options.queue, _to_wire(kept, packed), dead=_deaths(kept)
            )

        for batch in self._kept():
            for chunk in chunker.add(batch, batch):
                stage(chunk.wire)
        for chunk in chunker.rest():
            stage(chunk.wire)
        staging.publish(token, self._options.queue, names)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write_to_file(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="fairlead-bad-rows-")  # noqa: SIM115 - `close` closes it
            self._sink = pa.ipc.new_stream(self._file, _KEPT)
        assert self._sink is not None
        for batch in self._batches:
            self._sink.write_batch(batch)
        self._batches, self._bytes = [], 0

    def _kept(self) -> Iterator[pa.RecordBatch]:
        if self._file is not None:
            assert self._sink is not None
            self._sink.close()
            self._file.seek(0)
            yield from pa.ipc.open_stream(self._file)
        yield from self._batches


def _to_wire(kept: pa.RecordBatch, headers: pa.Scalar) -> pa.RecordBatch:
    columns = {"payload": kept.column("payload"), "headers": pa.repeat(headers, kept.num_rows)}
    keys = kept.column("fairness_key")
    if keys.null_count < len(keys):
        columns["fairness_key"] = keys
    return make_batch(MESSAGES, kept.num_rows, columns)


def _deaths(kept: pa.RecordBatch) -> RowDefect | list[RowDefect]:
    deaths = [
        RowDefect(*pair)
        for pair in zip(kept.column("reason").to_pylist(), kept.column("error").to_pylist(), strict=True)
    ]
    return deaths[0] if len(set(deaths)) == 1 else deaths


def _fit_key(key: str | None) -> str | None:
    """Cut a key that is too long: a bad row with a wrong fairness key must become a dead letter, too."""
    if not key:
        return None
    return (
        key
        if len(key) * 4 <= MAX_KEY_BYTES
        else key.encode("utf-8", "replace")[:MAX_KEY_BYTES].decode("utf-8", "ignore")
    )
