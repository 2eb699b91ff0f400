"""The bad rows that a check finds, by a function of rows or of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fairlead import StepFailed
from fairlead.errors import InvalidRequest
from fairlead.spark.bad_rows.checks import (
    BatchFunctionCheck,
    ColumnCheck,
    RowDefect,
    RowFunctionCheck,
    check_of,
)

ROWS = pa.RecordBatch.from_pydict({"id": [0, 1, 2, 3, 4]})
NO = RowDefect("validation_failure", "the check returned false")


def defects(check: Any, rows: pa.RecordBatch = ROWS) -> dict[int, RowDefect]:
    return check_of(check, "validation_failure").find_defects(rows, None)


def test_none_and_true_are_good_false_and_a_text_are_bad() -> None:
    answers = {0: None, 1: True, 2: False, 3: "three", 4: np.bool_(False)}
    assert defects(lambda row: answers[row["id"]]) == {
        2: NO,
        3: RowDefect("validation_failure", "three"),
        4: NO,
    }
    assert defects(lambda row: np.bool_(True)) == {}
    assert defects(lambda row: "", ROWS.slice(0, 1)) == {0: NO}


def test_a_row_that_makes_the_function_raise_is_bad_and_says_how() -> None:
    def check(row: dict[str, Any]) -> None:
        if row["id"] == 1:
            raise ValueError("one")
        if row["id"] == 2:
            raise KeyError
        if row["id"] == 3:
            raise StepFailed("try later", reason="dependency_failure")

    assert defects(check) == {
        1: RowDefect("handler_exception", "ValueError: one"),
        2: RowDefect("handler_exception", "KeyError"),
        3: RowDefect("dependency_failure", "StepFailed: try later"),
    }


def test_nonsense_is_no_yes() -> None:
    assert set(defects(lambda row: 1)) == {0, 1, 2, 3, 4}
    assert "good row, False or a text for a bad row, got 1" in defects(lambda row: 1)[0].error
    assert defects(lambda row: 1)[0].reason == "handler_exception"


def test_a_long_text_is_cut() -> None:
    assert len(defects(lambda row: "x" * 10_000)[0].error) == 2000


def test_half_a_character_in_a_text_does_not_keep_it_from_travelling() -> None:
    """`json.loads`, and files read with surrogateescape, make texts with lone surrogates."""

    def check(row: dict[str, Any]) -> str:
        if row["id"]:
            raise ValueError("\udcff")
        return "é \ud83d" + "x" * 10_000

    found = defects(check, ROWS.slice(0, 2))
    assert found[0].error[:4] == "é ?x"
    assert len(found[0].error) == 2000
    assert found[1].error == "ValueError: ?"


def test_a_row_that_python_cannot_hold_is_bad_and_its_neighbours_are_asked() -> None:
    rows = pa.RecordBatch.from_pydict({"at": pa.array([0, 10**18, 1], pa.timestamp("us", "UTC"))})
    found = defects(lambda row: None, rows)
    assert list(found) == [1]
    assert found[1].reason == "serialization_error"


def test_a_map_is_shown_as_a_dict() -> None:
    seen: list[Any] = []
    defects(
        seen.append,
        pa.RecordBatch.from_pydict({"m": pa.array([[("a", 1)], None], pa.map_(pa.utf8(), pa.int64()))}),
    )
    assert seen == [{"m": {"a": 1}}, {"m": None}]


def test_an_annotation_says_what_a_function_wants_to_see() -> None:
    def arrow(batch: pa.RecordBatch) -> None: ...
    def frame(batch: pd.DataFrame) -> None: ...
    def row(one: dict) -> None: ...  # type: ignore[type-arg]

    assert isinstance(check_of(arrow, "unknown"), BatchFunctionCheck)
    assert isinstance(check_of(frame, "unknown"), BatchFunctionCheck)
    assert isinstance(check_of(row, "unknown"), RowFunctionCheck)
    arrow.__annotations__["batch"] = pa.RecordBatch
    frame.__annotations__["batch"] = pd.DataFrame
    assert isinstance(check_of(arrow, "unknown"), BatchFunctionCheck)
    assert isinstance(check_of(frame, "unknown"), BatchFunctionCheck)
    assert isinstance(check_of(str.strip, "unknown"), RowFunctionCheck)
    with pytest.raises(InvalidRequest, match="a function of one row"):
        check_of(lambda: None, "unknown")  # type: ignore[misc, arg-type]


def test_a_function_of_batches_sees_them_as_what_it_asks_for() -> None:
    seen: list[Any] = []

    def arrow(batch: pa.RecordBatch) -> None:
        seen.append(batch)

    def table(batch: pa.Table) -> pa.ChunkedArray:
        seen.append(batch)
        return batch["id"].cast(pa.bool_())

    def frame(batch: pd.DataFrame) -> None:
        seen.append(batch)

    assert [defects(check) for check in (arrow, table, frame)] == [{}, {0: NO}, {}]
    table.__annotations__["batch"] = pa.Table
    assert defects(table) == {0: NO}
    assert [type(one) for one in seen] == [pa.RecordBatch, pa.Table, pd.DataFrame, pa.Table]


def of_batches(answer: Any) -> dict[int, RowDefect]:
    def check(batch: pa.RecordBatch) -> Any:
        return answer(batch) if callable(answer) else answer

    return defects(check)


@pytest.mark.parametrize(
    "answer",
    [
        [True, False, None, True, "four"],
        (None, False, None, None, "four"),
        np.array([True, False, None, None, "four"], object),
        pd.Series([True, False, None, None, "four"]),
    ],
    ids=["list", "tuple", "numpy", "pandas"],
)
def test_a_function_of_batches_has_an_answer_for_each_row(answer: Any) -> None:
    assert of_batches(answer) == {1: NO, 4: RowDefect("validation_failure", "four")}


def test_a_mask_that_is_null_is_not_true_and_a_text_that_is_null_says_nothing() -> None:
    assert of_batches(pa.array([True, False, None, True, True])) == {1: NO, 2: NO}
    assert of_batches(pa.chunked_array([["zero", None], [None, None, None]])) == {
        0: RowDefect("validation_failure", "zero")
    }
    assert of_batches(None) == {}


def test_a_text_that_is_not_utf_8_says_what_it_can() -> None:
    """Arrow builds the answer from bytes of the row, which need not be UTF-8."""
    texts = pa.array([None, b"no \xff", None, b"", None], pa.binary()).view(pa.utf8())
    assert (
        of_batches(texts)
        == of_batches(pa.chunked_array([texts]))
        == {1: RowDefect("validation_failure", "no \ufffd"), 3: NO}
    )


@pytest.mark.parametrize("answer", [[True], "xxxxx", 5, np.bool_(True)], ids=repr)
def test_another_number_of_answers_is_a_mistake_of_the_function(answer: Any) -> None:
    with pytest.raises(InvalidRequest, match="one answer for each of its 5 rows"):
        of_batches(answer)


def test_where_a_function_of_batches_raises_only_the_guilty_rows_are_bad() -> None:
    def check(batch: pd.DataFrame) -> list[Any]:
        if (batch["id"] % 3 == 1).any():
            raise ValueError(f"one of {len(batch)}")
        return [None if number != 2 else "two" for number in batch["id"]]

    guilty = RowDefect("handler_exception", "ValueError: one of 1")
    assert defects(check) == {1: guilty, 2: RowDefect("validation_failure", "two"), 4: guilty}


def test_a_column_that_is_true_everywhere_makes_nothing() -> None:
    judge = ColumnCheck("id > 0", "unknown")
    assert judge.find_defects(ROWS, pa.array([True] * 5)) == {}
    found = judge.find_defects(ROWS, pa.array([None, True, True, True, False]))
    assert found == {0: RowDefect("unknown", "id > 0 is null"), 4: RowDefect("unknown", "id > 0 is false")}
