from __future__ import annotations

import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from fairlead.errors import InvalidRequest
from fairlead.spark.data_source.schema import check_read_schema, read_schema
from fairlead.spark.data_source.source import FairleadDataSource


def refusal(schema: StructType, view: str = "messages") -> str:
    with pytest.raises(InvalidRequest) as refused:
        check_read_schema(schema, view)
    return str(refused.value)


def changed(column: str, **changes: object) -> StructType:
    fields = [
        {"name": f.name, "dataType": f.dataType} | (changes if f.name == column else {})
        for f in read_schema().fields
    ]
    return StructType([StructField(**field) for field in fields])


def test_a_schema_like_the_source_s_own_is_accepted():
    check_read_schema(read_schema())
    check_read_schema(read_schema("dead"), "dead")
    without_nulls = StructType(
        [StructField(f.name, f.dataType, nullable=False) for f in read_schema().fields]
    )
    check_read_schema(without_nulls)


def test_whether_a_list_may_have_nulls_inside_is_of_no_account():
    check_read_schema(changed("throttle_keys", dataType=ArrayType(StringType(), containsNull=False)))


def test_a_column_of_another_type_is_named_with_what_was_expected():
    said = refusal(changed("payload", dataType=StringType()))
    assert "'payload'" in said
    assert "binary" in said
    assert "got 'string'" in said


def test_a_type_inside_a_column_counts_as_well():
    assert "'throttle_keys'" in refusal(changed("throttle_keys", dataType=ArrayType(LongType())))


def test_a_column_that_does_not_exist_is_named():
    assert "got 'body'" in refusal(changed("payload", name="body"))


def test_a_missing_column_is_named():
    assert "'receipt'" in refusal(StructType(read_schema().fields[:-1]))


def test_columns_in_another_order_or_twice_are_refused():
    fields = read_schema().fields
    assert "'queue'" in refusal(StructType([fields[1], fields[0], *fields[2:]]))
    assert "'id'" in refusal(StructType([*fields, fields[0]]))


def test_columns_of_dead_letters_belong_to_their_view():
    assert "'dead_since'" in refusal(read_schema("dead"))
    assert "'dead_since'" in refusal(read_schema(), "dead")


def test_the_source_refuses_a_wrong_schema_before_anything_is_read():
    source = FairleadDataSource({"endpoint": "127.0.0.1:1", "queue": "orders"})
    with pytest.raises(InvalidRequest, match="'attempts'"):
        source.reader(changed("attempts", dataType=BinaryType()))
    streaming = FairleadDataSource({"endpoint": "127.0.0.1:1", "queue": "orders", "consumer": "etl"})
    refused = pickle.loads(pickle.dumps(streaming.streamReader(changed("attempts", dataType=BinaryType()))))
    for ask in (
        refused.initialOffset,
        lambda: refused.latestOffset({}, ReadAllAvailable()),
        lambda: refused.partitions({}, {}),
    ):
        with pytest.raises(InvalidRequest, match="'attempts'"):
            ask()


def test_the_source_has_the_columns_of_its_view():
    assert FairleadDataSource({"view": "dead"}).schema() == read_schema("dead")
    assert FairleadDataSource({}).schema()["weight"].dataType == IntegerType()
