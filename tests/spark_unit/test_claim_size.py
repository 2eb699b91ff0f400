from __future__ import annotations

import pytest

from fairlead.spark.worker.claim_size import next_run, next_size


def after(asked: int, done: int, took_s: float, least: int = 2, most: int = 50_000) -> int:
    return next_size(asked, done, took_s, at_least=least, at_most=most)


def test_a_claim_grows_and_shrinks_towards_some_seconds_and_never_by_more_than_four() -> None:
    assert after(1_000, 1_000, 1.0) == 3_000
    assert after(1_000, 1_000, 0.1) == 4_000
    assert after(1_000, 1_000, 6.0) == 500
    assert after(1_000, 1_000, 600.0) == 250


def test_it_stays_within_its_bounds() -> None:
    assert after(40_000, 40_000, 0.5) == 50_000
    assert after(10, 10, 1_000.0, least=8) == 8
    assert after(10, 10, 0.0, most=30) == 30


def test_a_queue_that_runs_dry_says_nothing_about_speed() -> None:
    assert after(8_000, 3, 0.4) == 8_000
    assert after(8_000, 0, 0.4) == 8_000


def test_little_that_takes_long_was_too_much() -> None:
    assert after(1_000, 40, 20.0) == 250
    assert after(1_000, 0, 20.0) == 250


@pytest.mark.parametrize("each_s", [0.00005, 0.001, 0.2, 5.0])
def test_it_settles_where_a_claim_takes_about_the_goal(each_s: float) -> None:
    """Two messages are worked on at a time, and a job alone takes a third of a second."""
    asked = 1_000
    for _ in range(12):
        asked = after(asked, asked, 0.3 + asked * each_s / 2)
    assert asked in (2, 50_000) or 2.0 < 0.3 + asked * each_s / 2 < 4.0


def test_as_few_of_a_stream_as_fill_a_claim() -> None:
    assert next_run(4, 1_000, 1_000, at_most=50_000) == 2
    assert next_run(1, 1_000, 1_000, at_most=50_000) == 1
    assert next_run(4, 1_000, 999, at_most=50_000) == 16
    assert next_run(40_000, 1_000, 3, at_most=50_000) == 50_000
