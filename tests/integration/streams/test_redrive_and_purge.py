"""Streams that are redriven, purged, deleted and drained."""

from __future__ import annotations

from fairlead import Complete, DeadFilter, Fail, NewMessage, Release
from tests.integration.streams.steps import claim, fill, run, settle
from tests.integration.world import World


def test_a_redriven_message_joins_the_tail_of_its_stream(world: World) -> None:
    fill(world, "a", "b")
    settle(world, Fail(claim(world)["a"], dead=True))
    assert world.broker.redrive("q").moved == 1
    fill(world, "c")
    order = []
    while held := claim(world):
        order += list(held)
        settle(world, *(Complete(delivery) for delivery in held.values()))
    assert order == ["b", "a", "c"]


def test_a_redriven_message_keeps_its_new_order_over_failures_and_restarts(world: World) -> None:
    fill(world, "a", "b")
    settle(world, Fail(claim(world)["a"], dead=True))
    world.broker.redrive("q", filter=DeadFilter(reason="unknown"))
    world.restart()
    settle(world, Complete(claim(world)["b"]))
    settle(world, Fail(claim(world)["a"]))
    fill(world, "c")
    world.restart()
    assert claim(world) == {}
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["a", "c"]


def test_dead_letters_of_a_stream_are_in_no_order_but_that_of_their_deaths(world: World) -> None:
    a, b = run(world, "a", "b")
    settle(world, Fail(b, dead=True))
    world.clock.advance(ms=1)
    settle(world, Fail(a, dead=True))
    held = world.broker.claim("q.dlq", limit=5)
    assert [(delivery.payload, delivery.stream) for delivery in held] == [(b"b", "s"), (b"a", "s")]


def test_quarantined_messages_join_their_stream_when_they_are_brought_back(world: World) -> None:
    world.broker.quarantine("q", [NewMessage(b"a", stream="s"), NewMessage(b"b", stream="s")])
    fill(world, "c")
    world.broker.redrive("q")
    assert list(claim(world, per_stream=5)) == ["c", "a", "b"]


def test_purge_takes_streams_whole_and_leaves_what_is_leased(world: World) -> None:
    fill(world, "a", "b", "c")
    fill(world, "x1", "x2", stream="x")
    held = claim(world, limit=1)
    settle(world, Fail(claim(world)["x1"]))
    assert world.broker.purge("q") == 4
    assert world.counts("q") == (0, 0, 1, 0)
    fill(world, "d")
    assert claim(world) == {}, "a is still being worked on"
    settle(world, Complete(held["a"]))
    assert list(claim(world)) == ["d"]


def test_delete_takes_streams_whole(world: World) -> None:
    fill(world, "a", "b", "c")
    fill(world, "x1", "x2", stream="x")
    claim(world)
    world.broker.delete_queue("q")
    world.restart()
    world.broker.create_queue("q")
    fill(world, "d")
    assert list(claim(world)) == ["d"]


def test_drain_takes_a_stream_in_order(world: World) -> None:
    fill(world, "a", "b", "c")
    assert [info.payload for info in world.broker.drain("q")] == [b"a", b"b", b"c"]
    assert world.counts("q") == (0, 0, 0, 0)
    fill(world, "d")
    assert list(claim(world)) == ["d"]


def test_drain_takes_what_is_ready_behind_a_blocker_too(world: World) -> None:
    a, b = run(world, "a", "b")
    settle(world, Fail(a), Release(b, keep_order=True))
    fill(world, "c")
    assert [info.payload for info in world.broker.drain("q")] == [b"b", b"c"]
    assert world.counts("q") == (0, 1, 0, 0)
    world.clock.advance(seconds=60)
    assert list(claim(world)) == ["a"]


def test_a_dedup_key_in_a_stream_adds_nothing_to_it(world: World) -> None:
    first = world.broker.enqueue("q", b"a", stream="s", dedup_key="d")
    assert world.broker.enqueue("q", b"again", stream="s", dedup_key="d") == first
    assert list(claim(world, per_stream=5)) == ["a"]
