"""What holds up the rest of a stream, and what does not."""

from __future__ import annotations

import pytest

from fairlead import Complete, Extend, Fail, Release
from tests.integration.streams.steps import claim, fill, run, settle
from tests.integration.world import World


def test_a_lease_holds_up_the_rest_whoever_asks(world: World) -> None:
    fill(world, "a", "b")
    claim(world, consumer="ann")
    assert claim(world, consumer="ann") == {}
    assert claim(world, consumer="bob") == {}


def test_a_scheduled_retry_holds_up_the_rest_and_time_lets_them_go(world: World) -> None:
    a, b = run(world, "a", "b")
    assert settle(world, Fail(a), Release(b, keep_order=True)) == [
        ("retry", "retry_in_stream.fixed"),
        ("released", "release.order_kept"),
    ]
    world.clock.advance(ms=59_999)
    assert claim(world) == {}
    world.clock.advance(ms=1)
    held = claim(world, per_stream=2)
    assert list(held) == ["a", "b"]
    assert (held["a"].attempts, held["b"].attempts) == (1, 0)


def test_an_immediate_retry_keeps_its_place_in_the_stream(world: World) -> None:
    world.broker.update_queue("q", retry_in_stream="immediate")
    fill(world, "a", "b")
    seqs = []
    for _ in range(3):
        (held,) = claim(world).values()
        assert held.payload == b"a"
        seqs.append(held.seq)
        settle(world, Fail(held))
    assert len(set(seqs)) == 1


def test_a_delayed_message_holds_up_those_behind_it(world: World) -> None:
    world.broker.enqueue("q", b"a", stream="s", delay="10s")
    fill(world, "b")
    assert claim(world) == {}
    world.restart()
    assert claim(world) == {}
    world.clock.advance(seconds=10)
    assert list(claim(world, per_stream=5)) == ["a", "b"]


def test_a_delay_in_the_middle_does_not_hold_up_those_before_it(world: World) -> None:
    fill(world, "a")
    world.broker.enqueue("q", b"b", stream="s", delay="10s")
    fill(world, "c")
    held = claim(world, per_stream=5)
    assert list(held) == ["a"]
    settle(world, Complete(held["a"]))
    assert claim(world, per_stream=5) == {}
    world.clock.advance(seconds=10)
    assert list(claim(world, per_stream=5)) == ["b", "c"]


@pytest.mark.parametrize("verb", ["drop", "done", "bury"])
@pytest.mark.parametrize("state", ["waiting", "leased", "held"])
def test_a_head_that_is_taken_away_unblocks(world: World, verb: str, state: str) -> None:
    a, b = run(world, "a", "b")
    settle(world, Release(b, keep_order=True))
    if state == "waiting":
        settle(world, Fail(a))
    if state == "held":
        world.broker.hold("q", [a.id])
    assert claim(world) == {}
    assert getattr(world.broker, verb)("q", [a.id]).changed == (a.id,)
    assert list(claim(world)) == ["b"]
    assert claim(world) == {}


def test_a_dead_message_unblocks_at_once(world: World) -> None:
    a, b = run(world, "a", "b")
    settle(world, Release(b, keep_order=True), Fail(a, dead=True))
    assert list(claim(world)) == ["b"]


def test_the_ceiling_unblocks(world: World) -> None:
    world.broker.update_queue("q", max_attempts=2)
    fill(world, "a", "b")
    for _ in range(2):
        (held,) = claim(world).values()
        settle(world, Fail(held))
        world.clock.advance(seconds=60)
    assert list(claim(world)) == ["b"]


def test_a_time_to_live_that_ends_unblocks(world: World) -> None:
    (a,) = fill(world, "a", ttl="30s")
    fill(world, "b")
    world.broker.hold("q", [a])
    assert claim(world) == {}
    world.clock.advance(seconds=30)
    assert list(claim(world)) == ["b"]
    assert world.counts("q") == (0, 0, 1, 0)


def test_a_time_to_live_ends_behind_the_front_too(world: World) -> None:
    fill(world, "a")
    fill(world, "b", ttl="30s")
    fill(world, "c")
    (held,) = claim(world).values()
    settle(world, Extend(held, "1h"))
    world.clock.advance(seconds=30)
    assert world.counts("q") == (1, 0, 1, 0)
    settle(world, Complete(held))
    assert list(claim(world)) == ["c"]


def test_a_time_to_live_that_ends_can_make_dead_letters_out_of_a_stream(world: World) -> None:
    world.broker.update_queue("q", expired_to_dead=True)
    fill(world, "a", "b", ttl="30s")
    fill(world, "c")
    world.clock.advance(seconds=30)
    assert world.counts("q") == (1, 0, 0, 2)
    assert list(claim(world)) == ["c"]
