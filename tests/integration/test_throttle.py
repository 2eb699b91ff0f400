"""Token buckets: never faster than allowed, never slower than allowed, and nobody waits for somebody else's
bucket.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fairlead import Complete
from fairlead.model.delivery import Delivery
from fairlead.testing.stored import stored_count
from tests.integration.world import World


def throttle(world: World, key: str, rate: float, burst: float | None = None) -> None:
    if burst is not None:
        world.broker.config.set(f"throttle:{key}:burst", burst)
    world.broker.config.set(f"throttle:{key}:rate", rate)


def take(world: World, limit: int = 500, queue: str = "q") -> list[Delivery]:
    """Claim until nothing more comes, and complete it all."""
    taken: list[Delivery] = []
    while len(taken) < limit and (claimed := world.broker.claim(queue, limit=limit - len(taken))):
        taken += claimed
        world.broker.settle([Complete(delivery) for delivery in claimed])
    return taken


@pytest.mark.parametrize("step_ms", [1, 20, 70, 110])
def test_50_a_second_with_a_burst_of_5_is_50_a_second_over_20_seconds_and_never_more_than_5_at_once(
    memory_world: World, step_ms: int
) -> None:
    world = memory_world
    throttle(world, "api", 50, 5)
    world.fill("q", throttle_keys=["api"], count=1200)
    passed = len(take(world))
    assert passed == 5
    per_step = []
    for _ in range(20_000 // step_ms):
        world.clock.advance(ms=step_ms)
        per_step.append(len(take(world)))
    assert max(per_step) <= 5
    # Whoever looks less often than the bucket fills loses what runs over.
    expected = min(50 * 20, 5 * len(per_step))
    assert abs(sum(per_step) - expected) <= 0.02 * expected


def test_one_claim_takes_all_the_tokens_that_are_there(world: World) -> None:
    throttle(world, "api", 10, 10)
    world.fill("q", throttle_keys=["api"], count=50)
    assert len(world.broker.claim("q", limit=500)) == 10
    world.clock.advance(seconds=30)
    assert len(world.broker.claim("q", limit=500)) == 10, "also when its lane had to wait"


def test_a_bucket_that_is_idle_for_long_holds_its_burst_and_no_more(world: World) -> None:
    throttle(world, "api", 10, 3)
    world.fill("q", throttle_keys=["api"], count=20)
    take(world)
    world.clock.advance(seconds=3600)
    assert len(take(world)) == 3


def test_the_burst_is_the_rate_where_none_is_given_and_at_least_one(world: World) -> None:
    throttle(world, "fast", 7)
    throttle(world, "slow", 0.5)
    world.fill("q", throttle_keys=["fast"], count=20)
    world.fill("q", throttle_keys=["slow"], count=20)
    assert Counter(delivery.throttle_keys for delivery in take(world)) == {("fast",): 7, ("slow",): 1}
    world.clock.advance(ms=1999)
    assert ("slow",) not in {delivery.throttle_keys for delivery in take(world)}
    world.clock.advance(ms=1)
    assert Counter(delivery.throttle_keys for delivery in take(world))[("slow",)] == 1


def test_messages_without_a_configured_bucket_pass(world: World) -> None:
    world.fill("q", throttle_keys=["nobody-configured-this"], count=5)
    assert len(world.broker.claim("q", limit=10)) == 5


@pytest.mark.parametrize("limit", [1, 10])
def test_a_higher_rate_counts_for_the_next_message(world: World, limit: int) -> None:
    throttle(world, "api", 1, 1)
    world.fill("q", throttle_keys=["api"], count=50)
    assert len(take(world)) == 1
    world.broker.config.set("throttle:api:rate", 100)
    world.clock.advance(ms=10)
    assert len(take(world, limit)) == 1


def test_a_lower_rate_counts_for_the_next_message(world: World) -> None:
    throttle(world, "api", 100, 1)
    world.fill("q", throttle_keys=["api"], count=50)
    assert len(take(world)) == 1
    world.broker.config.set("throttle:api:rate", 1)
    world.clock.advance(ms=999)
    assert take(world) == []
    world.clock.advance(ms=1)
    assert len(take(world)) == 1


def test_a_smaller_burst_clips_the_tokens_at_hand(world: World) -> None:
    throttle(world, "api", 10, 10)
    world.fill("q", throttle_keys=["api"], count=50)
    world.broker.config.set("throttle:api:burst", 2)
    assert len(take(world)) == 2


def test_a_removed_bucket_lets_everything_pass_at_once(world: World) -> None:
    throttle(world, "api", 1, 1)
    world.fill("q", throttle_keys=["api"], count=50)
    assert len(take(world)) == 1
    world.broker.config.delete("throttle:api:rate")
    assert len(world.broker.claim("q", limit=500)) == 49


def test_a_rate_of_0_blocks_until_it_is_changed(world: World) -> None:
    throttle(world, "api", 0, 1)
    world.fill("q", throttle_keys=["api"], count=5)
    assert len(take(world)) == 1, "the bucket starts full"
    world.clock.advance(seconds=10**6)
    assert take(world) == []
    world.broker.config.set("throttle:api:rate", 1)
    world.clock.advance(seconds=1)
    assert len(take(world)) == 1


def test_a_throttled_lane_never_holds_up_another_lane_of_the_same_key(world: World) -> None:
    throttle(world, "api", 0, 1)
    world.fill("q", key="a", throttle_keys=["api"], count=5)
    free = world.fill("q", key="a", count=5)
    assert [delivery.id for delivery in take(world)][1:] == free


def test_a_throttled_key_never_holds_up_another_key(world: World) -> None:
    throttle(world, "api", 1, 1)
    world.fill("q", key="a", weight=1000, throttle_keys=["api"], count=5)
    world.fill("q", key="b", count=3)
    assert Counter(delivery.fairness_key for delivery in world.broker.claim("q", limit=4)) == {"a": 1, "b": 3}


def test_a_token_is_taken_from_each_bucket_or_from_none(world: World) -> None:
    throttle(world, "a", 0, 3)
    throttle(world, "b", 0, 1)
    world.fill("q", throttle_keys=["a", "b", "a"], count=3)
    assert len(take(world)) == 1
    assert {stats.key: stats.tokens for stats in world.broker.stats("q").throttles} == {"a": 2, "b": 0}


def test_a_blocked_key_keeps_the_rest_of_its_turn_and_gains_nothing(world: World) -> None:
    throttle(world, "api", 1, 2)
    world.fill("q", key="blocked", weight=5, throttle_keys=["api"], count=20)
    world.fill("q", key="free", count=50)
    take(world, 30)
    (blocked,) = [key for key in world.broker.stats("q", keys=True).keys if key.key == "blocked"]
    assert blocked.deficit == 3


def test_a_lane_that_needs_a_and_b_is_not_starved_by_lanes_that_need_a(memory_world: World) -> None:
    assert_not_starved(memory_world, {"a-only": ["a"]}, turns=200)


def test_a_lane_that_needs_a_and_b_is_not_starved_by_lanes_that_need_one_of_them(memory_world: World) -> None:
    assert_not_starved(memory_world, {"a-only": ["a"], "b-only": ["b"]}, turns=200)


def assert_not_starved(world: World, others: dict[str, list[str]], turns: int) -> None:
    """With equal weights a lane gets a token about every (lanes of the fuller bucket) turns; a third of that
    must come.
    """
    for bucket in ("a", "b"):
        throttle(world, bucket, 10, 1)
    for name, keys in others.items():
        for at in range(3):
            world.fill("q", key=f"{name}-{at}", throttle_keys=keys, count=turns * 2)
    world.fill("q", key="both", throttle_keys=["a", "b"], count=turns * 2)
    counts: Counter[str] = Counter()
    for _ in range(turns):
        counts.update(delivery.fairness_key for delivery in take(world))
        world.clock.advance(ms=100)
    assert counts["both"] >= turns / 4 / 3, counts
    assert min(counts.values()) >= turns / 4 / 3, counts
    assert counts.total() >= turns * 0.95, "and no token is left lying about for long"


def test_of_two_queues_that_share_a_bucket_the_one_nobody_claims_from_starves_nobody(world: World) -> None:
    throttle(world, "api", 10, 1)
    world.broker.create_queue("idle")
    world.fill("idle", throttle_keys=["api"], count=50)
    world.fill("q", throttle_keys=["api"], count=50)
    assert len(take(world, queue="idle")) == 1, "so that lanes of both wait for the bucket"
    passed = 0
    for _ in range(40):
        world.clock.advance(ms=100)
        passed += len(take(world))
    assert passed == 40


def test_two_queues_that_share_a_bucket_together_stay_within_it(world: World) -> None:
    throttle(world, "api", 10, 2)
    world.broker.create_queue("other")
    for queue in ("q", "other"):
        world.fill(queue, throttle_keys=["api"], count=100)
    counts: Counter[str] = Counter()
    for turn in range(100):
        for queue in ("q", "other") if turn // 3 % 2 else ("other", "q"):
            counts[queue] += len(take(world, 1, queue=queue))
        world.clock.advance(ms=50)
    assert 48 <= counts.total() <= 52
    assert min(counts.values()) >= 10, "who asks first gets it, and both ask first now and then"


def test_throttled_lanes_are_found_again_after_a_restart(world: World) -> None:
    throttle(world, "api", 10, 2)
    ids = world.fill("q", throttle_keys=["api"], count=6)
    got = take(world)
    world.restart()
    (bucket,) = world.broker.stats("q").throttles
    assert (bucket.key, bucket.rate, bucket.burst, bucket.tokens) == ("api", 10, 2, 0)
    assert take(world) == []
    for _ in range(4):
        world.clock.advance(ms=100)
        got += take(world)
    assert [delivery.id for delivery in got] == ids


def test_stats_show_the_tokens_of_each_bucket(world: World) -> None:
    throttle(world, "api", 10, 4)
    world.fill("q", throttle_keys=["api"], count=2)
    take(world)
    world.clock.advance(ms=50)
    (bucket,) = world.broker.stats("q").throttles
    assert (bucket.key, bucket.tokens, bucket.rate, bucket.burst) == ("api", 2.5, 10, 4)


def sets(keys: str) -> list[dict[str, Any]]:
    return [{"throttle_keys": list(word)} for word in keys.split()]


def test_every_message_of_overlapping_throttle_sets_goes_out_in_the_end(memory_world: World) -> None:
    world = memory_world
    for bucket in "abc":
        throttle(world, bucket, 20, 2)
    ids = []
    for at in range(120):
        for options in sets("a b c ab bc ac abc"):
            ids.append(world.broker.enqueue("q", b"", fairness_key=f"k{at % 4}", **options))
    got: list[str] = []
    for _ in range(480 * 60):
        got += [delivery.id for delivery in take(world)]
        if len(got) == len(ids):
            break
        world.clock.advance(ms=50)
    assert sorted(got) == sorted(ids)
    # Each bucket is needed 480 times, less its burst, at 20 a second; in a perfect order it would take 24
    # seconds.
    assert world.clock.monotonic_ms() <= 1.5 * 24_000


# Restarts


@pytest.mark.parametrize("end", ["restart", "kill", "reboot"])
def test_a_restart_refills_no_bucket(world: World, end: str) -> None:
    throttle(world, "api", 0.01, 3)
    world.fill("q", throttle_keys=["api"], count=10)
    assert len(take(world)) == 3
    for _ in range(3):
        getattr(world, end)(away_ms=30_000)
        assert take(world) == []
    world.clock.advance(ms=10_000)
    assert len(take(world)) == 1


def test_a_bucket_goes_on_filling_while_the_broker_is_away(world: World) -> None:
    throttle(world, "api", 1, 5)
    world.fill("q", throttle_keys=["api"], count=20)
    assert len(take(world)) == 5
    world.restart(away_ms=2500)
    assert len(take(world)) == 2
    world.reboot(away_ms=500)
    assert len(take(world)) == 1
    world.kill(away_ms=3_600_000)
    assert len(take(world)) == 5


def test_a_clock_set_ahead_while_the_machine_restarts_grants_one_burst_too_many_at_most(world: World) -> None:
    throttle(world, "api", 0.01, 3)
    world.fill("q", throttle_keys=["api"], count=10)
    assert len(take(world)) == 3
    world.reboot(jump_ms=365 * 24 * 3_600_000)
    assert len(take(world)) == 3
    world.reboot(jump_ms=-365 * 24 * 3_600_000)
    assert take(world) == []


def test_a_machine_that_restarts_under_an_open_store_finds_empty_buckets(world: World) -> None:
    """Claims are not synced: the messages that went out last may be in no commit that is left."""
    throttle(world, "api", 1, 3)
    world.fill("q", throttle_keys=["api"], count=10)
    world.store.inner.close()
    world.reboot(away_ms=60_000)
    assert take(world) == []
    world.kill()
    assert take(world) == [], "also when the process that found them empty was killed"
    world.clock.advance(ms=1000)
    assert len(take(world)) == 1


def test_a_life_that_left_no_commit_behind_may_have_used_up_every_bucket(memory_world: World) -> None:
    world = memory_world
    throttle(world, "api", 1, 3)
    world.fill("q", throttle_keys=["api"], count=10)
    world.restart()
    world.broker.close()
    written = world.store.snapshot()
    world.restart()
    assert len(take(world)) == 3
    world.store.inner.close()
    world.store.restore(written)
    world.reboot()
    assert take(world) == []


def test_taking_a_rate_away_and_setting_it_again_refills_nothing(world: World) -> None:
    throttle(world, "api", 1, 3)
    world.fill("q", throttle_keys=["api"], count=20)
    assert len(take(world)) == 3
    for _ in range(2):
        world.broker.config.delete("throttle:api:rate")
        world.kill()
        world.broker.config.set("throttle:api:rate", 1)
        assert take(world) == []
    world.broker.config.delete("throttle:api:rate")
    assert stored_count(world.store, "buckets") == 1
    world.clock.advance(seconds=60)
    world.broker.enqueue("q", b"")
    assert stored_count(world.store, "buckets") == 0, "full again without a rate: forgotten"


def test_a_new_rate_counts_from_when_it_was_set_also_over_a_restart(world: World) -> None:
    throttle(world, "api", 0.01, 3)
    world.fill("q", throttle_keys=["api"], count=20)
    assert len(take(world)) == 3
    world.clock.advance(seconds=50)
    world.broker.config.set("throttle:api:rate", 1)
    world.kill(away_ms=1000)
    assert len(take(world)) == 1
