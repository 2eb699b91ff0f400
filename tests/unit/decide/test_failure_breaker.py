"""The failure breaker of one queue and reason: closed, open, and on probation."""

from __future__ import annotations

import pytest

from fairlead.decide.failure_breaker import BreakerState
from fairlead.model.policy import FailureBreaker

THREE_IN_A_SECOND = FailureBreaker(failures=3, window_ms=1000, pause_ms=5000)


def failures(breaker: BreakerState, *times: int, settings: FailureBreaker = THREE_IN_A_SECOND) -> list[int]:
    return [breaker.after_failure(settings, at_ms) for at_ms in times]


def test_it_opens_on_the_nth_failure_within_the_window() -> None:
    assert failures(BreakerState(), 1000, 1400, 1999) == [0, 0, 6999]


def test_failures_spread_wider_than_the_window_never_open_it() -> None:
    assert failures(BreakerState(), *range(0, 10_000, 500)) == [0] * 20


def test_a_window_does_not_contain_its_own_end() -> None:
    assert failures(BreakerState(), 1000, 1500, 2000) == [0, 0, 0]


def test_while_open_every_failure_waits_for_its_end_and_does_not_push_it_out() -> None:
    breaker = BreakerState()
    failures(breaker, 0, 0, 0)
    assert failures(breaker, 1, 2500, 4999) == [5000, 5000, 5000]
    assert [breaker.open_until_ms(at) for at in (0, 4999, 5000)] == [5000, 5000, 0]


def test_the_first_failure_after_the_end_opens_it_again() -> None:
    breaker = BreakerState()
    failures(breaker, 0, 0, 0)
    assert failures(breaker, 5000) == [10_000]
    assert failures(breaker, 7000, 10_000) == [10_000, 15_000]


def test_after_a_quiet_window_it_counts_from_nothing_again() -> None:
    breaker = BreakerState()
    failures(breaker, 0, 0, 0)
    assert failures(breaker, 6000, 6001, 6002) == [0, 0, 11_002]


@pytest.mark.parametrize("threshold", [1, 2, 7])
def test_the_threshold_is_exact(threshold: int) -> None:
    settings = FailureBreaker(threshold, 1000, 5000)
    assert failures(BreakerState(), *[0] * threshold, settings=settings) == [0] * (threshold - 1) + [5000]
