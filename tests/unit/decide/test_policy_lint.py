"""What a policy implies: checked against playing it through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors, lint_policy
from fairlead.decide.retry import DeadLetter, Failure, after_failure
from fairlead.model.policy import RetryPolicy
from fairlead.model.queue import QueueConfig

MINUTE, HOUR = 60_000, 3_600_000


@pytest.mark.parametrize(
    ("policy", "max_attempts", "longest", "tries", "blocked"),
    [
        ("none", 0, 0, 1, 0),
        ("none", 5, 0, 1, 0),
        ("immediate", 0, None, None, None),
        ("immediate", 4, 0, 4, 0),
        ({"policy": "immediate", "attempts": 0}, 0, 0, 1, 0),
        ({"policy": "immediate", "attempts": 9}, 4, 0, 4, 0),
        ({"policy": "fixed", "cooldown": "10m"}, 0, None, 6, None),
        ({"policy": "fixed", "cooldown": "1m", "attempts": 3}, 0, 2 * MINUTE, 3, 2 * MINUTE),
        ({"policy": "fixed", "cooldown": "1ms"}, 0, None, HOUR, None),
        ({"policy": "fixed", "cooldown": "7s"}, 0, None, 515, None),
        ({"policy": "fixed", "cooldown": "2h", "attempts": 3}, 0, 4 * HOUR, 1, 4 * HOUR),
        (
            {"policy": "fixed", "cooldown": "1m", "attempts": 1_000_000},
            0,
            999_999 * MINUTE,
            60,
            999_999 * MINUTE,
        ),
        # 1m + 2m + 4m, as seed 004 counts
        ({"policy": "exponential", "base": "30s", "attempts": 4}, 0, 7 * MINUTE, 4, 7 * MINUTE),
        ({"policy": "exponential", "base": "30s"}, 0, None, 6, None),
        ({"policy": "exponential", "base": "30s"}, 3, 3 * MINUTE, 3, 3 * MINUTE),
        (
            {"policy": "exponential", "base": "30s", "jitter": "full", "attempts": 4},
            0,
            7 * MINUTE,
            4,
            7 * MINUTE,
        ),
        ({"policy": "fixed", "cooldown": "10m", "jitter": "full"}, 0, None, None, None),
    ],
)
def test_the_three_numbers(
    policy: Any, max_attempts: int, longest: int | None, tries: int | None, blocked: int | None
) -> None:
    lint = lint_policy(policy, max_attempts=max_attempts)
    assert (lint.longest_ms, lint.tries_per_hour, lint.stream_blocked_ms) == (longest, tries, blocked)


@given(
    kind=st.sampled_from(["none", "immediate", "fixed", "exponential"]),
    attempts=st.integers(0, 40),
    base_ms=st.integers(0, HOUR),
    cap_ms=st.integers(0, 2 * HOUR),
    ceiling=st.integers(0, 40),
)
def test_the_numbers_are_those_of_playing_it_through(
    kind: str, attempts: int, base_ms: int, cap_ms: int, ceiling: int
) -> None:
    policy = RetryPolicy(kind, attempts, base_ms=base_ms, cap_ms=cap_ms)
    config = QueueConfig(retry=policy, max_attempts=ceiling)
    now_ms, tries_at, failed = HOUR, [], 0
    while True:
        tries_at.append(now_ms)
        failed += 1
        decision = after_failure(Failure(failed), config, now_ms=now_ms, jitter=0.5)
        if isinstance(decision, DeadLetter):
            break
        now_ms = max(now_ms, decision.due_ms)
    lint = lint_policy(policy, max_attempts=ceiling)
    assert lint.longest_ms == now_ms - HOUR
    assert lint.tries_per_hour == sum(at < tries_at[0] + HOUR for at in tries_at)


@pytest.mark.parametrize(
    ("policy", "warned"),
    [
        ("none", []),
        ({"policy": "immediate", "attempts": 3}, []),
        ("immediate", ["no limit", "without limit"]),
        ({"policy": "fixed", "cooldown": "0s"}, ["no limit", "hammered", "no jitter"]),
        ({"policy": "exponential"}, ["no limit", "no jitter"]),
        ({"policy": "exponential", "jitter": "full", "attempts": 5}, []),
        ({"policy": "exponential", "attempts": 5}, ["no jitter"]),
        (
            {"policy": "exponential", "attempts": 5, "jitter": "full", "base": "1m", "cap": "90s"},
            ["below the first delay"],
        ),
        ({"policy": "exponential", "attempts": 5, "jitter": "full", "base": "1m", "cap": "2m"}, []),
    ],
)
def test_what_looks_like_a_mistake_is_said(policy: Any, warned: list[str]) -> None:
    warnings = lint_policy(policy).warnings
    assert len(warnings) == len(warned)
    for text, part in zip(warnings, warned, strict=True):
        assert part in text


def test_it_reads_as_one_sentence_and_its_warnings() -> None:
    first, warning = str(lint_policy({"policy": "exponential", "base": "30s", "attempts": 4})).splitlines()
    assert (
        first
        == "dead after at most 7m of waiting; at most 4 tries an hour; one bad message can block its stream for 7m"
    )
    assert warning.startswith("warning: no jitter")
    assert (
        "never dies by itself; as many tries an hour as workers can make; one bad message can block its stream for ever"
        in str(lint_policy("immediate"))
    )


@pytest.mark.parametrize(
    "policy", ["never", {"policy": "fixed", "cooldown": "-1s"}, {"attempts": -1}, 3, None]
)
def test_a_policy_that_no_queue_would_take_is_refused(policy: Any) -> None:
    with pytest.raises(errors.InvalidRequest):
        lint_policy(policy)


@pytest.mark.parametrize("max_attempts", [-1, True, 2.5, "3"])
def test_a_ceiling_that_no_queue_would_take_is_refused(max_attempts: Any) -> None:
    with pytest.raises(errors.InvalidRequest):
        lint_policy("immediate", max_attempts=max_attempts)
