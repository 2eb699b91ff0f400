"""Columns of a DataFrame to write: names and types are checked before a task runs, values a column at a time."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, NullType, StructType

from fairlead.errors import InvalidRequest
from fairlead.model.durations import to_ms
from fairlead.model.limits import MAX_DURATION_MS

#: The first error of each bad row, by its index in the batch.
RowErrors = dict[int, str]


class Column(NamedTuple):
    """`expected` describes the types in errors. An optional column may also have the type void, with nulls
    only.
    """

    expected: str
    types: tuple[DataType, ...]
    needed: bool = False


def check_columns(schema: StructType, known: Mapping[str, Column], purpose: str) -> None:
    """Raises `InvalidRequest` for the first column that is unknown, duplicate, of another type, or missing."""
    missing = [name for name, column in known.items() if column.needed and name not in schema.names]
    seen: set[str] = set()
    for field in schema.fields:
        if field.name not in known:
            got = f"{field.name!r}{_advice_for_unknown(field.name, known, missing)}"
            raise InvalidRequest("columns", f"among {', '.join(known)} {purpose}", _Unquoted(got))
        if field.name in seen:
            raise InvalidRequest("columns", f"each there once {purpose}", field.name)
        seen.add(field.name)
        column = known[field.name]
        if not _accepts(column, field.dataType):
            got = field.dataType.simpleString()
            raise InvalidRequest(f"column {field.name!r}", f"{column.expected} {purpose}", _Unquoted(got))
    if missing:
        expected = f"there, as {known[missing[0]].expected}, {purpose}"
        got = f"only {', '.join(schema.names) or 'no column at all'}"
        raise InvalidRequest(f"column {missing[0]!r}", expected, _Unquoted(got))


def _accepts(column: Column, kind: DataType) -> bool:
    if isinstance(kind, NullType) and not column.needed:
        return True
    return any(_same(kind, accepted) for accepted in column.types)


def _advice_for_unknown(name: str, known: Mapping[str, Column], missing: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    if len(missing) == 1:
        return f"; {missing[0]!r} is missing: rename its column, such as .withColumnRenamed({name!r}, {missing[0]!r}), and drop the other columns"
    return f"; remove it with .drop({name!r})"


class _Unquoted:
    """Text that an error message shows without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _same(given: DataType, kind: DataType) -> bool:
    """Compare types, but not nullability, precision of intervals and collation."""
    if type(given) is not type(kind):
        return False
    return all(
        _same(getattr(given, inner), getattr(kind, inner))
        for inner in ("elementType", "keyType", "valueType")
        if hasattr(kind, inner)
    )


def filled_columns(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    """The columns with a value. Columns of nulls are left out, so that their defaults apply."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count < len(column):
            yield name, column


def as_text(column: pa.Array) -> pa.Array:
    return column if column.type == pa.utf8() else column.cast(pa.utf8())


def as_ms(column: pa.Array, name: str, errors: RowErrors) -> pa.Array:
    """Convert intervals, or texts such as "1h30m", to whole milliseconds; null for a wrong or too large
    value.
    """
    if pa.types.is_duration(column.type):
        return _interval_ms(column, name, errors)
    return read_words(as_text(column), lambda text: to_ms(text, name), pa.int64(), errors)


def read_words(
    column: pa.Array, read: Callable[[str], int], kind: pa.DataType, errors: RowErrors
) -> pa.Array:
    """Convert texts, each distinct text once; null where `read` raises `InvalidRequest`."""
    encoded = column.dictionary_encode()
    values: list[int | None] = []
    wrong: dict[int, str] = {}
    for at, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            values.append(read(text))
        except InvalidRequest as error:
            values.append(None)
            wrong[at] = str(error)
    add_row_errors(encoded.indices, wrong, errors)
    return pa.array(values, kind).take(encoded.indices)


def add_row_errors(indices: pa.Array, wrong: Mapping[int, str], errors: RowErrors) -> None:
    """Add the errors of wrong values to their rows. `wrong` has errors by index in the column's dictionary."""
    if wrong:
        for row, at in enumerate(indices.to_pylist()):
            if at in wrong:
                errors.setdefault(row, wrong[at])


def _interval_ms(column: pa.Array, name: str, errors: RowErrors) -> pa.Array:
    us = column.cast(pa.duration("us")).cast(pa.int64())
    good = pc.and_(pc.greater_equal(us, 0), pc.less_equal(us, MAX_DURATION_MS * 1000))
    for row in rows_where(pc.invert(good)):
        errors.setdefault(
            row,
            str(
                InvalidRequest(
                    name, "a duration between 0 and 10 years", _Unquoted(f"{us[row]} microseconds")
                )
            ),
        )
    return pc.if_else(good, pc.divide(pc.add(pc.if_else(good, us, None), 500), 1000), None)


def rows_where(mask: pa.Array) -> list[int]:
    """The indices of the true values. Null counts as false."""
    rows: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return rows


def without_rows(batch: pa.RecordBatch, rows: set[int]) -> pa.RecordBatch:
    return batch.filter(pa.array([row not in rows for row in range(batch.num_rows)]))


_SHOWN_ROWS = 3
_SHOWN_CHARACTERS = 60


def describe_rows(rows: pa.RecordBatch, errors: Sequence[str]) -> list[str]:
    """Describe the first rows, without payloads and values of headers."""
    return [
        f"{_describe_row(row)}: {error}"
        for row, error in zip(rows.slice(0, _SHOWN_ROWS).to_pylist(), errors, strict=False)
    ]


def _describe_row(row: Mapping[str, object]) -> str:
    parts = []
    for name, value in row.items():
        if name == "payload":
            parts.append(_describe_payload(value))
        elif name == "headers" and value:
            names = sorted(_cut(str(key)) for key, _ in value)  # type: ignore[attr-defined]
            parts.append(f"headers {', '.join(names)}")
        elif value not in (None, "", []):
            parts.append(f"{name}={_cut(repr(value))}")
    return ", ".join(parts)


def _describe_payload(value: object) -> str:
    if value is None:
        return "no payload"
    return f"payload of {len(value)} bytes" if isinstance(value, bytes) else "payload of text"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
