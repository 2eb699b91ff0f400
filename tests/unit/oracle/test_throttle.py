"""Token buckets, one rule at a time."""

from __future__ import annotations

import pytest

from tests.oracle.throttle import Buckets


def buckets(**rates: tuple[float, float | None]) -> Buckets:
    made = Buckets()
    for key, (rate, burst) in rates.items():
        made.set(key, rate, burst, 0)
    return made


def drained(made: Buckets, key: str, now_ms: int) -> int:
    """How many pass at that instant."""
    passed = 0
    while made.take([key], now_ms) is None:
        passed += 1
    return passed


def tokens(made: Buckets, key: str, now_ms: int) -> float:
    bucket = made.find(key, now_ms)
    assert bucket is not None
    return bucket.tokens


def test_a_bucket_starts_full() -> None:
    assert drained(buckets(a=(10, 5)), "a", 0) == 5


def test_an_empty_bucket_lets_nothing_pass() -> None:
    made = buckets(a=(10, 1))
    assert made.take(["a"], 0) is None
    assert made.take(["a"], 0) == "a"


@pytest.mark.parametrize(
    ("after_ms", "passed"),
    [(0, 0), (99, 0), (100, 1), (199, 1), (250, 2), (1000, 10), (5000, 20), (10**9, 20)],
)
def test_it_refills_with_time_in_parts_of_a_second_and_up_to_its_burst(after_ms: int, passed: int) -> None:
    made = buckets(a=(10, 20))
    drained(made, "a", 0)
    assert drained(made, "a", after_ms) == passed


def test_a_thousand_small_steps_fill_as_much_as_a_large_one() -> None:
    made = buckets(a=(7, 100))
    drained(made, "a", 0)
    for now_ms in range(1, 10_001):
        made.find("a", now_ms)
    assert drained(made, "a", 10_000) == 70


def test_time_that_stands_still_or_steps_back_fills_nothing() -> None:
    made = buckets(a=(10, 5))
    drained(made, "a", 1000)
    assert drained(made, "a", 1000) == 0
    assert drained(made, "a", 0) == 0
    assert drained(made, "a", 1100) == 1


@pytest.mark.parametrize(("rate", "burst"), [(7, 7), (0.2, 1), (0, 1), (1, 1)])
def test_the_default_burst_is_the_rate_and_at_least_one(rate: float, burst: float) -> None:
    made = buckets(a=(rate, None))
    assert tokens(made, "a", 0) == burst


def test_a_change_keeps_the_tokens_and_clips_them_to_a_smaller_burst() -> None:
    made = buckets(a=(10, 10))
    made.take(["a"], 0)
    made.set("a", 20, 10, 0)
    assert tokens(made, "a", 0) == 9
    made.set("a", 20, 4, 0)
    assert tokens(made, "a", 0) == 4
    made.set("a", 20, 8, 0)
    assert tokens(made, "a", 0) == 4


def test_a_change_counts_from_its_own_instant() -> None:
    made = buckets(a=(10, 100))
    drained(made, "a", 0)
    made.set("a", 1000, 100, 500)
    assert tokens(made, "a", 500) == 5
    assert tokens(made, "a", 510) == 15


def test_a_rate_of_0_never_refills() -> None:
    made = buckets(a=(0, 2))
    assert drained(made, "a", 0) == 2
    assert drained(made, "a", 10**12) == 0
    assert made.ready_at("a", 1, 10**12) is None


def test_unknown_and_removed_keys_pass() -> None:
    made = buckets(a=(0, 1))
    assert made.take(["b"], 0) is None
    assert made.take([], 0) is None
    drained(made, "a", 0)
    made.remove("a")
    made.remove("a")
    assert made.take(["a"], 0) is None
    assert (made.whole_tokens("a", 0), made.ready_at("a", 5, 7), made.find("a", 0)) == (None, 7, None)


def test_of_several_keys_the_one_that_lacks_is_named_and_none_is_drained() -> None:
    made = buckets(a=(0, 5), b=(0, 1), c=(0, 5))
    assert made.take(["a", "b", "c"], 0) is None
    assert made.take(["a", "b", "c"], 0) == "b"
    assert [tokens(made, key, 0) for key in "abc"] == [4, 0, 4]


def test_whole_tokens_are_what_would_pass() -> None:
    made = buckets(a=(10, 3))
    assert made.whole_tokens("a", 0) == 3
    drained(made, "a", 0)
    assert made.whole_tokens("a", 99) == 0
    assert made.whole_tokens("a", 100) == 1


@pytest.mark.parametrize(("need", "at_ms"), [(1, 100), (2, 200), (3, 300), (50, 300)])
def test_the_time_of_the_next_tokens_is_computed_and_capped_by_the_burst(need: int, at_ms: int) -> None:
    made = buckets(a=(10, 3))
    drained(made, "a", 0)
    assert made.ready_at("a", need, 0) == at_ms
    assert made.ready_at("a", need, at_ms) == at_ms


def test_the_computed_time_is_not_a_millisecond_late_where_a_sum_of_floats_falls_short() -> None:
    made = buckets(a=(1, 1))
    drained(made, "a", 0)
    made.find("a", 999)
    assert made.ready_at("a", 1, 999) == 1000


def test_all_shows_every_bucket_filled_to_that_instant() -> None:
    made = buckets(a=(10, 5), b=(1, 1))
    drained(made, "a", 0)
    assert {key: bucket.tokens for key, bucket in made.all(200).items()} == {"a": 2, "b": 1}
