from __future__ import annotations

from typing import Any

import pytest

from fairlead.errors import InvalidRequest
from fairlead.model.policy import IMMEDIATE, RetryPolicy, read_policy


@pytest.mark.parametrize(
    ("value", "policy"),
    [
        ("none", RetryPolicy("none")),
        ("immediate", IMMEDIATE),
        ({}, IMMEDIATE),
        ({"policy": "none"}, RetryPolicy("none")),
        ({"attempts": 0}, RetryPolicy("immediate", 0)),
        ({"policy": "immediate", "attempts": 1_000_000}, RetryPolicy("immediate", 1_000_000)),
        ({"policy": "immediate", "attempts": None}, IMMEDIATE),
        (RetryPolicy("none", 2), RetryPolicy("none", 2)),
    ],
)
def test_a_policy_reads_from_a_word_or_a_mapping(value: Any, policy: RetryPolicy) -> None:
    assert read_policy(value) == policy


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "retry"),
        (3, "retry"),
        (["none"], "retry"),
        ("never", "retry.policy"),
        ({"policy": "never"}, "retry.policy"),
        ({"policy": ["none"]}, "retry.policy"),
        ({"attempts": -1}, "retry.attempts"),
        ({"attempts": True}, "retry.attempts"),
        ({"attempts": "3"}, "retry.attempts"),
        ({"attempts": 1_000_001}, "retry.attempts"),
        ({"tries": 3}, "retry.tries"),
        ({"tries": 3, 1: 2}, "retry.1"),
    ],
)
def test_a_bad_policy_is_refused_and_the_guilty_field_named(value: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_policy(value)
    assert refused.value.field == field


def test_the_field_is_named_as_the_caller_knows_it() -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_policy({"attempts": -1}, "retry_in_stream")
    assert refused.value.field == "retry_in_stream.attempts"
