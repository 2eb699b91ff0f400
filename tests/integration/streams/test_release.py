"""A release is the switch: who was let by, whom it passes, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Complete, Fail, Release, errors
from fairlead.model.delivery import Delivery
from tests.integration.streams.steps import claim, fill, run, settle
from tests.integration.world import World

MATRIX: list[tuple[str, Callable[[World, Delivery, Delivery], Any], bool]] = [
    (
        "failed and scheduled, the lease of M2 not cleared",
        lambda world, m1, m2: settle(world, Fail(m1)),
        False,
    ),
    (
        "failed and scheduled, M2 given back in order",
        lambda world, m1, m2: settle(world, Fail(m1), Release(m2, keep_order=True)),
        False,
    ),
    ("failed and scheduled, M2 released", lambda world, m1, m2: settle(world, Fail(m1), Release(m2)), True),
    (
        "failed and not scheduled (held), M2 released",
        lambda world, m1, m2: (world.broker.hold("q", [m1.id]), settle(world, Release(m2))),
        True,
    ),
    ("in the hands of a consumer", lambda world, m1, m2: settle(world, Release(m2)), False),
    ("completed", lambda world, m1, m2: settle(world, Complete(m1), Release(m2)), True),
]


@pytest.mark.parametrize("restart", [False, True], ids=["", "after a restart"])
@pytest.mark.parametrize(
    ("m1_then_m2", "claimable"), [row[1:] for row in MATRIX], ids=[row[0] for row in MATRIX]
)
def test_the_decision_matrix_of_the_seed(
    world: World, m1_then_m2: Callable[[World, Delivery, Delivery], Any], claimable: bool, restart: bool
) -> None:
    m1, m2 = run(world, "m1", "m2")
    m1_then_m2(world, m1, m2)
    if restart:
        world.restart()
    assert list(claim(world, consumer="another")) == (["m2"] if claimable else [])


def test_use_case_1_independent_events_go_on(world: World) -> None:
    created, address, email = run(world, "created", "address", "email")
    results = settle(world, Fail(created, reason="validation_failure"), Release(address), Release(email))
    assert results == [
        ("retry", "retry_in_stream.fixed"),
        ("released", "release.let_by"),
        ("released", "release.let_by"),
    ]
    held = claim(world, per_stream=5)
    assert list(held) == ["address", "email"]
    settle(world, *(Complete(delivery) for delivery in held.values()))
    assert world.counts("q") == (0, 1, 0, 0)
    world.clock.advance(seconds=60)
    assert list(claim(world)) == ["created"]


def test_use_case_2_one_goes_on_and_one_stays_behind(world: World) -> None:
    send, log, preferences = run(world, "send", "log", "preferences")
    settle(
        world, Fail(send, reason="transport_unavailable"), Release(log, keep_order=True), Release(preferences)
    )
    held = claim(world, per_stream=5)
    assert list(held) == ["preferences"]
    settle(world, Complete(held["preferences"]))
    assert claim(world) == {}
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["send", "log"]


def test_use_case_3_a_poison_message_is_set_aside_and_the_stream_goes_on(world: World) -> None:
    fill(world, "large", "m2", "m3", "m4")
    for _ in range(3):
        settle(world, *(Fail(delivery) for delivery in claim(world).values()))
        world.clock.advance(seconds=60)
    (large,) = claim(world).values()
    world.broker.bury("q", [large.id], reason="poison_message", error="exceeds memory")
    assert list(claim(world, per_stream=5)) == ["m2", "m3", "m4"]
    assert world.broker.peek("q.dlq")[0].failures[-1].error == "exceeds memory"


def test_the_order_of_items_in_a_settle_does_not_matter_to_the_switch(world: World) -> None:
    m1, m2, m3 = run(world, "m1", "m2", "m3")
    assert settle(world, Release(m3), Fail(m1), Release(m2)) == [
        ("released", "release.let_by"),
        ("retry", "retry_in_stream.fixed"),
        ("released", "release.let_by"),
    ]
    assert list(claim(world, per_stream=5)) == ["m2", "m3"]


def test_a_release_in_a_later_call_lets_by_as_well(world: World) -> None:
    m1, m2 = run(world, "m1", "m2")
    settle(world, Fail(m1))
    assert settle(world, Release(m2)) == [("released", "release.let_by")]
    assert list(claim(world)) == ["m2"]


def test_a_release_with_nothing_to_pass_keeps_order_and_says_so(world: World) -> None:
    m1, m2 = run(world, "m1", "m2")
    assert settle(world, Release(m1), Release(m2)) == [("released", "release.order_kept")] * 2
    held = claim(world, per_stream=5)
    assert list(held) == ["m1", "m2"]
    settle(world, Release(held["m2"], keep_order=True), Fail(held["m1"]))
    assert claim(world) == {}, "a release before the failure was no switch"


def test_a_release_outside_of_streams_says_nothing_about_order(world: World) -> None:
    fill(world, "x", stream=None)
    assert settle(world, Release(claim(world)["x"])) == [("released", "")]


def test_who_was_let_by_stays_so_over_failures_and_restarts(world: World) -> None:
    m1, m2 = run(world, "m1", "m2")
    settle(world, Fail(m1, retry_in="1h"), Release(m2))
    for _ in range(3):
        world.restart()
        held = claim(world)
        assert list(held) == ["m2"]
        settle(world, Fail(held["m2"], retry_in="1s"))
        assert claim(world) == {}
        world.clock.advance(seconds=1)


def test_who_comes_later_is_not_let_by(world: World) -> None:
    m1, m2 = run(world, "m1", "m2")
    settle(world, Fail(m1), Release(m2))
    fill(world, "m3")
    held = claim(world, per_stream=5)
    assert list(held) == ["m2"]
    settle(world, Complete(held["m2"]))
    assert claim(world) == {}
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["m1", "m3"]


def test_a_blocker_that_is_due_does_not_wait_for_who_was_let_by(world: World) -> None:
    m1, m2, m3 = run(world, "m1", "m2", "m3")
    settle(world, Fail(m1, retry_in="1s"), Release(m2), Release(m3))
    assert list(claim(world)) == ["m2"]
    assert claim(world) == {}, "m3 may pass m1, not m2"
    world.clock.advance(seconds=1)
    assert list(claim(world, per_stream=5)) == ["m1"], (
        "the stream was told to go on without it, so it goes on without the stream"
    )
    assert claim(world) == {}


def test_when_the_blocker_is_due_it_goes_first_again(world: World) -> None:
    m1, m2, m3 = run(world, "m1", "m2", "m3")
    settle(world, Fail(m1, retry_in="1s"), Release(m2), Release(m3))
    world.clock.advance(seconds=1)
    assert list(claim(world, per_stream=5)) == ["m1", "m2", "m3"]


def test_strict_makes_every_release_keep_order(world: World) -> None:
    world.broker.update_queue("q", ordering="strict")
    m1, m2 = run(world, "m1", "m2")
    assert settle(world, Fail(m1), Release(m2)) == [
        ("retry", "retry_in_stream.fixed"),
        ("released", "release.order_kept"),
    ]
    assert claim(world) == {}
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["m1", "m2"]


def test_none_ignores_streams(world: World) -> None:
    world.broker.update_queue("q", ordering="none")
    fill(world, "a", "b", "c")
    held = claim(world)
    assert list(held) == ["a", "b", "c"]
    assert {delivery.stream for delivery in held.values()} == {"s"}, "as data it is still there"
    settle(world, Fail(held["a"], retry_in="1h"), Release(held["b"]))
    assert list(claim(world)) == ["b"]


def test_whether_streams_order_at_all_changes_only_on_an_empty_queue(world: World) -> None:
    fill(world, "a", "b")
    world.broker.update_queue("q", ordering="strict")
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.update_queue("q", ordering="none")
    assert refused.value.field == "ordering"
    world.broker.purge("q")
    world.broker.update_queue("q", ordering="none")
    fill(world, "c", "d")
    assert list(claim(world)) == ["c", "d"]
    with pytest.raises(errors.InvalidRequest):
        world.broker.update_queue("q", ordering="release")


def test_at_most_a_thousand_single_messages_are_let_by(memory_world: World) -> None:
    world = memory_world
    names = [f"m{n}" for n in range(1003)]
    first, *others = run(world, *names)
    results = settle(world, Fail(first), *(Release(delivery) for delivery in others))
    assert [rule for _, rule in results[1:]] == ["release.let_by"] * 1000 + ["release.let_by_limit"] * 2
    world.restart()
    assert list(claim(world, limit=2000, per_stream=2000)) == names[1:1001]


def test_a_seat_among_those_let_by_is_free_again_when_one_is_done(memory_world: World) -> None:
    world = memory_world
    first, *others = run(world, *(f"m{n}" for n in range(1002)))
    settle(world, Fail(first), *(Release(delivery) for delivery in others[:1000]))
    (done,) = claim(world, limit=1).values()
    settle(world, Complete(done))
    assert settle(world, Release(others[1000])) == [("released", "release.let_by")]
