"""Conversion between columns of a record batch and Python lists, by the fastest way for each type.

A column that holds only defaults travels as nulls, and an array of nulls is made once per length. An
untrusted batch is validated in full before any column is read, so wrong offsets and bad UTF-8 raise
`InvalidRequest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from fairlead.errors import InvalidRequest
from fairlead.model.limits import MAX_BATCH_MESSAGES

_ID_BYTES = 16
#: The most rows that are read at all. More than any verb accepts, because the engine refuses too many rows
#: with its own error; this limit bounds the work of reading them.
_MAX_ROWS = 2 * MAX_BATCH_MESSAGES


def make_batch(schema: pa.Schema, length: int, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """A batch with all columns of the schema; columns not given are null."""
    layout = _layout_of(schema)
    arrays = layout.blank(length)
    for name, column in columns.items():
        arrays[layout.at[name]] = column
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=1024)
def nulls(length: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(length, kind)


def add_column(
    columns: dict[str, pa.Array],
    name: str,
    kind: pa.DataType,
    values: Sequence[object] | None,
    default: object,
) -> None:
    """Add the column unless it is None or holds only defaults. A column that is left out travels as nulls."""
    if values is not None and values.count(default) < len(values):
        columns[name] = pa.array([None if value == default else value for value in values], kind)


def ids_column(ids: Sequence[bytes]) -> pa.Array:
    """A column of 16-byte ids. An empty id, of an item that named no message, becomes null."""
    if all(ids):
        return packed_ids_column(b"".join(ids))
    return pa.array([raw_id or None for raw_id in ids], pa.binary(_ID_BYTES))


def packed_ids_column(ids: bytes) -> pa.Array:
    """A column of ids that are already concatenated."""
    count = len(ids) // _ID_BYTES
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(_ID_BYTES), count, [None, pa.py_buffer(ids)])


class BatchColumns:
    """Reads the columns of one batch by name, after the batch was validated."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self.length = batch.num_rows
        # Check the length first: columns that are left out take no bytes, so a batch of a few hundred bytes
        # could claim more rows than memory holds.
        if not 0 <= self.length <= _MAX_ROWS:
            raise InvalidRequest("batch", f"at most {_MAX_ROWS} rows", f"{self.length} rows")
        got = batch.schema
        # No cache of valid schemas: hashing a schema costs more than all the rest of a small batch.
        if got.equals(schema):
            self._at = _layout_of(schema).at
        else:
            try:
                _check_fields(got, schema)
                self._at = {name: at for at, name in enumerate(got.names)}
            except UnicodeDecodeError as wrong:
                raise InvalidRequest("columns", "names in UTF-8", str(wrong)) from None
        try:
            batch.validate(full=True)
        except (pa.ArrowInvalid, pa.ArrowIndexError) as wrong:
            raise InvalidRequest("batch", "a sound record batch", str(wrong)) from None
        self._batch = batch

    def _column(self, name: str) -> pa.Array | None:
        at = self._at.get(name)
        column = None if at is None else self._batch.column(at)
        return None if column is None or column.null_count == self.length else column

    def find(self, name: str) -> list[Any] | None:
        """The values; None when the column is missing or holds only nulls."""
        column = self._column(name)
        return None if column is None else column.to_pylist()

    def read(self, name: str, default: object = None) -> list[Any]:
        column = self._column(name)
        if column is None:
            return [default] * self.length
        values = column.to_pylist()
        return [default if value is None else value for value in values] if column.null_count else values

    def ids(self, name: str = "id") -> list[bytes]:
        """The raw ids; b"" for a null."""
        column = self._column(name)
        if column is None:
            return [b""] * self.length
        if column.null_count:
            return [value or b"" for value in column.to_pylist()]
        # Six times as fast as `to_pylist` for this type.
        start = column.offset * _ID_BYTES
        raw = column.buffers()[1][start : start + self.length * _ID_BYTES].to_pybytes()
        return [raw[at : at + _ID_BYTES] for at in range(0, len(raw), _ID_BYTES)]


class _Layout:
    """The properties of a schema that every batch needs and that pyarrow is slow to return."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.at = {name: at for at, name in enumerate(schema.names)}
        self._types = schema.types

    def blank(self, length: int) -> list[pa.Array]:
        return [nulls(length, kind) for kind in self._types]


_layouts: dict[int, _Layout] = {}


def _layout_of(schema: pa.Schema) -> _Layout:
    """The layout, found by the identity of the schema: only the protocol's schemas occur, and they live as
    long as the process.
    """
    layout = _layouts.get(id(schema))
    if layout is None:
        layout = _layouts[id(schema)] = _Layout(schema)
    return layout


def _check_fields(got: pa.Schema, known: pa.Schema) -> None:
    for field in got:
        if field.name not in known.names:
            raise InvalidRequest("columns", "among " + ", ".join(known.names), field.name)
        if field.type != known.field(field.name).type:
            raise InvalidRequest(f"column {field.name}", str(known.field(field.name).type), str(field.type))
    if len(set(got.names)) != len(got.names):
        raise InvalidRequest("columns", "each there once", got.names)
