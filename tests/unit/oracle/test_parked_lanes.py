"""Lanes that wait for tokens: what a refill costs, and that nobody waits for ever."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.oracle.drr import Memory, QueueScheduler
from tests.oracle.rows import lane_key, lane_throttle_keys, pack_lane, pack_row
from tests.oracle.throttle import Buckets


class Lanes:
    """A scheduler whose rows all fit into memory."""

    def __init__(self, *, max_unsettled_per_key: int = 0, **rates: tuple[float, float]) -> None:
        self.buckets = Buckets()
        for key, (rate, burst) in rates.items():
            self.buckets.set(key, rate, burst, 0)
        memory = Memory(row_limit=10**7)
        self.scheduler = QueueScheduler(
            lambda lane, place, limit: [], self.buckets, memory, max_unsettled_per_key=max_unsettled_per_key
        )
        self.place = 0

    def add(self, key: str, throttle_keys: str, count: int = 1, weight: int = 1) -> None:
        lane = pack_lane(key, tuple(throttle_keys))
        for _ in range(count):
            self.place += 1
            self.scheduler.add(lane, pack_row(self.place, self.place.to_bytes(16, "big"), weight, 0, 0))

    def take(self, now_ms: int, limit: int = 1000) -> list[str]:
        return [lane_key(lane) for lane, _ in self.scheduler.take(limit, now_ms)]


def test_a_refill_with_100000_keys_blocked_visits_as_many_lanes_as_it_has_tokens() -> None:
    lanes = Lanes(t=(10, 7))
    for number in range(100_000):
        lanes.add(f"k{number}", "t", 2)
    assert len(lanes.take(0)) == 7
    for turn in range(1, 6):
        before = lanes.scheduler.visits
        assert len(lanes.take(turn * 700)) == 7
        assert lanes.scheduler.visits - before <= 2 * 7
    before = lanes.scheduler.visits
    assert lanes.take(5 * 700 + 99) == []
    assert lanes.scheduler.visits == before


def test_a_refill_with_many_lanes_of_two_buckets_blocked_visits_a_few_lanes_per_token() -> None:
    lanes = Lanes(a=(10, 5), b=(20, 5))
    for number in range(2000):
        lanes.add(f"k{number}", ("a", "b", "ab")[number % 3], 5)
    lanes.take(0)
    before, passed = lanes.scheduler.visits, 0
    for now_ms in range(100, 20_001, 100):
        passed += len(lanes.take(now_ms))
    assert passed >= 400
    assert lanes.scheduler.visits - before <= 6 * passed


def test_a_lane_of_several_buckets_gets_its_share_though_their_tokens_never_come_at_the_same_time() -> None:
    lanes = Lanes(a=(10, 1), b=(10, 1))
    assert lanes.buckets.take(["b"], 0) is None
    for name, keys in (("a-only", "a"), ("b-only", "b"), ("both", "ab")):
        lanes.add(name, keys, 1000)
    counts: Counter[str] = Counter()
    for now_ms in range(0, 60_001, 50):
        if now_ms == 50:
            # From here on the tokens of b come halfway between those of a.
            lanes.buckets.set("b", 10, 1, 50)
        counts.update(lanes.take(now_ms))
    assert counts["both"] >= 600 / 2 / 2
    assert min(counts["a-only"], counts["b-only"]) >= 600 / 2 / 2


def test_a_slow_bucket_takes_nothing_from_those_who_need_only_the_fast_one() -> None:
    lanes = Lanes(fast=(100, 1), slow=(1, 1))
    for key, throttle_keys in (("both", ("fast", "slow")), ("free", ("fast",))):
        lane = pack_lane(key, throttle_keys)
        for _ in range(3000):
            lanes.place += 1
            lanes.scheduler.add(lane, pack_row(lanes.place, lanes.place.to_bytes(16, "big"), 1, 0, 0))
    counts: Counter[str] = Counter()
    for now_ms in range(0, 20_001, 10):
        counts.update(lanes.take(now_ms))
    assert counts["both"] >= 19
    assert counts["free"] >= 1950


def test_lanes_that_keep_a_grant_leave_every_second_turn_of_a_fast_bucket_to_the_others() -> None:
    lanes = Lanes(a=(10, 1), b=(10, 1), c=(12, 2))
    for name, keys in (("ac", "ac"), ("bc", "bc"), ("c-only", "c")):
        lanes.add(name, keys, 1000)
    counts: Counter[str] = Counter()
    for now_ms in range(0, 60_001, 10):
        counts.update(lanes.take(now_ms))
    assert counts["c-only"] >= 720 * 0.3
    assert min(counts["ac"], counts["bc"]) >= 720 * 0.15
    assert counts.total() >= 720 * 0.95


def test_weights_hold_between_lanes_that_need_the_same_two_buckets() -> None:
    lanes = Lanes(a=(20, 4), b=(20, 4))
    for name, weight in (("one", 1), ("three", 3)):
        lanes.add(name, "ab", 2000, weight)
    counts: Counter[str] = Counter()
    for now_ms in range(0, 60_001, 50):
        counts.update(lanes.take(now_ms))
    assert counts.total() >= 1150
    assert abs(counts["three"] / counts.total() - 0.75) <= 0.05


def test_a_change_of_rates_that_turns_the_order_of_the_buckets_round_blocks_nobody() -> None:
    lanes = Lanes(a=(5, 1), b=(10, 1))
    for number in range(6):
        lanes.add(f"k{number}", ("ab", "a", "b")[number % 3], 500)
    chance = random.Random(3)
    counts: Counter[str] = Counter()
    for now_ms in range(0, 100_001, 50):
        counts.update(lanes.take(now_ms, chance.choice([1, 1000])))
        if now_ms % 1000 == 0:
            rates = (5, 10) if now_ms // 1000 % 2 else (10, 5)
            for key, rate in zip("ab", rates, strict=True):
                lanes.buckets.set(key, rate, 1, now_ms)
                lanes.scheduler.bucket_changed(key, now_ms)
    assert min(counts[f"k{number}"] for number in range(6)) >= 50, counts


@pytest.mark.parametrize("seed", range(10))
def test_two_lanes_never_wait_for_each_other_whatever_changes_the_order_of_their_buckets(seed: int) -> None:
    chance = random.Random(seed)
    lanes = Lanes(a=(5, 1), b=(10, 1))
    for number in range(9):
        lanes.add(f"k{number}", ("ab", "a", "b", "ab")[number % 4], 400)
    counts: Counter[str] = Counter()
    for now_ms in range(0, 60_001, 20):
        counts.update(lanes.take(now_ms))
        if chance.random() < 0.02:
            key = chance.choice("ab")
            lanes.buckets.set(key, chance.choice([3, 5, 8, 10]), 1, now_ms)
            lanes.scheduler.bucket_changed(key, now_ms)
    assert min(counts[f"k{number}"] for number in range(9)) >= 10, counts


def test_a_lane_that_keeps_a_grant_goes_on_when_the_bucket_it_was_woken_by_is_removed() -> None:
    lanes = Lanes(a=(1, 2), b=(10, 1))
    for _ in range(2):
        lanes.buckets.take(["a"], 0)
    lanes.add("both", "ab", 10, weight=2)
    assert lanes.take(0) == []
    lanes.buckets.take(["b"], 2000)
    assert lanes.take(2000) == [], "it has two grants of a, and waits for b"
    lanes.add("free", "", 5)
    assert lanes.take(2100, limit=1) == ["free"], "it was woken by b, but its turn comes later"
    lanes.buckets.remove("b")
    lanes.scheduler.bucket_changed("b", 2100)
    assert Counter(lanes.take(2100)) == {"both": 2, "free": 4}


def test_a_key_at_its_limit_that_is_woken_leaves_the_token_to_the_next() -> None:
    lanes = Lanes(max_unsettled_per_key=1, t=(10, 1))
    lanes.add("spender", "t", 1)
    assert lanes.take(0) == ["spender"]
    lanes.add("full", "t", 5)
    lanes.add("other", "t", 5)
    assert lanes.take(0) == []
    lanes.add("full", "", 1)
    assert lanes.take(0) == ["full"], "now it is at its limit, and its other lane is the first to be woken"
    assert lanes.take(100) == ["other"]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_buckets_no_burst_is_exceeded_and_everything_goes_out_in_bounded_time(seed: int) -> None:
    chance = random.Random(seed)
    names = "abcd"
    rates = {name: (chance.choice([2, 5, 10, 40]), chance.choice([1, 2, 8])) for name in names}
    lanes = Lanes(**rates)
    needs: Counter[str] = Counter()
    total = 0
    for number in range(30):
        keys = "".join(sorted(chance.sample(names, chance.randint(0, 4))))
        count = chance.randint(1, 12)
        lanes.add(f"k{number % 7}", keys, count, chance.randint(1, 4))
        total += count
        needs.update(dict.fromkeys(keys, count))
    used: Counter[str] = Counter()
    gone = now_ms = 0
    slowest_ms = max((needs[key] * 1000 / rates[key][0] for key in needs), default=0)
    while gone < total:
        picked = lanes.scheduler.take(chance.choice([1, 3, 1000]), now_ms)
        gone += len(picked)
        used.update(key for lane, _ in picked for key in lane_throttle_keys(lane))
        for key in names:
            assert used[key] <= rates[key][1] + now_ms * rates[key][0] / 1000 + 1e-6
        if not picked:
            wake_ms = lanes.scheduler.next_wake_ms()
            assert wake_ms is not None, "messages are left and nothing will wake them"
            assert wake_ms > now_ms, "a claim that waits would look for ever"
            now_ms = wake_ms
        assert now_ms <= 3 * slowest_ms + 1000
    assert lanes.scheduler._parking._parked == {}, "nothing is left behind"
