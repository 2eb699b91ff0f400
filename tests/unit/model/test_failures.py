from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import InvalidRequest
from fairlead.model.failure import FailureReason, FailureRecord, bounded_error, read_reason, remember_failure
from fairlead.model.limits import KEPT_LAST_FAILURES, MAX_ERROR_BYTES


def failure(attempt: int) -> FailureRecord:
    return FailureRecord(
        at_ms=attempt * 10,
        attempt=attempt,
        reason=99,
        error=f"no {attempt}",
        consumer="c",
        rule="retry.immediate",
    )


@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 34, 100])
def test_the_first_failure_and_the_last_31_are_kept_and_the_rest_counted(count: int) -> None:
    kept: tuple[FailureRecord, ...] = ()
    let_go = 0
    for attempt in range(1, count + 1):
        kept, cut = remember_failure(kept, failure(attempt))
        let_go += cut
    assert len(kept) + let_go == count
    assert len(kept) <= KEPT_LAST_FAILURES + 1
    if count:
        assert kept[0].attempt == 1
        assert [record.attempt for record in kept[1:]] == list(
            range(max(2, count - KEPT_LAST_FAILURES + 1), count + 1)
        )


def test_an_error_text_of_8_KiB_is_kept_whole() -> None:
    assert bounded_error("e" * MAX_ERROR_BYTES) == "e" * MAX_ERROR_BYTES


@given(st.text(alphabet="aé漢🚢", min_size=1, max_size=4), st.integers(-2, 2))
def test_a_longer_error_text_is_cut_between_characters_and_marked_so(unit: str, extra: int) -> None:
    text = unit * ((MAX_ERROR_BYTES + 4) // len(unit.encode()) + 3 + extra)
    kept = bounded_error(text)
    assert len(kept.encode()) <= MAX_ERROR_BYTES
    assert len(kept.encode()) > MAX_ERROR_BYTES - 8
    assert "[cut by fairlead" in kept
    assert text.startswith(kept.split(" [cut by fairlead")[0])


def test_an_error_text_that_is_no_valid_unicode_is_stored_readably() -> None:
    assert bounded_error("bad \ud800 half") == "bad ? half"


@pytest.mark.parametrize("reason", list(FailureReason))
def test_a_reason_reads_from_its_word_its_number_and_itself(reason: FailureReason) -> None:
    assert read_reason(reason.word) is read_reason(int(reason)) is read_reason(reason) is reason


def test_the_numbers_of_reasons_never_change() -> None:
    assert {reason.word: int(reason) for reason in FailureReason} == {
        "unknown": 99,
        "transport_unavailable": 1,
        "handler_exception": 2,
        "validation_failure": 3,
        "timeout_exceeded": 4,
        "serialization_error": 5,
        "dependency_failure": 6,
        "poison_message": 7,
    }


@pytest.mark.parametrize("value", ["", "UNKNOWN", "boom", 0, 8, True, None, 1.0, []])
def test_an_unknown_reason_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_reason(value)
    assert refused.value.field == "reason"
    assert "timeout_exceeded" in refused.value.expected
