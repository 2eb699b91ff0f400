"""Keys share a queue by their weights, measured on delivery order, whatever the size of a claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from fairlead import Complete, Fail, NewMessage, Release
from tests.integration.world import World

WEIGHTS = {f"tenant-{weight}": weight for weight in (1, 2, 3, 4, 5)}


def deliveries(world: World, total: int, *, limit: int) -> list[str]:
    """The fairness keys of the next deliveries, each completed at once."""
    keys: list[str] = []
    while len(keys) < total:
        claimed = world.broker.claim("q", limit=min(limit, total - len(keys)))
        assert claimed, "the backlog ran out"
        keys += [delivery.fairness_key for delivery in claimed]
        world.broker.settle([Complete(delivery) for delivery in claimed])
    return keys


def windows(keys: list[str], size: int) -> Iterator[Counter[str]]:
    """The counts of every window of that size, sliding by one."""
    counts = Counter(keys[:size])
    yield counts
    for leaving, entering in zip(keys, keys[size:], strict=False):
        counts[leaving] -= 1
        counts[entering] += 1
        yield counts


@pytest.mark.parametrize("limit", [1, 500])
def test_weights_of_1_to_5_hold_within_a_point_over_5000_and_within_5_points_in_every_hundred(
    memory_world: World, limit: int
) -> None:
    for key, weight in WEIGHTS.items():
        memory_world.fill("q", key=key, weight=weight, count=2500)
    got = deliveries(memory_world, 5000, limit=limit)
    share = {key: weight / sum(WEIGHTS.values()) for key, weight in WEIGHTS.items()}
    counts = Counter(got)
    for key, expected in share.items():
        assert abs(counts[key] / 5000 - expected) <= 0.01, (key, counts)
    for window in windows(got, 100):
        for key, expected in share.items():
            assert abs(window[key] / 100 - expected) <= 0.05, (key, window)


def test_shares_hold_while_messages_keep_coming_and_some_of_them_fail(world: World) -> None:
    for key, weight in (("light", 1), ("heavy", 3)):
        world.fill("q", key=key, weight=weight, count=40)
    counts: Counter[str] = Counter()
    for turn in range(400):
        delivery = world.claim_one("q")
        counts[delivery.fairness_key] += 1
        if turn % 5 == 0:
            world.broker.settle([Fail(delivery)])
        else:
            world.broker.settle([Complete(delivery)])
            world.fill("q", key=delivery.fairness_key, weight=delivery.weight, count=1)
    assert counts == {"light": 100, "heavy": 300}


@pytest.mark.parametrize("limit", [1, 7, 500])
@pytest.mark.parametrize("quantum", [1, 4])
def test_a_quiet_key_that_returns_waits_at_most_one_turn_of_each_other_key(
    world: World, quantum: int, limit: int
) -> None:
    world.broker.update_queue("q", quantum=quantum)
    others = {"noisy": 5, "busy": 2, "calm": 1}
    for key, weight in others.items():
        world.fill("q", key=key, weight=weight, count=400)
    turn = sum(others.values()) * quantum
    for start in range(12):
        # Wherever in the round it comes back, and wherever its last visit was.
        deliveries(world, 1 + start % 3, limit=limit)
        world.fill("q", key="quiet", count=1)
        waited = deliveries(world, turn + 1, limit=limit).index("quiet")
        assert waited <= turn


def test_a_key_with_one_message_is_served_beside_a_backlog_of_thousands(world: World) -> None:
    world.fill("q", key="noisy", count=3000)
    deliveries(world, 10, limit=1)
    world.fill("q", key="quiet", count=1)
    assert "quiet" in deliveries(world, 2, limit=1)


def test_a_single_key_is_plain_first_in_first_out(world: World) -> None:
    ids = [world.fill("q", count=1)[0] for _ in range(20)] + world.fill("q", count=20)
    assert [delivery.id for delivery in world.broker.claim("q", limit=40)] == ids


def test_an_exhausted_key_does_not_stop_the_others(world: World) -> None:
    world.fill("q", key="short", weight=10, count=2)
    world.fill("q", key="long", count=6)
    assert Counter(deliveries(world, 8, limit=3)) == {"short": 2, "long": 6}


def test_queues_share_nothing(world: World) -> None:
    world.broker.create_queue("other")
    world.fill("q", key="a", weight=9, count=20)
    world.fill("other", key="a", count=20)
    world.fill("other", key="b", count=20)
    deliveries(world, 13, limit=1)
    got = [delivery.fairness_key for delivery in world.broker.claim("other", limit=10)]
    assert Counter(got) == {"a": 5, "b": 5}


def test_the_weight_of_the_latest_message_counts_from_the_next_turn(world: World) -> None:
    world.fill("q", key="a", weight=4, count=10)
    world.fill("q", key="b", count=20)
    assert deliveries(world, 2, limit=1) == ["a", "a"]
    world.fill("q", key="a", weight=1, count=5)
    assert deliveries(world, 9, limit=1) == ["a", "a", "b", "a", "b", "a", "b", "a", "b"]


def test_a_weight_in_the_configuration_beats_messages_and_counts_from_the_next_turn(world: World) -> None:
    world.fill("q", key="a", weight=2, count=30)
    world.fill("q", key="b", weight=1, count=30)
    assert deliveries(world, 1, limit=1) == ["a"]
    world.broker.config.set("weight:q:a", 3)
    world.fill("q", key="a", weight=1, count=1)
    assert deliveries(world, 2, limit=1) == ["a", "b"], "the turn under way keeps its size"
    assert deliveries(world, 8, limit=1) == ["a", "a", "a", "b"] * 2
    assert {stats.key: stats.weight for stats in world.broker.stats("q", keys=True).keys} == {"a": 3, "b": 1}


def test_a_weight_in_the_configuration_needs_no_new_message_to_count(world: World) -> None:
    for key in ("a", "b"):
        world.fill("q", key=key, count=30)
    world.broker.config.set("weight:q:b", 4)
    assert deliveries(world, 10, limit=3) == ["a", "b", "b", "b", "b"] * 2


def test_a_weight_in_the_configuration_holds_after_a_restart_and_ends_with_its_deletion(world: World) -> None:
    world.broker.config.set("weight:q:a", 3)
    for key in ("a", "b"):
        world.fill("q", key=key, count=30)
    world.restart()
    assert Counter(deliveries(world, 8, limit=8)) == {"a": 6, "b": 2}
    world.broker.config.delete("weight:q:a")
    world.fill("q", key="a", count=1)
    deliveries(world, 4, limit=1)
    assert Counter(deliveries(world, 10, limit=1)) == {"a": 5, "b": 5}


def test_a_weight_in_the_configuration_of_one_queue_leaves_the_others_alone(world: World) -> None:
    world.broker.create_queue("project/q")
    world.broker.config.set("weight:project/q:a", 3)
    for queue in ("q", "project/q"):
        for key in ("a", "b"):
            world.fill(queue, key=key, count=8)
    assert Counter(delivery.fairness_key for delivery in world.broker.claim("q", limit=8)) == {"a": 4, "b": 4}
    assert Counter(delivery.fairness_key for delivery in world.broker.claim("project/q", limit=8)) == {
        "a": 6,
        "b": 2,
    }


@pytest.mark.parametrize(
    ("given", "counts_as"), [(0, 1), (-7, 1), (1, 1), (1000, 1000), (1001, 1000), (10**30, 1000)]
)
def test_a_weight_out_of_bounds_is_corrected_to_the_bound_and_said_so(
    world: World, given: int, counts_as: int
) -> None:
    world.broker.enqueue("q", b"", fairness_key="a", weight=given)
    assert world.broker.stats("q", keys=True).keys[0].weight == counts_as
    assert world.claim_one("q").weight == counts_as


def test_a_key_with_several_lanes_is_first_in_first_out_by_place_among_those_not_blocked(
    world: World,
) -> None:
    world.broker.config.set("throttle:stuck:rate", 0)
    world.broker.config.set("throttle:stuck:burst", 1)
    world.broker.config.set("throttle:open:rate", 1000)
    pattern = [(), ("open",), ("stuck",), (), ("stuck",), ("open",), (), ("stuck",), ("open", "stuck"), ()]
    ids = [world.broker.enqueue("q", b"", throttle_keys=keys) for keys in pattern]
    # One token lets the first of the stuck ones pass.
    expected = [message_id for at, message_id in enumerate(ids) if "stuck" not in pattern[at] or at == 2]
    got = [delivery.id for limit in (1, 2, 500) for delivery in world.broker.claim("q", limit=limit)]
    assert got == expected


def test_a_released_message_comes_before_the_later_ones_of_all_lanes_of_its_key(world: World) -> None:
    ids = [world.broker.enqueue("q", b"", throttle_keys=keys) for keys in ((), ("t",), (), ("t",))]
    first = world.claim_one("q")
    world.broker.settle([Release(first)])
    assert [delivery.id for delivery in world.broker.claim("q", limit=4)] == ids


def test_weights_of_1_2_3_keep_their_shares_under_one_shared_bucket_of_50_a_second(
    memory_world: World,
) -> None:
    world = memory_world
    world.broker.config.set("throttle:api:rate", 50)
    world.broker.config.set("throttle:api:burst", 5)
    for key, weight in (("one", 1), ("two", 2), ("three", 3)):
        world.fill("q", key=key, weight=weight, throttle_keys=["api"], count=800)
    counts: Counter[str] = Counter()
    for _ in range(20_000 // 25):
        claimed = world.broker.claim("q", limit=50)
        counts.update(delivery.fairness_key for delivery in claimed)
        world.broker.settle([Complete(delivery) for delivery in claimed])
        world.clock.advance(ms=25)
    total = counts.total()
    assert total >= 980
    for key, share in (("one", 1 / 6), ("two", 2 / 6), ("three", 3 / 6)):
        assert abs(counts[key] / total - share) <= 0.01, counts


def test_a_batch_is_handed_out_in_the_order_it_was_given(world: World) -> None:
    ids = world.broker.enqueue_many("q", [NewMessage(str(at).encode()) for at in range(300)])
    claimed = world.broker.claim("q", limit=300)
    assert [delivery.id for delivery in claimed] == ids
    assert [delivery.payload for delivery in claimed] == [str(at).encode() for at in range(300)]
