"""The columns a DataFrame may bring: told apart by name, checked by type before any task runs, and read a
column at a time.
"""

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

#: What is wrong with single rows, by their place in the batch: the first thing that was found.
Faults = dict[int, str]


class Column(NamedTuple):
    """`expected` is said to whoever brings another type; a column that is not `needed` may also be there
    without any type or value.
    """

    expected: str
    types: tuple[DataType, ...]
    needed: bool = False


def check_columns(schema: StructType, known: Mapping[str, Column], purpose: str) -> None:
    """Raises `InvalidRequest` with the column's name: the first that is unknown, there twice, missing, or of
    another type.
    """
    seen = set()
    for field in schema.fields:
        if field.name not in known:
            hint = _say_unknown(
                field.name,
                known,
                missing=[
                    name for name, column in known.items() if column.needed and name not in schema.names
                ],
            )
            raise InvalidRequest(
                "columns", f"among {', '.join(known)} {purpose}", _Bare(f"{field.name!r}{hint}")
            )
        if field.name in seen:
            raise InvalidRequest("columns", f"each there once {purpose}", field.name)
        seen.add(field.name)
        column = known[field.name]
        if not any(_same(field.dataType, kind) for kind in column.types) and (
            column.needed or not isinstance(field.dataType, NullType)
        ):
            raise InvalidRequest(
                f"column {field.name!r}", f"{column.expected} {purpose}", _Bare(field.dataType.simpleString())
            )
    for name, column in known.items():
        if column.needed and name not in seen:
            there = ", ".join(seen) or "no column at all"
            raise InvalidRequest(
                f"column {name!r}", f"there, as {column.expected}, {purpose}", _Bare(f"only {there}")
            )


def _say_unknown(name: str, known: Mapping[str, Column], missing: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    if len(missing) == 1:
        return f"; {missing[0]!r} is missing: rename what it should be, such as .withColumnRenamed({name!r}, {missing[0]!r}), and leave out the rest"
    return f"; leave it out with .drop({name!r})"


class _Bare:
    """Shown in a message as it is, without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _same(given: DataType, kind: DataType) -> bool:
    """Whether nulls may be inside, how long an interval is and how a text is collated are of no account."""
    if type(given) is not type(kind):
        return False
    return all(
        _same(getattr(given, inner), getattr(kind, inner))
        for inner in ("elementType", "keyType", "valueType")
        if hasattr(kind, inner)
    )


def filled_columns(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    """Those that hold anything: what holds nothing is left out, and its default counts."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count < len(column):
            yield name, column


def as_text(column: pa.Array) -> pa.Array:
    return column if column.type == pa.utf8() else column.cast(pa.utf8())


def as_ms(column: pa.Array, name: str, faults: Faults) -> pa.Array:
    """An interval, or text such as "1h30m", as whole milliseconds; null where it is neither or out of bounds."""
    if pa.types.is_duration(column.type):
        return _interval_ms(column, name, faults)
    return read_words(as_text(column), lambda text: to_ms(text, name), pa.int64(), faults)


def read_words(column: pa.Array, read: Callable[[str], int], kind: pa.DataType, faults: Faults) -> pa.Array:
    """Texts that repeat themselves, each different one read once; null where `read` raises `InvalidRequest`."""
    encoded = column.dictionary_encode()
    values: list[int | None] = []
    wrong: dict[int, str] = {}
    for at, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            values.append(read(text))
        except InvalidRequest as error:
            values.append(None)
            wrong[at] = str(error)
    blame_rows(encoded.indices, wrong, faults)
    return pa.array(values, kind).take(encoded.indices)


def blame_rows(indices: pa.Array, wrong: Mapping[int, str], faults: Faults) -> None:
    """For the rows of a column that have one of the wrong values, which are known by their places in its
    dictionary.
    """
    if wrong:
        for row, at in enumerate(indices.to_pylist()):
            if at in wrong:
                faults.setdefault(row, wrong[at])


def _interval_ms(column: pa.Array, name: str, faults: Faults) -> pa.Array:
    us = column.cast(pa.duration("us")).cast(pa.int64())
    good = pc.and_(pc.greater_equal(us, 0), pc.less_equal(us, MAX_DURATION_MS * 1000))
    for row in rows_where(pc.invert(good)):
        faults.setdefault(
            row,
            str(InvalidRequest(name, "a duration between 0 and 10 years", _Bare(f"{us[row]} microseconds"))),
        )
    return pc.if_else(good, pc.divide(pc.add(pc.if_else(good, us, None), 500), 1000), None)


def rows_where(mask: pa.Array) -> list[int]:
    """The places of the true values; null is not true."""
    rows: list[int] = pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()
    return rows


def without_rows(batch: pa.RecordBatch, rows: set[int]) -> pa.RecordBatch:
    return batch.filter(pa.array([row not in rows for row in range(batch.num_rows)]))


_SHOWN_ROWS = 3
_SHOWN_CHARACTERS = 60


def show_rows(rows: pa.RecordBatch, errors: Sequence[str]) -> list[str]:
    """The first of them, so that somebody finds them again: never a payload, nor the value of a header."""
    return [
        f"{_show_row(row)}: {error}"
        for row, error in zip(rows.slice(0, _SHOWN_ROWS).to_pylist(), errors, strict=False)
    ]


def _show_row(row: Mapping[str, object]) -> str:
    said = []
    for name, value in row.items():
        if name == "payload":
            said.append(
                f"payload of {len(value)} bytes"
                if isinstance(value, bytes)
                else "payload of text"
                if value is not None
                else "no payload"
            )
        elif name == "headers" and value:
            said.append("headers " + ", ".join(sorted(_cut(str(key)) for key, _ in value)))  # type: ignore[attr-defined]
        elif value not in (None, "", []):
            said.append(f"{name}={_cut(repr(value))}")
    return ", ".join(said)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
