from __future__ import annotations

import math

import pytest

from fairlead.hooks import EnqueueDecision, Hooks
from fairlead.hooks.results import read_enqueue, read_failure
from fairlead.model.limits import MAX_DURATION_MS
from tests.hooks.scripts import fail, returned


@pytest.mark.parametrize(
    ("result", "field", "value", "note"),
    [
        ("{}", "fairness_key", None, None),
        ("{}", "throttle_keys", None, None),
        ('{ fairness_key = "" }', "fairness_key", None, "fairness_key is empty: ignored"),
        ("{ fairness_key = 42 }", "fairness_key", "42", None),
        ("{ fairness_key = {} }", "fairness_key", None, "fairness_key is not text: ignored"),
        ("{ fairness_key = true }", "fairness_key", None, "fairness_key is not text: ignored"),
        ('{ fairness_key = "\\xff" }', "fairness_key", None, "fairness_key is not text: ignored"),
        (
            '{ fairness_key = ("x"):rep(600) }',
            "fairness_key",
            "x" * 512,
            "fairness_key of 600 bytes or more cut to 512",
        ),
        (
            '{ fairness_key = ("é"):rep(100000) }',
            "fairness_key",
            "é" * 256,
            "fairness_key of 1024 bytes or more cut to 512",
        ),
        (
            '{ fairness_key = "a" .. ("é"):rep(5000) }',
            "fairness_key",
            "a" + "é" * 255,
            "fairness_key of 1023 bytes or more cut to 512",
        ),
        ("{ weight = 7 }", "weight", 7, None),
        ('{ weight = "7" }', "weight", 7, None),
        ("{ weight = 7.0 }", "weight", 7, None),
        ("{ weight = 7.9 }", "weight", 7, "weight 7.9 -> 7"),
        ("{ weight = 5000 }", "weight", 1000, "weight 5000 -> 1000"),
        ("{ weight = 0 }", "weight", 1, "weight 0 -> 1"),
        ("{ weight = -3 }", "weight", 1, "weight -3 -> 1"),
        ("{ weight = math.huge }", "weight", 1000, "weight inf -> 1000"),
        ("{ weight = -math.huge }", "weight", 1, "weight -inf -> 1"),
        ("{ weight = math.mininteger }", "weight", 1, "weight -9223372036854775808 -> 1"),
        ("{ weight = 0 / 0 }", "weight", None, "is not a number: ignored"),
        ('{ weight = "nan" }', "weight", None, "is not a number: ignored"),
        ('{ weight = "heavy" }', "weight", None, "weight 'heavy' is not a number: ignored"),
        ("{ weight = {} }", "weight", None, "is not a number: ignored"),
        ("{ weight = false }", "weight", None, "is not a number: ignored"),
        ("{ throttle_keys = {} }", "throttle_keys", (), None),
        ('{ throttle_keys = { "b", "a", "b" } }', "throttle_keys", ("a", "b"), None),
        ('{ throttle_keys = { "a", nil, "c" } }', "throttle_keys", ("a",), None),
        (
            '{ throttle_keys = { "a", {}, "", 3 } }',
            "throttle_keys",
            ("3", "a"),
            "a throttle key is not text: ignored",
        ),
        ('{ throttle_keys = "a" }', "throttle_keys", None, "throttle_keys is not a list: ignored"),
        ("{ throttle_keys = string }", "throttle_keys", (), None),
        ('{ stream = "s" }', "stream", "s", None),
        ('{ stream = "" }', "stream", "", None),
        ("{ stream = {} }", "stream", None, "stream is not text: ignored"),
        ("string", "fairness_key", None, None),
    ],
)
def test_a_result_is_read_corrected_and_noted(
    result: str, field: str, value: object, note: str | None, hosted: Hooks
) -> None:
    decision = returned(hosted, result)
    assert decision.outcome == "ran"
    assert getattr(decision, field) == value
    assert (note is None and decision.notes == ()) or (note is not None and note in "; ".join(decision.notes))


def test_more_throttle_keys_than_allowed_are_cut(hosted: Hooks) -> None:
    decision = returned(
        hosted,
        "(function() local t = {} for i = 1, 1000 do t[i] = 'k' .. i end return { throttle_keys = t } end)()",
    )
    assert decision.throttle_keys is not None
    assert len(decision.throttle_keys) == 16
    assert decision.notes == ("64 throttle keys or more cut to 16",)


def test_a_cyclic_or_huge_result_is_read_no_further_than_needed(hosted: Hooks) -> None:
    tangled = "(function() local t = {} for i = 1, 5000 do t[i] = i end t.fairness_key, t.throttle_keys, t.me = 'k', t, t return t end)()"
    decision = returned(hosted, tangled)
    assert (decision.outcome, decision.fairness_key, len(decision.throttle_keys or ())) == ("ran", "k", 16)


@pytest.mark.parametrize(
    ("result", "action", "delay_ms", "note"),
    [
        ('{ action = "dlq" }', "dlq", 0, None),
        ('{ action = "retry" }', "retry", 0, None),
        ('{ action = "retry", delay_ms = 1500 }', "retry", 1500, None),
        ('{ action = "retry", delay_ms = 1500.7 }', "retry", 1500, None),
        ('{ action = "retry", delay_ms = "250" }', "retry", 250, None),
        ('{ action = "retry", delay_ms = -1 }', "retry", 0, "delay_ms -1 -> 0"),
        ('{ action = "retry", delay_ms = 0 / 0 }', "retry", 0, "is not a number: 0"),
        (
            '{ action = "retry", delay_ms = math.huge }',
            "retry",
            MAX_DURATION_MS,
            f"delay_ms inf -> {MAX_DURATION_MS}",
        ),
        (
            '{ action = "retry", delay_ms = math.maxinteger }',
            "retry",
            MAX_DURATION_MS,
            f"-> {MAX_DURATION_MS}",
        ),
        ('{ action = "retry", delay_ms = {} }', "retry", 0, "is not a number: 0"),
        ("{}", "retry", 0, "no action: retry"),
        ('{ action = "explode", delay_ms = 5 }', "retry", 5, "unknown action 'explode': retry"),
        ("{ action = 1 }", "retry", 0, "unknown action 1: retry"),
        ("{ action = {} }", "retry", 0, "unknown action of that type: retry"),
    ],
)
def test_a_failure_result_is_read_corrected_and_noted(
    result: str, action: str, delay_ms: int, note: str | None, hosted: Hooks
) -> None:
    (decision,) = fail(hosted, f"function on_failure() return {result} end")
    assert (decision.outcome, decision.action, decision.delay_ms) == ("ran", action, delay_ms)
    assert (note is None and decision.notes == ()) or (note is not None and note in "; ".join(decision.notes))


def test_the_broker_checks_every_bound_again() -> None:
    decision = read_enqueue([0, "k" * 100_000, 10**300, b"raw", True, *[f"k{n}" for n in range(100)]])
    assert len(decision.fairness_key or "") == 512
    assert (decision.weight, decision.stream, len(decision.throttle_keys or ())) == (1000, None, 16)
    assert read_failure([0, "retry", math.inf]).delay_ms == MAX_DURATION_MS
    assert isinstance(read_enqueue([0, None, None, None, None]), EnqueueDecision)
