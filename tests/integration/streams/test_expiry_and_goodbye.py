"""Expiry, goodbye and shutdown keep order."""

from __future__ import annotations

import random

from fairlead import Complete, Extend, Fail, Release, Start
from fairlead.model.delivery import Delivery
from tests.integration.streams.steps import claim, fill, run, settle
from tests.integration.world import World


def test_expiry_in_a_run_fails_only_the_first_unsettled(world: World) -> None:
    a, _b, _c = run(world, "a", "b", "c")
    settle(world, Complete(a))
    world.clock.advance(seconds=30)
    assert world.counts("q") == (1, 1, 0, 0)
    assert [world.broker.find(delivery.id).attempts for delivery in (_b, _c)] == [1, 0]
    assert claim(world) == {}, "expiry keeps order"
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["b", "c"]


def test_expiry_of_several_runs_fails_the_first_of_each(world: World) -> None:
    for stream in "ab":
        fill(world, f"{stream}1", f"{stream}2", stream=stream)
    held = claim(world, per_stream=2)
    world.clock.advance(seconds=30)
    assert {name: world.broker.find(delivery.id).attempts for name, delivery in held.items()} == {
        "a1": 1,
        "a2": 0,
        "b1": 1,
        "b2": 0,
    }


def test_an_unstarted_run_goes_back_whole(world: World) -> None:
    fill(world, "a", "b")
    claim(world, per_stream=2, started=False)
    world.clock.advance(seconds=30)
    held = claim(world, per_stream=2)
    assert {name: delivery.attempts for name, delivery in held.items()} == {"a": 0, "b": 0}


def test_of_an_unstarted_run_the_started_one_fails(world: World) -> None:
    fill(world, "a", "b")
    held = claim(world, per_stream=2, started=False)
    settle(world, Start(held["a"]))
    world.clock.advance(seconds=30)
    assert [world.broker.find(delivery.id).attempts for delivery in held.values()] == [1, 0]


def test_when_the_head_of_a_run_was_extended_the_rest_goes_back_without_a_failure(world: World) -> None:
    a, b = run(world, "a", "b")
    settle(world, Extend(a, "1h"))
    world.clock.advance(seconds=30)
    assert world.broker.find(b.id).attempts == 0
    assert claim(world) == {}
    settle(world, Complete(a))
    assert list(claim(world)) == ["b"]


def test_a_goodbye_keeps_order(world: World) -> None:
    fill(world, "a", "b", "c")
    held = claim(world, per_stream=3, consumer="ann")
    settle(world, Fail(held["a"]))
    assert world.broker.goodbye("ann") == 2
    assert claim(world) == {}, "nobody said: go on without it"
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["a", "b", "c"]


def test_leases_of_a_run_survive_a_restart(world: World) -> None:
    a, b = run(world, "a", "b")
    fill(world, "c")
    world.restart()
    assert claim(world) == {}
    assert settle(world, Complete(a), Complete(b)) == [("completed", "")] * 2
    assert list(claim(world)) == ["c"]


def test_no_claim_gets_a_message_while_an_earlier_one_of_its_stream_is_out(world: World) -> None:
    """Random traffic; after every step no lease is younger than another claim's lease on an earlier message."""
    chance = random.Random(11)
    held: list[Delivery] = []
    claimed_in: dict[str, int] = {}
    for step in range(300):
        match chance.randrange(5):
            case 0:
                fill(world, f"m{step}", stream=chance.choice("ab"))
            case 1:
                taken = world.broker.claim(
                    "q", limit=chance.randint(1, 4), max_per_stream=chance.randint(1, 3)
                )
                held += taken
                claimed_in.update((delivery.id, step) for delivery in taken)
            case 2 | 3 if held:
                delivery = held.pop(chance.randrange(len(held)))
                world.broker.settle([chance.choice([Complete, Fail, Release])(delivery)])
            case 4:
                world.clock.advance(seconds=chance.choice([1, 31, 61]))
        claims: dict[str | None, list[int]] = {}
        leased = world.broker.peek("q", where="leased", limit=1000)
        for info in sorted(leased, key=lambda info: info.seq):
            claims.setdefault(info.stream, []).append(claimed_in[info.id])
        assert all(order == sorted(order, reverse=True) for order in claims.values())


def test_two_claims_of_one_message_each_never_hold_the_same_stream(world: World) -> None:
    for stream in "abc":
        fill(world, *(f"{stream}{n}" for n in range(5)), stream=stream)
    held: dict[str, Delivery] = {}
    chance = random.Random(3)
    while world.counts("q") != (0, 0, 0, 0):
        for delivery in world.broker.claim("q", limit=chance.randint(1, 2)):
            assert delivery.stream not in held
            held[delivery.stream or ""] = delivery
        delivery = held.pop(chance.choice(sorted(held)))
        world.broker.settle(
            [chance.choice([Complete(delivery), Release(delivery), Fail(delivery, retry_in="0s")])]
        )
