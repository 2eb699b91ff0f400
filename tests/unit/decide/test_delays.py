"""How long each kind of policy waits, and which policy is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.decide.retry import DeadLetter, Failure, HookAnswer, RetryAt, after_failure, delay_ms
from fairlead.model.failure import FailureReason
from fairlead.model.policy import RetryPolicy
from fairlead.model.queue import QueueConfig

NOW = 1_700_000_000_000
SEED = RetryPolicy("exponential", base_ms=30_000, cap_ms=3_600_000)


@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [(1, 60), (2, 120), (3, 240), (4, 480), (5, 960), (6, 1920), (7, 3600), (8, 3600)],
)
def test_exponential_doubles_from_twice_the_base_up_to_the_cap(attempts: int, seconds: int) -> None:
    assert after_failure(Failure(attempts), QueueConfig(retry=SEED), now_ms=NOW, jitter=0.9) == RetryAt(
        NOW + seconds * 1000, "retry.exponential"
    )


@pytest.mark.parametrize("attempts", [60, 61, 1000, 10**6, 10**9])
def test_a_million_failures_wait_no_longer_than_the_cap(attempts: int) -> None:
    ten_years = RetryPolicy("exponential", base_ms=1, factor=100.0, cap_ms=10 * 365 * 86_400_000)
    assert delay_ms(SEED, attempts) == 3_600_000
    assert delay_ms(ten_years, attempts) == ten_years.cap_ms


@pytest.mark.parametrize("factor", [1.01, 1.05, 1.2, 2.0, 100.0])
def test_however_slowly_it_grows_a_delay_reaches_its_cap(factor: float) -> None:
    policy = RetryPolicy("exponential", base_ms=30_000, factor=factor, cap_ms=3_600_000)
    waits = [delay_ms(policy, attempts) for attempts in range(1, 600)]
    assert waits == sorted(waits)
    assert (waits[-1], delay_ms(policy, 10**9)) == (3_600_000, 3_600_000)
    first_at_cap = waits.index(3_600_000) + 1
    assert 30_000 * factor ** (first_at_cap - 1) < 3_600_000 <= 30_000 * factor**first_at_cap


@pytest.mark.parametrize(
    ("factor", "waits"), [(1.0, [10, 10, 10]), (1.5, [15, 22, 33]), (10.0, [100, 1000, 1000])]
)
def test_a_factor_of_its_own(factor: float, waits: list[int]) -> None:
    policy = RetryPolicy("exponential", base_ms=10, factor=factor, cap_ms=1000)
    assert [delay_ms(policy, attempts) for attempts in (1, 2, 3)] == waits


def test_fixed_always_waits_the_same_and_immediate_not_at_all() -> None:
    assert {delay_ms(RetryPolicy("fixed", base_ms=700), attempts) for attempts in (1, 2, 10**6)} == {700}
    assert {delay_ms(RetryPolicy("immediate"), attempts) for attempts in (1, 2, 10**6)} == {0}


@given(
    st.integers(1, 10**6),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.sampled_from(["fixed", "exponential"]),
)
def test_full_jitter_stays_between_now_and_the_whole_delay(
    attempts: int, drawn: float, base_ms: int, cap_ms: int, kind: str
) -> None:
    policy = RetryPolicy(kind, base_ms=base_ms, cap_ms=cap_ms, jitter="full")
    decision = after_failure(Failure(attempts), QueueConfig(retry=policy), now_ms=NOW, jitter=drawn)
    assert isinstance(decision, RetryAt)
    waited = decision.due_ms - NOW if decision.due_ms else 0
    assert 0 <= waited <= delay_ms(policy, attempts)
    if kind == "exponential":
        assert waited <= cap_ms


@pytest.mark.parametrize(("drawn", "waited"), [(0.0, 0), (0.25, 15_000), (0.5, 30_000), (0.999999, 60_000)])
def test_jitter_is_what_the_caller_drew(drawn: float, waited: int) -> None:
    policy = RetryPolicy("exponential", base_ms=30_000, cap_ms=3_600_000, jitter="full")
    decision = after_failure(Failure(1), QueueConfig(retry=policy), now_ms=NOW, jitter=drawn)
    assert decision == RetryAt(NOW + waited if waited else 0, "retry.exponential")


REASON, STREAM, QUEUE, HOOK = (
    "retry_on.timeout_exceeded.fixed",
    "retry_in_stream.exponential",
    "retry.immediate",
    "on_failure",
)


@pytest.mark.parametrize(
    ("ceiling", "dead", "retry_in_ms", "hook", "reason", "in_stream", "rule"),
    [
        (1, True, None, "dlq", "timeout_exceeded", True, "max_attempts"),
        (0, True, None, "retry", "timeout_exceeded", True, "instruction"),
        (0, False, 5, "dlq", "timeout_exceeded", True, "instruction"),
        (0, False, None, "dlq", "timeout_exceeded", True, HOOK),
        (0, False, None, "retry", "timeout_exceeded", True, HOOK),
        (0, False, None, None, "timeout_exceeded", True, REASON),
        (0, False, None, None, "timeout_exceeded", False, REASON),
        (0, False, None, None, "unknown", True, STREAM),
        (0, False, None, None, "unknown", False, QUEUE),
        (2, False, None, None, "unknown", False, QUEUE),
    ],
)
def test_the_road_has_five_steps(
    ceiling: int,
    dead: bool,
    retry_in_ms: int | None,
    hook: str | None,
    reason: str,
    in_stream: bool,
    rule: str,
) -> None:
    config = QueueConfig(
        max_attempts=ceiling,
        retry_in_stream=SEED,
        retry_on={"timeout_exceeded": RetryPolicy("fixed", base_ms=7)},
    )
    answer = HookAnswer(hook, 3) if hook else None  # type: ignore[arg-type]
    failure = Failure(1, FailureReason[reason.upper()], in_stream, retry_in_ms, dead, answer)
    assert after_failure(failure, config, now_ms=NOW, jitter=0.5).rule == rule


def test_without_a_policy_for_streams_a_stream_follows_the_queue() -> None:
    assert after_failure(Failure(1, in_stream=True), QueueConfig(), now_ms=NOW, jitter=0.5) == RetryAt(
        0, "retry.immediate"
    )


def test_what_a_hook_said_beside_its_answer_is_kept_with_the_rule() -> None:
    answer = HookAnswer("retry", 3000, "action missing")
    assert after_failure(Failure(1, hook=answer), QueueConfig(), now_ms=NOW, jitter=0.5) == RetryAt(
        NOW + 3000, "on_failure (action missing)"
    )
    assert isinstance(
        after_failure(Failure(1, hook=HookAnswer("dlq")), QueueConfig(), now_ms=NOW, jitter=0.5), DeadLetter
    )
