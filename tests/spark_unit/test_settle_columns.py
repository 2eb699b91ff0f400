from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from pyspark.sql.types import BooleanType, DataType, LongType, StringType, StructField, StructType

from fairlead.errors import InvalidRequest
from fairlead.model.failure import FailureReason
from fairlead.model.ids import find_id
from fairlead.model.settle import Complete, Fail, LeaseRef, Release
from fairlead.spark.data_source.settle_columns import SETTLED, Receipt, check_settled, to_settlements
from fairlead.wire.schemas import SETTLEMENTS
from fairlead.wire.settlements import decode_settlements

IDS = [f"0190a1b2-0000-7000-8000-0123456789a{digit}" for digit in "abc"]
RAW = [find_id(text) or b"" for text in IDS]


def batch(**columns: object) -> pa.RecordBatch:
    given = {
        "id": IDS,
        "receipt": ["q:etl/2/7/31"] * 3,
        "outcome": ["complete", "fail", "release"],
        **columns,
    }
    arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in given.values()]
    return pa.RecordBatch.from_arrays(arrays, names=[*given])


def faults_of(**columns: object) -> dict[int, str]:
    sent, faults = to_settlements(batch(**columns))
    assert sent == []
    return faults


def test_every_column_becomes_the_settlement_it_speaks_of() -> None:
    rows = batch(
        reason=[None, "poison_message", None],
        error=["", "broken", None],
        retry_in=pa.array([None, timedelta(seconds=3), None], pa.duration("us")),
        dead=[False, False, None],
        progress=pa.array([4, 1, 0], pa.int32()),
        keep_order=[None, False, True],
    )
    assert set(rows.schema.names) == set(SETTLED)
    ((receipt, sent),), faults = to_settlements(rows)
    assert (receipt, faults) == (Receipt("etl", "q", 2, 7), {})
    assert sent.schema.equals(SETTLEMENTS)
    complete, fail, release = (LeaseRef(raw, 0x1F) for raw in RAW)
    assert decode_settlements(sent) == [
        Complete(complete, 4),
        Fail(fail, "broken", FailureReason.POISON_MESSAGE, 1, timedelta(seconds=3), False),
        Release(release, True),
    ]


def test_the_three_needed_columns_are_enough() -> None:
    ((_, sent),), _ = to_settlements(batch().slice(1))
    assert decode_settlements(sent) == [Fail(LeaseRef(RAW[1], 0x1F)), Release(LeaseRef(RAW[2], 0x1F))]


def test_rows_of_several_claims_are_sent_apart_each_with_its_own_lease() -> None:
    sent, _ = to_settlements(
        batch(receipt=["q:etl/2/7/31", "p/q:a/b:c/3/1/2", "q:etl/2/7/32"], outcome=["complete"] * 3)
    )
    assert [(receipt, decode_settlements(rows)) for receipt, rows in sent] == [
        (Receipt("etl", "q", 2, 7), [Complete(LeaseRef(RAW[0], 0x1F)), Complete(LeaseRef(RAW[2], 0x20))]),
        (Receipt("a/b:c", "p/q", 3, 1), [Complete(LeaseRef(RAW[1], 2))]),
    ]


def test_rows_that_cannot_be_settled_are_named_by_what_is_wrong() -> None:
    assert faults_of(outcome=["complete", "failed", None]) == {
        1: "expected outcome to be complete, fail or release, got 'failed'",
        2: "expected outcome to be complete, fail or release, got None",
    }
    assert faults_of(id=[IDS[0], "7", None]) == {
        1: "expected id to be the id of a message, as it was read, got '7'",
        2: "expected id to be the id of a message, as it was read, got None",
    }
    faults = faults_of(receipt=["q:etl/2/7/31", "etl", None])
    assert faults[1] == "expected receipt to be as it was read, got 'etl'"
    assert "a batch read claims nothing" in faults[2]
    assert faults.keys() == {1, 2}
    assert faults_of(reason=[None, "bad luck", None])[1].startswith(
        "expected reason to be one of transport_unavailable, "
    )
    assert faults_of(progress=[0, -1, 0]) == {1: "expected progress to be 64 bit flags, 0 or greater, got -1"}
    assert faults_of(retry_in=[None, "soon", None]).keys() == {1}


def test_what_an_outcome_has_nothing_to_do_with_is_refused_and_not_lost() -> None:
    assert faults_of(error=["why", "why", "why"]) == dict.fromkeys(
        (0, 2), "expected error to be null unless the outcome is fail"
    )
    assert faults_of(dead=[True, True, False]) == {0: "expected dead to be null unless the outcome is fail"}
    assert faults_of(retry_in=["1s", "1s", ""]).keys() == {0, 2}
    assert faults_of(progress=[1, 1, 1]) == {
        2: "expected progress to be null unless the outcome is complete or fail"
    }
    assert faults_of(keep_order=[True, False, True]) == {
        0: "expected keep_order to be null unless the outcome is release"
    }
    assert faults_of(dead=[None, True, None], retry_in=[None, "1s", None]) == {
        1: "expected retry_in to be null where dead is true"
    }


def test_an_error_text_is_cut_as_everywhere() -> None:
    ((_, sent),), _ = to_settlements(batch(error=[None, "x" * 10_000, None]))
    assert sent.column("error")[1].as_py().endswith("[cut by fairlead: error text is kept to 8 KiB]")
    assert len(sent.column("error")[1].as_py()) <= 8192


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"receipt": StringType(), "outcome": StringType()},
            "expected column 'id' to be there, as string, in rows that settle",
        ),
        (
            {"id": StringType(), "outcome": StringType()},
            "expected column 'receipt' to be there, as string, as it was read, in rows that settle",
        ),
        ({"id": LongType()}, "expected column 'id' to be string in rows that settle, got bigint"),
        (
            {"id": StringType(), "dead": StringType()},
            "expected column 'dead' to be boolean in rows that settle, got string",
        ),
        ({"id": StringType(), "keep_oder": BooleanType()}, "did you mean 'keep_order'?"),
        ({"id": StringType(), "payload": StringType()}, "remove it with .drop('payload')"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_with_the_column_and_what_was_expected(
    columns: dict[str, DataType], said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_settled(StructType([StructField(name, kind) for name, kind in columns.items()]))
    assert said in str(refused.value)
