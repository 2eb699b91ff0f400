"""Streams in the turns of their keys, and short of tokens."""

from __future__ import annotations

from fairlead import Complete, Fail, NewMessage
from tests.integration.streams.steps import claim, fill, settle
from tests.integration.world import World


def test_a_stream_keeps_the_key_of_the_message_that_opened_it(world: World) -> None:
    fill(world, "a", fairness_key="ann")
    fill(world, "b", fairness_key="bob")
    held = claim(world, per_stream=5)
    assert [delivery.fairness_key for delivery in held.values()] == ["ann", "ann"]
    settle(world, *(Complete(delivery) for delivery in held.values()))
    fill(world, "c", fairness_key="bob")
    assert claim(world)["c"].fairness_key == "bob", "it was empty in between"


def test_messages_of_one_call_are_bound_to_the_key_of_the_first(world: World) -> None:
    world.broker.enqueue_many(
        "q",
        [NewMessage(b"a", fairness_key="ann", stream="s"), NewMessage(b"b", fairness_key="bob", stream="s")],
    )
    assert [delivery.fairness_key for delivery in claim(world, per_stream=5).values()] == ["ann", "ann"]


def test_a_message_that_comes_back_joins_the_key_its_stream_has_now(world: World) -> None:
    fill(world, "a", fairness_key="ann")
    settle(world, Fail(claim(world)["a"], dead=True))
    fill(world, "b", fairness_key="bob")
    world.broker.redrive("q")
    world.restart()
    held = claim(world, per_stream=5)
    assert {name: delivery.fairness_key for name, delivery in held.items()} == {"b": "bob", "a": "bob"}


def test_a_blocked_stream_leaves_its_key_to_the_others(world: World) -> None:
    fill(world, "a1", "a2", stream="a", fairness_key="k")
    settle(world, Fail(claim(world)["a1"]))
    fill(world, "b1", "b2", stream="b", fairness_key="k")
    fill(world, "c1", "c2", stream=None, fairness_key="other")
    assert sorted(claim(world)) == ["b1", "c1", "c2"]


def test_a_key_whose_streams_are_all_blocked_hoards_nothing(world: World) -> None:
    for stream in "ab":
        world.broker.enqueue_many(
            "q", [NewMessage(b"blocked", fairness_key="k", stream=stream) for _ in range(20)]
        )
    world.broker.settle([Fail(delivery) for delivery in world.broker.claim("q", limit=9)])
    assert [key.key for key in world.broker.stats("q", keys=True).keys] == []
    world.broker.enqueue_many("q", [NewMessage(b"free", fairness_key="other") for _ in range(60)])
    for _ in range(20):
        assert [delivery.fairness_key for delivery in world.broker.claim("q", limit=1)] == ["other"]
    world.clock.advance(seconds=60)
    taken = []
    for _ in range(12):
        (delivery,) = world.broker.claim("q", limit=1)
        world.broker.settle([Complete(delivery)])
        taken.append(delivery.fairness_key)
    assert taken.count("k") == 6, "its share from now on, nothing saved up"


def test_a_throttled_head_does_not_hold_up_another_stream_of_its_key(world: World) -> None:
    world.broker.config.set("throttle:slow:rate", 1)
    world.broker.config.set("throttle:slow:burst", 1)
    fill(world, "a1", "a2", stream="a", throttle_keys=["slow"])
    fill(world, "b1", "b2", stream="b")
    assert list(claim(world)) == ["a1", "b1"]
    fill(world, "c1", "c2", stream="c", throttle_keys=["slow"])
    fill(world, "d1", stream="d")
    assert list(claim(world)) == ["d1"]
    world.clock.advance(seconds=1)
    assert list(claim(world)) == ["c1"]


def test_a_throttled_head_holds_up_its_own_stream(world: World) -> None:
    world.broker.config.set("throttle:slow:rate", 0)
    fill(world, "a1", stream="a", throttle_keys=["slow"])
    fill(world, "a2", stream="a")
    world.broker.config.set("throttle:slow:burst", 1)
    assert len(claim(world)) <= 1
    assert claim(world) == {}
