"""An operator lets a stream go on past what waits at its head."""

from __future__ import annotations

import pytest

from fairlead import Complete, Fail, Release, errors
from tests.integration.streams.steps import claim, fill, run, settle
from tests.integration.world import World


@pytest.mark.parametrize("state", ["waiting", "held", "delayed"])
def test_an_operator_lets_all_pass_the_one_that_waits(world: World, state: str) -> None:
    if state == "delayed":
        world.broker.enqueue("q", b"m1", stream="s", delay="1m")
        fill(world, "m2", "m3")
    else:
        m1, m2, m3 = run(world, "m1", "m2", "m3")
        settle(
            world,
            Release(m2, keep_order=True),
            Release(m3, keep_order=True),
            *([Fail(m1)] if state == "waiting" else []),
        )
        if state == "held":
            world.broker.hold("q", [m1.id])
    assert claim(world) == {}
    assert world.broker.release_stream("q", "s") is True
    world.restart()
    fill(world, "m4")
    held = claim(world, per_stream=5)
    assert list(held) == ["m2", "m3", "m4"], "also those that come later"
    settle(world, *(Complete(delivery) for delivery in held.values()))
    if state != "held":
        world.clock.advance(seconds=60)
        assert list(claim(world)) == ["m1"]


def test_an_operators_release_is_over_with_the_message_it_was_about(world: World) -> None:
    m1, m2 = run(world, "m1", "m2")
    settle(world, Fail(m1), Release(m2, keep_order=True))
    world.broker.release_stream("q", "s")
    world.clock.advance(seconds=60)
    settle(world, Complete(claim(world)["m1"]))
    settle(world, Fail(claim(world)["m2"]))
    fill(world, "m3")
    assert claim(world) == {}, "order is back for the next blocker"


def test_a_run_past_the_released_blocker_stops_at_the_next_one(world: World) -> None:
    m1, m2, m3, m4 = run(world, "m1", "m2", "m3", "m4")
    settle(world, Fail(m1), Fail(m2), Release(m3), Release(m4, keep_order=True))
    world.broker.release_stream("q", "s")
    assert list(claim(world, per_stream=5)) == ["m3"], "m4 may pass m1, but nobody said that it may pass m2"


@pytest.mark.parametrize("restart", [False, True], ids=["", "with a restart in between"])
def test_releasing_a_stream_again_passes_the_next_message_that_waits(world: World, restart: bool) -> None:
    m1, m2, m3, m4, m5 = run(world, "m1", "m2", "m3", "m4", "m5")
    settle(
        world,
        *(Fail(blocker) for blocker in (m1, m2, m3)),
        *(Release(delivery, keep_order=True) for delivery in (m4, m5)),
    )
    for _ in range(2):
        assert world.broker.release_stream("q", "s") is True
        assert claim(world) == {}, "another one waits"
        if restart:
            world.restart()
    assert world.broker.release_stream("q", "s") is True
    fill(world, "m6")
    assert list(claim(world, per_stream=5)) == ["m4", "m5", "m6"]


def test_releasing_a_stream_again_takes_nothing_back_from_the_message_that_is_passed(world: World) -> None:
    m1, m2, m3 = run(world, "m1", "m2", "m3")
    settle(world, Fail(m1), Fail(m2), Release(m3, keep_order=True))
    world.broker.hold("q", [m1.id])
    for _ in range(2):
        world.broker.release_stream("q", "s")
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["m2", "m3"], (
        "the first release was about m1, and it still counts"
    )


def test_releasing_a_stream_that_goes_on_changes_nothing(world: World) -> None:
    m1, m2, m3 = run(world, "m1", "m2", "m3")
    settle(world, Fail(m1), Release(m2, keep_order=True), Release(m3, keep_order=True))
    world.broker.release_stream("q", "s")
    before = world.store.last_commit
    assert world.broker.release_stream("q", "s") is True
    assert world.store.last_commit == before
    assert list(claim(world)) == ["m2"]
    assert world.broker.release_stream("q", "s") is True
    assert claim(world) == {}, "nobody passes work in progress"


def test_a_release_that_is_over_lets_no_run_pass(world: World) -> None:
    m1, m2, m3, m4 = run(world, "m1", "m2", "m3", "m4")
    settle(world, Fail(m1), *(Release(delivery, keep_order=True) for delivery in (m2, m3, m4)))
    world.broker.release_stream("q", "s")
    world.clock.advance(seconds=60)
    held = claim(world, per_stream=5)
    settle(
        world,
        Complete(held["m1"]),
        Fail(held["m2"]),
        Release(held["m3"]),
        Release(held["m4"], keep_order=True),
    )
    assert list(claim(world, per_stream=5)) == ["m3"]


def test_there_is_nothing_to_release_where_nothing_waits(world: World) -> None:
    fill(world, "a", "b")
    assert world.broker.release_stream("q", "s") is False
    claim(world)
    assert world.broker.release_stream("q", "s") is False, "nobody passes work in progress"
    with pytest.raises(errors.QueueNotFound):
        world.broker.release_stream("none", "s")


def test_releasing_a_stream_that_does_not_exist_is_an_error(world: World) -> None:
    world.broker.enqueue("q", b"", stream="s")
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.release_stream("q", "t")
    assert (refused.value.field, refused.value.got) == ("stream", "t")
