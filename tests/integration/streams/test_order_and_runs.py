"""Streams are worked in order, one by one or in runs."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Complete, Fail, NewMessage, Release, errors
from tests.integration.streams.steps import claim, fill, run, settle
from tests.integration.world import World


def test_a_stream_goes_out_one_by_one_in_the_order_of_its_enqueues(world: World) -> None:
    fill(world, "a", "b")
    fill(world, "c")
    order = []
    while held := claim(world):
        assert len(held) == 1, "each holds up the next"
        order += list(held)
        settle(world, *(Complete(delivery) for delivery in held.values()))
        world.restart()
    assert order == ["a", "b", "c"]


def test_messages_of_one_call_keep_their_order_and_hold_each_other_up(world: World) -> None:
    fill(world, "a", "b")
    (first,) = claim(world).values()
    assert claim(world) == {}
    assert world.broker.find(first.id).where == "leased"
    assert settle(world, Complete(first)) == [("completed", "")]
    assert list(claim(world)) == ["b"]


def test_order_is_seq_and_not_the_clock(world: World) -> None:
    fill(world, "a")
    world.clock.jump(ms=-3_600_000)
    fill(world, "b")
    world.clock.jump(ms=7_200_000)
    fill(world, "c")
    held = claim(world, per_stream=3)
    assert list(held) == ["a", "b", "c"]
    seqs = [delivery.seq for delivery in held.values()]
    assert seqs == sorted(set(seqs))


def test_a_message_without_a_stream_is_held_up_by_nobody(world: World) -> None:
    fill(world, "a", "b")
    fill(world, "x", "y", stream=None)
    assert list(claim(world)) == ["a", "x", "y"]


def test_streams_do_not_hold_each_other_up(world: World) -> None:
    fill(world, "a1", "a2", stream="a")
    fill(world, "b1", "b2", stream="b")
    held = claim(world)
    assert list(held) == ["a1", "b1"]
    settle(world, Fail(held["a1"]), Complete(held["b1"]))
    assert list(claim(world)) == ["b2"]


def test_streams_of_two_queues_with_one_name_are_two_streams(world: World) -> None:
    world.broker.create_queue("other")
    fill(world, "a", "b")
    world.broker.enqueue("other", b"x", stream="s")
    assert list(claim(world)) == ["a"]
    assert [delivery.payload for delivery in world.broker.claim("other", limit=5)] == [b"x"]


@pytest.mark.parametrize("name", ["s", "a/b:c", "große Straße", "x" * 512, " "])
def test_a_stream_may_have_any_name(world: World, name: str) -> None:
    fill(world, "a", "b", stream=name)
    (held,) = claim(world).values()
    assert held.stream == name
    settle(world, Complete(held))
    world.restart()
    assert list(claim(world)) == ["b"]


@pytest.mark.parametrize("name", ["", "x" * 513, 5, b"s", "\ud800"])
def test_a_name_that_is_none_is_refused(world: World, name: Any) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.enqueue("q", b"", stream=name)
    assert refused.value.field == "stream"
    assert world.counts("q") == (0, 0, 0, 0)


# Runs


def test_a_claim_may_take_a_run_in_order(world: World) -> None:
    fill(world, "a", "b", "c", "d")
    assert list(claim(world, per_stream=3)) == ["a", "b", "c"]
    assert claim(world, per_stream=3) == {}, "the run holds up what is behind it"


def test_runs_of_several_streams_come_each_together(world: World) -> None:
    for stream in "ab":
        fill(world, f"{stream}1", f"{stream}2", f"{stream}3", stream=stream)
    fill(world, "x", stream=None)
    assert sorted(claim(world, per_stream=2)) == ["a1", "a2", "b1", "b2", "x"]


def test_a_limit_cuts_a_run(world: World) -> None:
    fill(world, "a", "b", "c")
    assert list(claim(world, limit=2, per_stream=10)) == ["a", "b"]


def test_settling_a_part_of_a_run_leaves_the_rest_in_order(world: World) -> None:
    a, b, c = run(world, "a", "b", "c")
    fill(world, "d")
    settle(world, Complete(a))
    assert claim(world) == {}, "b and c are still being worked on"
    settle(world, Complete(c), Complete(b))
    assert list(claim(world)) == ["d"]


def test_a_run_stops_before_a_message_that_waits(world: World) -> None:
    a, b, _c = run(world, "a", "b", "c")
    settle(world, Complete(a), Fail(b), Release(_c, keep_order=True))
    fill(world, "d")
    assert claim(world, per_stream=9) == {}
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=9)) == ["b", "c", "d"]


def test_a_run_ends_where_its_tokens_end(world: World) -> None:
    world.broker.config.set("throttle:t:burst", 2)
    world.broker.config.set("throttle:t:rate", 1)
    fill(world, "a", "b", "c", throttle_keys=["t"])
    held = claim(world, per_stream=9)
    assert list(held) == ["a", "b"]
    settle(world, *(Complete(delivery) for delivery in held.values()))
    assert claim(world) == {}
    world.clock.advance(seconds=1)
    assert list(claim(world)) == ["c"]


def test_a_run_is_paid_for_out_of_the_share_of_its_key(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"run", fairness_key="a", stream="s") for _ in range(60)])
    world.broker.enqueue_many("q", [NewMessage(b"single", fairness_key="b") for _ in range(60)])
    taken: list[str] = []
    while len(taken) < 60:
        held = world.broker.claim("q", limit=6, max_per_stream=5)
        taken += [delivery.fairness_key for delivery in held]
        world.broker.settle([Complete(delivery) for delivery in held])
    assert 24 <= taken[:60].count("a") <= 36, "a long run must not beat a key of the same weight"


def test_a_run_with_weights_keeps_to_them(world: World) -> None:
    world.broker.enqueue_many(
        "q", [NewMessage(b"", fairness_key="a", weight=3, stream=f"s{n % 4}") for n in range(120)]
    )
    world.broker.enqueue_many(
        "q", [NewMessage(b"", fairness_key="b", weight=1, stream=f"t{n % 4}") for n in range(120)]
    )
    taken: list[str] = []
    while len(taken) < 80:
        held = world.broker.claim("q", limit=8, max_per_stream=4)
        taken += [delivery.fairness_key for delivery in held]
        world.broker.settle([Complete(delivery) for delivery in held])
    assert 52 <= taken[:80].count("a") <= 68
