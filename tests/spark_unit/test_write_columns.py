"""The conversion of rows to write, without a JVM."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from fairlead.errors import InvalidRequest
from fairlead.model.checks import CheckedMessage, check_messages
from fairlead.model.limits import MAX_PAYLOAD_BYTES
from fairlead.model.message import NewMessage
from fairlead.spark.data_source.write_columns import WRITTEN, check_written, to_messages
from fairlead.wire.messages import decode_messages
from fairlead.wire.schemas import MESSAGES


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


HEADERS = pa.map_(pa.string(), pa.string())


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


ALL = batch(
    payload=pa.array([b"a", b"b", b"c"]),
    headers=pa.array([[("kind", "x"), ("who", "é")], None, []], HEADERS),
    fairness_key=pa.array(["k", None, "l"]),
    weight=pa.array([3, None, 7], pa.int64()),
    throttle_keys=pa.array([["t", "u"], None, []], pa.list_(pa.string())),
    stream=pa.array([None, "s", None]),
    delay=pa.array([timedelta(seconds=5), None, timedelta(0)], pa.duration("us")),
    dedup_key=pa.array([None, None, "d"]),
    ttl=pa.array(["1h30m", None, "2d"]),
)


def checked(wire: pa.RecordBatch) -> list[CheckedMessage]:
    """The rows after the broker's check."""
    return check_messages(decode_messages(wire))


def test_every_column_arrives_and_null_is_the_default() -> None:
    wire, faults = to_messages(ALL)
    assert faults == {}
    assert wire.schema.equals(MESSAGES)
    assert checked(wire) == check_messages(
        [
            NewMessage(
                b"a",
                {"kind": "x", "who": "é"},
                "k",
                3,
                ["t", "u"],
                None,
                timedelta(seconds=5),
                None,
                timedelta(minutes=90),
            ),
            NewMessage(b"b", None, "default", 1, (), "s", None, None, None),
            NewMessage(b"c", None, "l", 7, (), None, timedelta(0), "d", timedelta(days=2)),
        ]
    )


def test_every_column_that_may_be_written_is_read() -> None:
    assert set(ALL.schema.names) == set(WRITTEN)


def test_a_slice_of_a_batch_is_read_from_its_own_rows() -> None:
    wire, faults = to_messages(ALL.slice(1, 2))
    assert (checked(wire), faults) == (checked(to_messages(ALL)[0])[1:], {})
    headed = batch(
        payload=pa.array([b"a"] * 3),
        headers=pa.array([[("a", "1")], [("b", "2"), ("c", "3")], [("d", "4")]], HEADERS),
    ).slice(1)
    assert [message.headers for message in decode_messages(to_messages(headed)[0])] == [
        {"b": "2", "c": "3"},
        {"d": "4"},
    ]
    first = to_messages(ALL.slice(0, 1))[0]
    assert checked(first) == checked(to_messages(ALL)[0])[:1]


def test_payload_bytes_are_handed_on_and_not_copied() -> None:
    for payload in (pa.array([b"x" * 1000, b"y"]), pa.array(["x" * 1000, "y"])):
        wire, _ = to_messages(batch(payload=payload))
        assert wire.column("payload").type == pa.binary()
        assert wire.column("payload").buffers()[2].address == payload.buffers()[2].address


def test_columns_of_the_wide_arrow_types_are_narrowed() -> None:
    wide = batch(
        payload=pa.array([b"a"], pa.large_binary()),
        stream=pa.array(["s"], pa.large_string()),
        throttle_keys=pa.array([["t"]], pa.list_(pa.large_string())),
        headers=pa.array([[("a", "b")]], pa.map_(pa.large_string(), pa.large_string())),
    )
    assert checked(to_messages(wide)[0]) == check_messages(
        [NewMessage(b"a", {"a": "b"}, throttle_keys=["t"], stream="s")]
    )


def test_a_null_payload_is_a_fault_of_its_row_and_not_an_empty_payload() -> None:
    wire, faults = to_messages(batch(payload=pa.array([b"", None])))
    assert faults == {1: "expected payload to be binary or string, got null"}
    assert wire.num_rows == 2
    assert to_messages(batch(payload=pa.array([None], pa.binary())))[1].keys() == {0}


def test_a_payload_too_large_for_a_message_is_named_by_its_size() -> None:
    _, faults = to_messages(
        batch(payload=pa.array([b"x" * MAX_PAYLOAD_BYTES, b"x" * (MAX_PAYLOAD_BYTES + 1)]))
    )
    assert faults == {
        1: f"expected payload to be at most {MAX_PAYLOAD_BYTES} bytes, got {MAX_PAYLOAD_BYTES + 1} bytes"
    }


def test_a_header_without_a_value_is_a_fault_that_names_the_header() -> None:
    _, faults = to_messages(
        batch(
            payload=pa.array([b"a", b"b"]),
            headers=pa.array([[("a", "b")], [("c", "d"), ("e", None)]], HEADERS),
        )
    )
    assert faults == {1: "expected headers['e'] to be text, got None"}


@pytest.mark.parametrize("column", ["delay", "ttl"])
def test_a_duration_that_is_none_is_a_fault_of_its_row(column: str) -> None:
    payload = pa.array([b"a", b"b", b"c"])
    wire, faults = to_messages(batch(payload=payload, **{column: pa.array(["30s", "soon", None])}))
    assert faults == {1: f"""expected {column} to be a duration such as "30s" or "1h30m", got 'soon'"""}
    assert wire.column(f"{column}_ms").to_pylist() == [30_000, None, None]
    wire, faults = to_messages(
        batch(payload=payload, **{column: pa.array([-1, 1_499, 400_000_000_000_000], pa.duration("us"))})
    )
    assert faults == {
        0: f"expected {column} to be a duration between 0 and 10 years, got -1 microseconds",
        2: f"expected {column} to be a duration between 0 and 10 years, got 400000000000000 microseconds",
    }
    assert wire.column(f"{column}_ms").to_pylist() == [None, 1, None]


def test_a_weight_wider_than_its_column_goes_to_the_bound_and_stays_null_where_it_is_null() -> None:
    wire, faults = to_messages(
        batch(payload=pa.array([b"a"] * 4), weight=pa.array([1 << 40, -(1 << 40), None, 5], pa.int64()))
    )
    assert faults == {}
    assert wire.column("weight").to_pylist() == [(1 << 31) - 1, -(1 << 31), None, 5]


def test_columns_without_a_type_count_as_left_out() -> None:
    check_written(schema(payload=StringType(), stream=NullType(), delay=NullType(), headers=NullType()))
    wire, _ = to_messages(
        batch(payload=pa.array(["a"]), stream=pa.nulls(1), delay=pa.nulls(1), headers=pa.nulls(1))
    )
    assert [*decode_messages(wire)] == [NewMessage(b"a")]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"payload": IntegerType()},
            "expected column 'payload' to be binary or string in rows to write, got int",
        ),
        (
            {"payload": NullType()},
            "expected column 'payload' to be binary or string in rows to write, got void",
        ),
        (
            {"fairness_key": StringType()},
            "expected column 'payload' to be there, as binary or string, in rows to write, got only fairness_key",
        ),
        (
            {"payload": StringType(), "weight": StringType()},
            "expected column 'weight' to be int in rows to write, got string",
        ),
        (
            {"payload": StringType(), "headers": MapType(StringType(), IntegerType())},
            "expected column 'headers' to be map<string,string> in rows to write, got map<string,int>",
        ),
        (
            {"payload": StringType(), "throttle_keys": StringType()},
            "expected column 'throttle_keys' to be array<string> in rows to write, got string",
        ),
        (
            {"payload": StringType(), "delay": LongType()},
            """expected column 'delay' to be an interval day to second, or text such as "30s" in rows to write, got bigint""",
        ),
        (
            {"payload": StringType(), "Fairness_Key": StringType()},
            "got 'Fairness_Key'; did you mean 'fairness_key'?",
        ),
        ({"payload": StringType(), "seq": LongType()}, "got 'seq'; remove it with .drop('seq')"),
        (
            {"value": StringType()},
            "got 'value'; 'payload' is missing: rename its column, such as .withColumnRenamed('value', 'payload')",
        ),
        ({}, "got only no column at all"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_with_the_column_and_what_was_expected(
    columns: dict[str, DataType], said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_written(schema(**columns))
    assert said in str(refused.value)


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="each there once in rows to write, got 'payload'"):
        check_written(
            StructType([StructField("payload", BinaryType()), StructField("payload", StringType())])
        )


def test_every_type_a_column_may_have_is_taken() -> None:
    for payload in (BinaryType(), StringType()):
        check_written(
            schema(
                payload=payload,
                headers=MapType(StringType(), StringType(), False),
                fairness_key=StringType(),
                weight=LongType(),
                throttle_keys=ArrayType(StringType(), False),
                stream=StringType(),
                delay=DayTimeIntervalType(3, 3),
                dedup_key=StringType(),
                ttl=StringType(),
            )
        )
