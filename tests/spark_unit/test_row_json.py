"""Rows written as JSON. The tests in tests/spark show that Spark reads the same rows from it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.errors import InvalidRequest
from fairlead.spark.bad_rows.row_json import check_rows_fit_json, json_type, rows_to_json


def written(kind: t.DataType, *values: Any) -> list[Any]:
    """The values as a reader of JSON sees them, with numbers as text."""
    schema = t.StructType([t.StructField("v", kind)])
    rows = pa.RecordBatch.from_pylist(
        [{"v": value} for value in values], to_arrow_schema(schema, timezone="Europe/Paris")
    )
    texts = rows_to_json(rows, schema)
    # A slice is written with its own rows only.
    assert rows_to_json(rows.slice(1), schema) == texts[1:]
    return [json.loads(text, parse_float=str)["v"] for text in texts]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (t.StringType(), 'é"\\\0', 'é"\\\0'),
        (t.BinaryType(), b"\xff\0", "/wA="),
        (t.LongType(), -(1 << 63), -(1 << 63)),
        (
            t.DecimalType(38, 10),
            Decimal("12345678901234567890.0000000001"),
            "12345678901234567890.0000000001",
        ),
        (t.DoubleType(), 0.1, "0.1"),
        (t.DoubleType(), float("-inf"), "-Infinity"),
        (t.FloatType(), float("nan"), "NaN"),
        (t.DateType(), date(1, 2, 3), "0001-02-03"),
        (t.TimestampType(), datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC), "2024-02-29T12:00:00.000001Z"),
        (t.TimestampNTZType(), datetime(2024, 2, 29, 12), "2024-02-29T12:00:00.000000"),  # noqa: DTZ001 - has no zone
        (
            t.DayTimeIntervalType(),
            timedelta(days=-1, microseconds=-5),
            "INTERVAL '-1 00:00:00.000005' DAY TO SECOND",
        ),
        (t.ArrayType(t.IntegerType()), [1, None], [1, None]),
        (t.MapType(t.StringType(), t.IntegerType()), {"a": 1, "b": None}, {"a": 1, "b": None}),
        (
            t.MapType(t.DateType(), t.BinaryType()),
            {date(2024, 1, 1): b"a"},
            [{"key": "2024-01-01", "value": "YQ=="}],
        ),
        (t.StructType([t.StructField("a", t.ArrayType(t.BinaryType()))]), {"a": [b"a"]}, {"a": ["YQ=="]}),
        (t.StructType([]), {}, {}),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, t.DataType) else None,
)
def test_each_type_is_written_as_spark_reads_it(kind: t.DataType, value: Any, expected: Any) -> None:
    assert written(kind, None, value, None, value) == [None, expected, None, expected]


@pytest.mark.parametrize(
    ("raw", "kind"), [(pa.binary(), pa.utf8()), (pa.large_binary(), pa.large_utf8())], ids=["usual", "large"]
)
def test_text_that_is_not_utf_8_has_marks_for_what_cannot_be_read(
    raw: pa.DataType, kind: pa.DataType
) -> None:
    """Spark keeps any bytes in a string."""
    texts = pa.array([b"a\xff", None, b"", "é".encode()], raw).view(kind)
    keys = texts.take(pa.array([0, 2, 3, 3]))
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), keys, texts)
    schema = t.StructType(
        [t.StructField("v", t.StringType()), t.StructField("m", t.MapType(t.StringType(), t.StringType()))]
    )
    found = [
        json.loads(text)
        for text in rows_to_json(pa.RecordBatch.from_arrays([texts, maps], names=["v", "m"]), schema)
    ]
    assert [one["v"] for one in found] == ["a\ufffd", None, "", "é"]
    assert [one["m"] for one in found] == [{"a\ufffd": "a\ufffd"}, {"": None}, {"é": ""}, {"é": "é"}]


def test_what_stands_for_a_null_is_not_written() -> None:
    """Arrow may store values under a null."""
    lists = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array([1, 2, 3]), mask=pa.array([True, False])
    )
    schema = t.StructType([t.StructField("v", t.ArrayType(t.LongType()))])
    assert rows_to_json(pa.RecordBatch.from_arrays([lists], names=["v"]), schema) == [
        b'{"v":null}',
        b'{"v":[3]}',
    ]


def test_a_row_without_columns_is_an_object_without_names() -> None:
    assert rows_to_json(pa.RecordBatch.from_pydict({"a": [1, 2]}).select([]), t.StructType([])) == [
        b"{}",
        b"{}",
    ]


def test_what_json_cannot_carry_is_refused_with_the_place_it_is_at() -> None:
    inner = t.StructType([t.StructField("w", t.MapType(t.StringType(), t.YearMonthIntervalType()))])
    with pytest.raises(InvalidRequest, match=r"column 'v'\.w"):
        check_rows_fit_json(t.StructType([t.StructField("v", t.ArrayType(inner))]))
    twice = t.StructType([t.StructField("a", t.LongType()), t.StructField("a", t.LongType())])
    with pytest.raises(InvalidRequest, match="unique, because"):
        check_rows_fit_json(t.StructType([t.StructField("v", twice)]))


def test_only_what_json_has_no_form_for_is_told_to_spark_otherwise() -> None:
    plain = t.StructType([t.StructField("m", t.MapType(t.StringType(), t.ArrayType(t.DecimalType(9, 2))))])
    assert json_type(plain) == plain
    entries = json_type(t.MapType(t.LongType(), t.StringType()))
    assert entries.simpleString() == "array<struct<key:bigint,value:string>>"
    assert json_type(t.DayTimeIntervalType(0, 0)) == t.DayTimeIntervalType()
