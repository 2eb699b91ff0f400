"""From an exception of a step to a reason and a text."""

from __future__ import annotations

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.failure import FailureReason, bounded_error
from fairlead.worker.reasons import REASONS, cut_middle, describe, reason_of


class ValidationError(ValueError):
    """Named like pydantic's and jsonschema's."""


class Refused(ConnectionError): ...


class Stale(Exception): ...


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (ConnectionResetError, "transport_unavailable"),
        (socket.gaierror, "transport_unavailable"),
        (Refused, "transport_unavailable"),
        (TimeoutError, "timeout_exceeded"),
        (ValidationError, "validation_failure"),
        (json.JSONDecodeError, "serialization_error"),
        (UnicodeDecodeError, "serialization_error"),
        (MemoryError, "poison_message"),
        (ValueError, "handler_exception"),
        (Stale, "handler_exception"),
        (SystemExit, "handler_exception"),
    ],
)
def test_a_class_is_matched_by_its_name_or_that_of_its_nearest_base(
    kind: type[BaseException], reason: str
) -> None:
    assert reason_of(kind).word == reason


def test_the_workers_own_reasons_come_first_for_a_class_and_a_nearer_class_before_a_base() -> None:
    own = {
        "ConnectionError": "dependency_failure",
        "Stale": "poison_message",
        f"{__name__}.ValidationError": "unknown",
        "OSError": "unknown",
    }
    assert reason_of(ConnectionError, own) is FailureReason.DEPENDENCY_FAILURE
    assert reason_of(Stale, own) is FailureReason.POISON_MESSAGE
    assert reason_of(ValidationError, own) is FailureReason.UNKNOWN
    assert reason_of(TimeoutError, own) is FailureReason.TIMEOUT_EXCEEDED


def test_every_reason_of_the_table_is_known_to_the_broker() -> None:
    assert set(REASONS.values()) <= {reason.word for reason in FailureReason}


def test_the_text_has_the_error_and_then_its_traceback() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        text = describe("parse", error)
    assert text.startswith("step 'parse': json.decoder.JSONDecodeError: Expecting property name")
    assert "test_reasons.py" in text


@given(st.text(max_size=30_000), st.integers(200, 9000))
def test_a_long_text_keeps_its_head_and_its_tail_and_fits(text: str, max_rows: int) -> None:
    cut = cut_middle(text, max_rows)
    assert len(cut.encode()) <= max_rows
    if len(text.encode("utf-8", "replace")) > max_rows:
        assert cut[:20] == text[:20]
        assert cut[-20:] == text[-20:]


def test_a_deep_traceback_is_not_cut_again_by_the_broker() -> None:
    def deeper(n: int) -> None:
        if n:
            deeper(n - 1)
        raise ValueError("é" * 20_000)

    try:
        deeper(200)
    except ValueError as error:
        text = describe("deep", error)
    assert bounded_error(text) == text
    assert text.endswith("é" * 20)
