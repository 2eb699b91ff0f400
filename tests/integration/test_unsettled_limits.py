"""How many messages a consumer, or a key, may have in hand at once."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Complete, Fail, Release
from fairlead.testing.engine import waiting_claims
from tests.integration.world import Background, World, wait_until


def test_a_consumer_gets_no_more_than_its_limit_until_it_settles(world: World) -> None:
    world.broker.update_queue("q", max_unsettled_per_consumer=3)
    world.fill("q", count=10)
    held = world.broker.claim("q", limit=2, consumer="ann")
    held += world.broker.claim("q", limit=10, consumer="ann")
    assert len(held) == 3
    assert world.broker.claim("q", limit=10, consumer="ann") == []
    assert len(world.broker.claim("q", limit=10, consumer="bob")) == 3
    world.broker.settle([Complete(held[0]), Fail(held[1])])
    assert len(world.broker.claim("q", limit=10, consumer="ann")) == 2


def test_the_limit_of_a_consumer_is_per_queue_and_known_after_a_restart(world: World) -> None:
    world.broker.update_queue("q", max_unsettled_per_consumer=2)
    world.broker.create_queue("r")
    world.fill("q", count=5)
    world.fill("r", count=5)
    world.broker.claim("q", limit=2, consumer="ann")
    world.restart()
    assert world.broker.claim("q", limit=5, consumer="ann") == []
    assert {delivery.queue for delivery in world.broker.claim(["q", "r"], limit=5, consumer="ann")} == {"r"}
    world.clock.advance(ms=30_000)
    assert len(world.broker.claim("q", limit=5, consumer="ann")) == 2, "expiry frees it as well"


SETTLED: dict[str, Any] = {
    "by completing": lambda world, delivery: world.broker.settle([Complete(delivery)]),
    "by failing": lambda world, delivery: world.broker.settle([Fail(delivery)]),
    "by releasing": lambda world, delivery: world.broker.settle([Release(delivery)]),
    "by burying": lambda world, delivery: world.broker.settle([Fail(delivery, dead=True)]),
    "by expiry": lambda world, delivery: world.clock.advance(ms=30_000),
    "by goodbye": lambda world, delivery: world.broker.goodbye("ann"),
}


@pytest.mark.parametrize("settle", SETTLED.values(), ids=SETTLED.keys())
def test_a_key_at_its_limit_is_passed_over_until_one_of_its_messages_is_settled(
    world: World, settle: Any
) -> None:
    world.broker.update_queue("q", max_unsettled_per_key=1)
    world.fill("q", key="a", count=3)
    world.fill("q", key="b", count=1)
    held = world.claim_one("q", consumer="ann")
    assert held.fairness_key == "a"
    assert [delivery.fairness_key for delivery in world.broker.claim("q", limit=10, consumer="bob")] == ["b"]
    assert world.broker.claim("q", limit=10) == []
    settle(world, held)
    again = world.broker.claim("q", limit=10)
    assert [delivery.fairness_key for delivery in again].count("a") == 1


def test_the_limit_of_a_key_holds_within_one_claim_and_over_a_restart(world: World) -> None:
    world.broker.update_queue("q", max_unsettled_per_key=2)
    for key in ("a", "b"):
        world.fill("q", key=key, weight=10, count=5)
    claimed = world.broker.claim("q", limit=100)
    assert sorted(delivery.fairness_key for delivery in claimed) == ["a", "a", "b", "b"]
    world.restart()
    assert world.broker.claim("q", limit=100) == []
    world.broker.settle([Complete(claimed[0])])
    assert [delivery.fairness_key for delivery in world.broker.claim("q", limit=100)] == [
        claimed[0].fairness_key
    ]


def test_a_limit_of_a_key_can_be_set_and_lifted_while_messages_are_in_hand(world: World) -> None:
    world.fill("q", key="a", count=6)
    held = world.broker.claim("q", limit=2)
    world.broker.update_queue("q", max_unsettled_per_key=2)
    assert world.broker.claim("q", limit=5) == []
    world.broker.settle([Complete(held[0])])
    assert len(world.broker.claim("q", limit=5)) == 1
    world.broker.update_queue("q", max_unsettled_per_key=None)
    assert len(world.broker.claim("q", limit=5)) == 3


def test_a_throttled_key_at_its_limit_leaves_its_tokens_to_others(world: World) -> None:
    world.broker.update_queue("q", max_unsettled_per_key=1)
    world.broker.config.set("throttle:api:burst", 1)
    world.broker.config.set("throttle:api:rate", 10)
    for key in ("a", "b"):
        world.fill("q", key=key, throttle_keys=["api"], count=5)
    got = []
    for _ in range(4):
        got += [delivery.fairness_key for delivery in world.broker.claim("q", limit=5)]
        world.clock.advance(ms=100)
    assert got == ["a", "b"]


def test_a_waiting_claim_of_a_consumer_at_its_limit_goes_on_when_the_consumer_settles(world: World) -> None:
    world.broker.update_queue("q", max_unsettled_per_consumer=1)
    world.fill("q", count=2)
    held = world.claim_one("q", consumer="ann")
    waiting = Background(lambda: world.broker.claim("q", wait="1h", consumer="ann"))
    wait_until(lambda: waiting_claims(world.broker, "q") == 1)
    world.broker.settle([Complete(held)])
    assert len(waiting.result()) == 1


def test_a_message_goes_to_a_consumer_that_may_have_it_though_another_one_waits_longer(world: World) -> None:
    world.broker.update_queue("q", max_unsettled_per_consumer=1)
    world.fill("q", count=1)
    world.claim_one("q", consumer="ann")
    full = Background(lambda: world.broker.claim("q", wait="20s", consumer="ann"))
    wait_until(lambda: waiting_claims(world.broker, "q") == 1)
    free = Background(lambda: world.broker.claim("q", wait="20s", consumer="bob"))
    wait_until(lambda: world.broker.stats("q").consumers == 2)
    world.fill("q", count=1)
    assert len(free.result()) == 1
    world.clock.advance(seconds=20)
    assert full.result() == []
