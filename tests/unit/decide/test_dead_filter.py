"""Which dead letters a filter selects; the redrive tests ask the same of the broker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fairlead.decide.dead_filter import DeadFilter, DeadLetterTest, filter_from_record, filter_to_record
from fairlead.model.failure import FailureReason, FailureRecord
from fairlead.model.lane import pack_lane
from fairlead.model.message import Message, MessageState, pack_headers

NOW = 1_700_000_100_000


def selects(given: DeadFilter, *, now_ms: int = NOW, **state: Any) -> bool:
    failures = tuple(
        FailureRecord(0, at, 2, error, "", "retry.none")
        for at, error in enumerate(state.pop("errors", ["first", "no such host"]))
    )
    message = Message(
        b"i" * 16, 1, pack_lane("tenant", ("t",)), 1, pack_headers({"kind": "x", "empty": ""}), b"", 0, 1
    )
    known = {
        "reason": int(FailureReason.HANDLER_EXCEPTION),
        "attempts": 3,
        "dead_since_ms": NOW - 60_000,
        **state,
    }
    return DeadLetterTest(given, now_ms=now_ms).selects(
        message, MessageState(2, 1, failures=failures, **known)
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (DeadFilter(), True),
        (DeadFilter(reason="handler_exception"), True),
        (DeadFilter(reason=FailureReason.HANDLER_EXCEPTION), True),
        (DeadFilter(reason=4), False),
        (DeadFilter(error="such"), True),
        (DeadFilter(error=""), True),
        (DeadFilter(error="first"), False),
        (DeadFilter(error="SUCH"), False),
        (DeadFilter(error_regex="^no .* host$"), True),
        (DeadFilter(error_regex="^host"), False),
        (DeadFilter(key="tenant"), True),
        (DeadFilter(key="ten"), False),
        (DeadFilter(key=""), False),
        (DeadFilter(header=("kind", "x")), True),
        (DeadFilter(header=("kind", "y")), False),
        (DeadFilter(header=("empty", "")), True),
        (DeadFilter(header=("absent", "")), False),
        (DeadFilter(older_than="60s"), True),
        (DeadFilter(older_than="60001ms"), False),
        (DeadFilter(newer_than="60s"), True),
        (DeadFilter(newer_than="59999ms"), False),
        (DeadFilter(min_attempts=3), True),
        (DeadFilter(min_attempts=4), False),
        (DeadFilter(max_attempts=3), True),
        (DeadFilter(max_attempts=2), False),
        (DeadFilter(max_attempts=0), False),
        (DeadFilter(key="tenant", min_attempts=3, error="host"), True),
        (DeadFilter(key="tenant", min_attempts=4, error="host"), False),
    ],
)
def test_all_that_is_given_must_hold(given: DeadFilter, expected: bool) -> None:
    assert selects(given) is expected


def test_the_key_is_the_one_the_message_had_in_its_last_life() -> None:
    assert selects(DeadFilter(key="stream's own"), lane=pack_lane("stream's own"))
    assert not selects(DeadFilter(key="tenant"), lane=pack_lane("stream's own"))


def test_a_dead_letter_without_failures_has_an_empty_error() -> None:
    assert selects(DeadFilter(error_regex="^$"), errors=[])
    assert not selects(DeadFilter(error="x"), errors=[])


def test_the_record_of_a_filter_reads_back_as_the_same_filter() -> None:
    given = DeadFilter("handler_exception", "a", "b+", "k", ("n", "v"), timedelta(minutes=1), "1500ms", 1, 9)
    record = filter_to_record(given)
    again = filter_from_record({**record, "header": ["n", "v"]})
    assert again == DeadFilter("handler_exception", "a", "b+", "k", ("n", "v"), "60000ms", "1500ms", 1, 9)
    assert filter_from_record(filter_to_record(DeadFilter())) == DeadFilter()
