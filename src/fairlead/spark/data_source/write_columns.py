"""Rows to write: the columns a DataFrame may have, and their conversion to the columns of the wire.

Python touches no payload byte: a column of payloads is passed on unchanged. Only headers are packed row by
row, if there are any.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from fairlead.errors import InvalidRequest
from fairlead.model.limits import MAX_PAYLOAD_BYTES
from fairlead.spark.data_source.columns import (
    Column,
    RowErrors,
    as_ms,
    as_text,
    check_columns,
    filled_columns,
    rows_where,
)
from fairlead.wire.columns import make_batch
from fairlead.wire.schemas import MESSAGES

_TEXT = Column("string", (StringType(),))
_DURATION = Column('an interval day to second, or text such as "30s"', (DayTimeIntervalType(), StringType()))

#: Columns other than the payload may be missing or null; then the default of `NewMessage` applies.
WRITTEN: Final[dict[str, Column]] = {
    "payload": Column("binary or string", (BinaryType(), StringType()), needed=True),
    "headers": Column("map<string,string>", (MapType(StringType(), StringType()),)),
    "fairness_key": _TEXT,
    "weight": Column("int", (ByteType(), ShortType(), IntegerType(), LongType())),
    "throttle_keys": Column("array<string>", (ArrayType(StringType()),)),
    "stream": _TEXT,
    "delay": _DURATION,
    "dedup_key": _TEXT,
    "ttl": _DURATION,
}


def check_written(schema: StructType) -> None:
    check_columns(schema, WRITTEN, "in rows to write")


def to_messages(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, RowErrors]:
    """Convert rows to messages on the wire, and find the rows that the wire cannot carry.

    The broker checks all other rules when a row is staged.
    """
    errors: RowErrors = {}
    columns = {}
    for name, column in filled_columns(batch):
        wire_name, read = _READ[name]
        columns[wire_name] = read(column, name, errors)
    payload = batch.column("payload")
    if payload.null_count:
        for row in rows_where(payload.is_null()):
            errors[row] = "expected payload to be binary or string, got null"
    return make_batch(MESSAGES, batch.num_rows, columns), errors


def _read_payload(column: pa.Array, name: str, errors: RowErrors) -> pa.Array:
    longest = pc.max(pc.binary_length(column)).as_py()
    if longest > MAX_PAYLOAD_BYTES:
        lengths = pc.binary_length(column)
        for row in rows_where(pc.greater(lengths, MAX_PAYLOAD_BYTES)):
            errors[row] = f"expected {name} to be at most {MAX_PAYLOAD_BYTES} bytes, got {lengths[row]} bytes"
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _read_text(column: pa.Array, _name: str, _faults: RowErrors) -> pa.Array:
    return as_text(column)


def _read_weight(column: pa.Array, _name: str, _faults: RowErrors) -> pa.Array:
    # The broker corrects a weight to its bounds. A weight too large for the column is cut to the column's
    # bounds.
    least, most = -(1 << 31), (1 << 31) - 1
    return pc.max_element_wise(
        pc.min_element_wise(column, most, skip_nulls=False), least, skip_nulls=False
    ).cast(pa.int32())


def _read_keys(column: pa.Array, _name: str, _faults: RowErrors) -> pa.Array:
    return column if column.type == pa.list_(pa.utf8()) else column.cast(pa.list_(pa.utf8()))


_pack = msgspec.msgpack.Encoder().encode


def _read_headers(column: pa.Array, name: str, errors: RowErrors) -> pa.Array:
    offsets = column.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    names = column.keys.slice(first, last - first).to_pylist()
    values = column.items.slice(first, last - first)
    texts = values.to_pylist()
    packed = [
        _pack(dict(zip(names[start - first : end - first], texts[start - first : end - first], strict=True)))
        if end > start
        else None
        for start, end in pairwise(offsets)
    ]
    if values.null_count:
        for row, (start, end) in enumerate(pairwise(offsets)):
            for at in range(start - first, end - first):
                if texts[at] is None:
                    errors.setdefault(row, str(InvalidRequest(f"{name}[{names[at]!r}]", "text", None)))
    return pa.array(packed, pa.binary())


_READ: Final[dict[str, tuple[str, Callable[[pa.Array, str, RowErrors], pa.Array]]]] = {
    "payload": ("payload", _read_payload),
    "headers": ("headers", _read_headers),
    "fairness_key": ("fairness_key", _read_text),
    "weight": ("weight", _read_weight),
    "throttle_keys": ("throttle_keys", _read_keys),
    "stream": ("stream", _read_text),
    "delay": ("delay_ms", as_ms),
    "dedup_key": ("dedup_key", _read_text),
    "ttl": ("ttl_ms", as_ms),
}
