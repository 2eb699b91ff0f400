"""Converts record batches of the wire to record batches of Spark's schema, a column at a time.

Python touches no payload byte, and most columns are passed on unchanged. Only headers, and the failures of
dead letters, are unpacked row by row, in rows that have some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from fairlead.errors import InvalidRequest
from fairlead.model.failure import FailureReason, FailureRecord
from fairlead.spark.data_source.schema import arrow_schema

_MS = pa.timestamp("ms", "UTC")

_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode
_decode_failures = msgspec.msgpack.Decoder(tuple[FailureRecord, ...]).decode


class BatchConverter:
    """`receipt` is the part of each row's receipt before the lease; without it, receipts are null."""

    def __init__(
        self, schema: StructType, queue: str, *, receipt: str | None = None, headers: bool = True
    ) -> None:
        self._schema = arrow_schema(schema)
        self._queue = queue
        self._receipt = receipt
        self._headers = headers

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` has every column of `wire.schemas.DELIVERIES` or `BROWSED`."""
        columns = [self._column(name, batch) for name in self._schema.names]
        fitted = [
            column if column.type == kind else column.cast(kind)
            for column, kind in zip(columns, self._schema.types, strict=True)
        ]
        if "hidden" in batch.schema.names and len(batch.column("hidden").flatten()):
            fitted = [
                _without(column, name, batch.column("hidden"))
                for column, name in zip(fitted, self._schema.names, strict=True)
            ]
        return pa.RecordBatch.from_arrays(fitted, schema=self._schema)

    def _column(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        if name == "queue":
            return pa.repeat(pa.scalar(self._queue), batch.num_rows)
        if name == "receipt":
            if self._receipt is None:
                return pa.nulls(batch.num_rows, pa.utf8())
            return pc.binary_join_element_wise(self._receipt, batch.column("lease").cast(pa.utf8()), "/")
        if name == "headers" and not self._headers:
            return pa.nulls(batch.num_rows, self._schema.field(name).type)
        if name in _MADE:
            return _MADE[name](batch, self._schema.field(name).type)
        return batch.column(name)


def shown_ids(ids: pa.FixedSizeBinaryArray) -> pa.StringArray:
    """Ids of 16 bytes as text of 36 characters."""
    count = len(ids)
    raw = np.frombuffer(ids.buffers()[1], np.uint8, count * 16, ids.offset * 16).reshape(count, 16)
    text = np.full((count, 36), ord("-"), np.uint8)
    text[:, _HIGH] = _DIGITS[raw >> 4]
    text[:, _LOW] = _DIGITS[raw & 15]
    offsets = np.arange(count + 1, dtype=np.int32) * 36
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
#: The positions of the two digits of each byte; dashes are skipped.
_HIGH = np.array([2 * at + (at >= 4) + (at >= 6) + (at >= 8) + (at >= 10) for at in range(16)])
_LOW = _HIGH + 1


def _without(column: pa.Array, name: str, hidden: pa.ListArray) -> pa.Array:
    """Replace values that the server left out, and marked as hidden, with null."""
    rows = pc.list_parent_indices(hidden).filter(pc.equal(hidden.flatten(), name))
    if not len(rows):
        return column
    mask = np.zeros(len(column), np.bool_)
    mask[rows.to_numpy()] = True
    return pc.if_else(pa.array(mask), pa.scalar(None, column.type), column)


def _ids(batch: pa.RecordBatch, _kind: pa.DataType) -> pa.Array:
    return shown_ids(batch.column("id"))


def _seq(batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
    return pc.if_else(
        batch.column("stream").is_valid(), pc.fill_null(batch.column("seq"), 0), pa.scalar(None, kind)
    )


def _headers(batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
    packed = batch.column("headers")
    if packed.null_count == len(packed):
        return pa.MapArray.from_arrays(
            pa.array(np.zeros(len(packed) + 1, np.int32)), pa.nulls(0, pa.utf8()), pa.nulls(0, pa.utf8())
        ).cast(kind)
    maps = [_decode_headers(one) if one else {} for one in packed.to_pylist()]
    offsets = np.zeros(len(maps) + 1, np.int32)
    np.cumsum([len(one) for one in maps], out=offsets[1:])
    names = pa.array([name for one in maps for name in one], pa.utf8())
    values = pa.array([value for one in maps for value in one.values()], pa.utf8())
    return pa.MapArray.from_arrays(pa.array(offsets), names, values).cast(kind)


def _time(name: str) -> Callable[[pa.RecordBatch, pa.DataType], pa.Array]:
    def read(batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
        return batch.column(name).cast(_MS).cast(kind)

    return read


def _reasons(batch: pa.RecordBatch, _kind: pa.DataType) -> pa.Array:
    return _WORDS.take(pc.index_in(batch.column("reason").cast(pa.int64()), _NUMBERS))


_NUMBERS = pa.array([int(reason) for reason in FailureReason], pa.int64())
_WORDS = pa.array([reason.word for reason in FailureReason], pa.utf8())


def _errors(batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
    return pa.array([failures[-1].error if failures else None for failures in _unpacked(batch)], kind)


def _failures(batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
    return pa.array([[_failure(one) for one in failures] for failures in _unpacked(batch)], kind)


def _unpacked(batch: pa.RecordBatch) -> list[tuple[FailureRecord, ...]]:
    try:
        return [_decode_failures(packed) if packed else () for packed in batch.column("failures").to_pylist()]
    except msgspec.MsgspecError as wrong:
        raise InvalidRequest("failures", "a MessagePack list of failure records", str(wrong)) from None


def _failure(record: FailureRecord) -> dict[str, Any]:
    known = record.reason in FailureReason._value2member_map_
    return {
        "at": record.at_ms * 1000,
        "attempt": record.attempt,
        "reason": FailureReason(record.reason).word if known else str(record.reason),
        "error": record.error,
        "consumer": record.consumer,
        "rule": record.rule,
        "due": record.due_ms * 1000 if record.due_ms else None,
    }


_MADE: Final[dict[str, Callable[[pa.RecordBatch, pa.DataType], pa.Array]]] = {
    "id": _ids,
    "seq": _seq,
    "headers": _headers,
    "enqueued_at": _time("enqueued_at"),
    "dead_since": _time("dead_since"),
    "reason": _reasons,
    "error": _errors,
    "failures": _failures,
}
