"""Rows as JSON text in the forms that Spark reads, so that `from_json` with the row's schema gives the same
row.

Binary is base64; a decimal is a number with all its digits; a time has microseconds and its offset; NaN and
Infinity are text. Names in a JSON object are text, so a map with other keys is a list of its entries. An
interval has all fields from days to seconds. `json_type` is the type to read with `from_json`, and `restored`
converts the result to the original type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from fairlead.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import Column

_encode = msgspec.json.Encoder(decimal_format="number").encode


def check_rows_fit_json(schema: StructType) -> None:
    """Raises `InvalidRequest` with the first column that JSON cannot represent exactly."""
    _check_names(schema, "the DataFrame's columns")
    for field in schema.fields:
        _check(field.dataType, f"column {field.name!r}")


def rows_to_json(rows: pa.RecordBatch, schema: StructType) -> list[bytes]:
    """One JSON text for each row. The columns of `rows` are those of `schema`, in order."""
    columns = [
        _values(column, field.dataType) for column, field in zip(rows.columns, schema.fields, strict=True)
    ]
    if not columns:
        return [b"{}"] * rows.num_rows
    return [_encode(dict(zip(schema.names, row, strict=True))) for row in zip(*columns, strict=True)]


def json_type(kind: DataType) -> DataType:
    """The type with which `from_json` reads a value of type `kind`."""
    match kind:
        case StructType():
            return StructType([StructField(field.name, json_type(field.dataType)) for field in kind.fields])
        case ArrayType():
            return ArrayType(json_type(kind.elementType))
        case MapType() if isinstance(kind.keyType, StringType):
            return MapType(kind.keyType, json_type(kind.valueType))
        case MapType():
            return ArrayType(
                StructType(
                    [
                        StructField("key", json_type(kind.keyType)),
                        StructField("value", json_type(kind.valueType)),
                    ]
                )
            )
        case DayTimeIntervalType():
            return DayTimeIntervalType()
        case _:
            return kind


def restored(column: Column, kind: DataType) -> Column:
    """Convert a column of type `json_type(kind)` to type `kind`."""
    from pyspark.sql import functions as f

    if not _has_other_json_type(kind):
        return column
    match kind:
        case DayTimeIntervalType():
            return column.cast(kind)
        case StructType():
            fields = [
                restored(column.getField(field.name), field.dataType).alias(field.name)
                for field in kind.fields
            ]
            return f.when(column.isNotNull(), f.struct(*fields))
        case ArrayType():
            element = kind.elementType
            return f.transform(column, lambda one: restored(one, element))
        case MapType() if isinstance(kind.keyType, StringType):
            value = kind.valueType
            return f.transform_values(column, lambda _key, one: restored(one, value))
        case _:
            assert isinstance(kind, MapType)
            pair = StructType([StructField("key", kind.keyType), StructField("value", kind.valueType)])
            return f.map_from_entries(f.transform(column, lambda one: restored(one, pair)))


def texts_in(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The texts of a column, with U+FFFD for bytes that are not UTF-8.

    Spark and Arrow keep any bytes in a string. An error here would fail the task in every retry.
    """
    try:
        texts: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        return [
            None if raw is None else raw.decode("utf-8", "replace")
            for raw in column.cast(pa.large_binary()).to_pylist()
        ]
    return texts


def _has_other_json_type(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_other_json_type(field.dataType) for field in kind.fields)
        case ArrayType():
            return _has_other_json_type(kind.elementType)
        case MapType():
            return not isinstance(kind.keyType, StringType) or _has_other_json_type(kind.valueType)
        case _:
            return isinstance(kind, DayTimeIntervalType) and kind != DayTimeIntervalType()


def _check(kind: DataType, where: str) -> None:
    match kind:
        case StructType():
            _check_names(kind, f"the fields of {where}")
            for field in kind.fields:
                _check(field.dataType, f"{where}.{field.name}")
        case ArrayType():
            _check(kind.elementType, where)
        case MapType():
            _check(kind.keyType, where)
            _check(kind.valueType, where)
        case _ if type(kind) not in _READ:
            raise InvalidRequest(
                where,
                "of a type that JSON can represent: cast it, leave it out, or give payload= the column that a dead letter carries",
                kind.simpleString(),
            )


def _check_names(kind: StructType, what: str) -> None:
    twice = next((name for name in kind.names if kind.names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(
            what, "unique, because a dead letter carries the row as JSON; rename one of them", twice
        )


def _values(column: pa.Array, kind: DataType) -> list[Any]:
    """The values of a column as the JSON encoder takes them."""
    match kind:
        case StructType():
            return _structs(column, kind)
        case ArrayType():
            return _lists(column, _values(_between(column, column.values), kind.elementType))
        case MapType():
            keys = _values(_between(column, column.keys), kind.keyType)
            values = _values(_between(column, column.items), kind.valueType)
            entries = list(zip(keys, values, strict=True))
            if isinstance(kind.keyType, StringType):
                return [None if one is None else dict(one) for one in _lists(column, entries)]
            return _lists(column, [{"key": key, "value": value} for key, value in entries])
        case _:
            return list(_READ[type(kind)](column))


def _structs(column: pa.Array, kind: StructType) -> list[Any]:
    valid = column.is_valid().to_pylist()
    fields = [
        _values(child, field.dataType) for child, field in zip(column.flatten(), kind.fields, strict=True)
    ]
    rows = zip(*fields, strict=True) if fields else ((),) * len(valid)
    return [
        dict(zip(kind.names, row, strict=True)) if there else None
        for there, row in zip(valid, rows, strict=True)
    ]


def _between(column: pa.Array, child: pa.Array) -> pa.Array:
    """The values inside the lists or maps of this column, which may be a slice of a longer one."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return child.slice(first, last - first)


def _lists(column: pa.Array, values: list[Any]) -> list[Any]:
    offsets = column.offsets.to_pylist()
    first = offsets[0]
    spans = zip(column.is_valid().to_pylist(), pairwise(offsets), strict=True)
    return [values[start - first : end - first] if there else None for there, (start, end) in spans]


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _floats(column: pa.Array) -> Iterator[Any]:
    for value in column.to_pylist():
        if value is None or math.isfinite(value):
            yield value
        else:
            yield _NOT_FINITE.get(value, "NaN")


def _dates(column: pa.Array) -> list[Any]:
    return _plain(column.cast(pa.utf8()))


def _times(column: pa.Array) -> list[Any]:
    """Converted by Arrow, because Python has no time after the year 9999."""
    zone = "UTC" if column.type.tz else None
    return [
        text and text.replace(" ", "T")
        for text in column.cast(pa.timestamp("us", zone)).cast(pa.utf8()).to_pylist()
    ]


def _intervals(column: pa.Array) -> Iterator[str | None]:
    for us in column.cast(pa.int64()).to_pylist():
        if us is None:
            yield None
            continue
        seconds, fraction = divmod(abs(us), 1_000_000)
        minutes, hours = seconds // 60 % 60, seconds // 3600 % 24
        yield f"INTERVAL '{'-' if us < 0 else ''}{seconds // 86400} {hours:02}:{minutes:02}:{seconds % 60:02}.{fraction:06}' DAY TO SECOND"


_READ: Final[dict[type[DataType], Callable[[pa.Array], Any]]] = {
    NullType: _plain,
    StringType: texts_in,
    BinaryType: _plain,
    BooleanType: _plain,
    ByteType: _plain,
    ShortType: _plain,
    IntegerType: _plain,
    LongType: _plain,
    DecimalType: _plain,
    FloatType: _floats,
    DoubleType: _floats,
    DateType: _dates,
    TimestampType: _times,
    TimestampNTZType: _times,
    DayTimeIntervalType: _intervals,
}
