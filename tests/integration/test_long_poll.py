"""Claims that wait: for messages, for tokens, for time; and what ends them."""

from __future__ import annotations

import threading

import pytest

from fairlead import Complete, Fail, Release, errors
from fairlead.testing.engine import engine_lock, waiting_claims
from tests.integration.world import Background, World, wait_until, within_reach


def waiting_claim(world: World, queue: str | list[str] = "q", **options: object) -> Background:
    """A claim in a thread that has found nothing and waits."""
    first = queue if isinstance(queue, str) else queue[0]
    before = waiting_claims(world.broker, first)
    claim = Background(lambda: world.broker.claim(queue, **{"wait": "1h", **options}))  # type: ignore[arg-type]
    wait_until(lambda: waiting_claims(world.broker, first) > before)
    return claim


def test_a_waiting_claim_gets_a_message_when_it_is_enqueued(world: World) -> None:
    claim = waiting_claim(world, consumer="ann")
    assert world.broker.stats("q").consumers == 1
    message_id = world.fill("q", count=1)[0]
    assert [delivery.id for delivery in claim.result()] == [message_id]


def test_a_waiting_claim_returns_empty_when_its_time_is_up(world: World) -> None:
    claim = waiting_claim(world, wait="5s")
    world.clock.advance(ms=4999)
    assert not claim.done
    world.clock.advance(ms=1)
    assert claim.result() == []
    assert world.broker.stats("q").consumers == 0


def test_a_jump_of_the_wall_clock_does_not_end_a_wait(world: World) -> None:
    claim = waiting_claim(world, wait="5s")
    world.clock.jump(ms=10**9)
    assert not claim.done
    world.fill("q", count=1)
    assert len(claim.result()) == 1


def test_a_waiting_claim_gets_what_becomes_due(world: World) -> None:
    world.broker.enqueue("q", b"", delay="5s")
    claim = waiting_claim(world)
    world.clock.advance(seconds=5)
    assert len(claim.result()) == 1


def test_a_waiting_claim_gets_what_expires_fails_and_is_released(world: World) -> None:
    world.fill("q", count=1)
    held = world.claim_one("q")
    claim = waiting_claim(world)
    world.clock.advance(ms=30_000)
    (again,) = claim.result()
    assert (again.id, again.attempts) == (held.id, 1)
    for item in (Fail, Release):
        claim = waiting_claim(world)
        world.broker.settle([item(again)])
        (again,) = claim.result()
    assert again.deliveries == 4


def test_a_waiting_claim_gets_its_token_when_it_is_there(world: World) -> None:
    world.broker.config.set("throttle:api:burst", 1)
    world.broker.config.set("throttle:api:rate", 1)
    world.fill("q", throttle_keys=["api"], count=2)
    world.claim_one("q")
    claim = waiting_claim(world)
    world.clock.advance(ms=999)
    assert not claim.done
    world.clock.advance(ms=1)
    assert len(claim.result()) == 1


def test_a_waiting_claim_goes_on_when_a_throttle_is_lifted_or_a_queue_resumed(world: World) -> None:
    world.broker.config.set("throttle:api:rate", 0)
    world.fill("q", throttle_keys=["api"], count=3)
    world.claim_one("q")
    claim = waiting_claim(world)
    world.broker.config.delete("throttle:api:rate")
    assert len(claim.result()) == 1
    world.broker.pause("q")
    claim = waiting_claim(world)
    world.broker.resume("q")
    assert len(claim.result()) == 1


def test_a_claim_that_waits_on_a_paused_throttled_queue_leaves_the_broker_to_others(world: World) -> None:
    world.broker.config.set("throttle:api:burst", 1)
    world.broker.config.set("throttle:api:rate", 10)
    world.fill("q", throttle_keys=["api"], count=3)
    assert len(world.broker.claim("q", limit=3)) == 1
    world.broker.pause("q")
    within_reach(lambda: world.clock.advance(seconds=1))
    claim = waiting_claim(world)
    assert within_reach(lambda: world.broker.stats("q").ready) == 2
    within_reach(lambda: world.broker.resume("q"))
    assert len(claim.result()) == 1


def test_a_claim_that_waits_at_its_consumers_limit_on_a_throttled_queue_leaves_the_broker_to_others(
    world: World,
) -> None:
    world.broker.update_queue("q", max_unsettled_per_consumer=1)
    world.broker.config.set("throttle:api:burst", 1)
    world.broker.config.set("throttle:api:rate", 10)
    world.fill("q", throttle_keys=["api"], count=3)
    world.claim_one("q", consumer="ann")
    world.broker.claim("q", consumer="bob")
    within_reach(lambda: world.clock.advance(seconds=1))
    claim = waiting_claim(world, consumer="ann", wait="5s")
    assert within_reach(lambda: world.broker.stats("q").ready) == 2
    within_reach(lambda: world.clock.advance(seconds=5))
    assert claim.result() == []


def test_a_claim_waits_on_several_queues_at_once(world: World) -> None:
    world.broker.create_queue("r")
    claim = waiting_claim(world, ["q", "r"])
    world.fill("r", count=1)
    (delivery,) = claim.result()
    assert delivery.queue == "r"
    assert world.broker.stats("q").consumers == 0


def test_as_many_waiting_claims_go_on_as_there_are_messages(world: World) -> None:
    claims = [waiting_claim(world, consumer=f"c{at}") for at in range(4)]
    world.fill("q", count=3)
    wait_until(lambda: sum(claim.done for claim in claims) == 3)
    wait_until(lambda: world.broker.stats("q").consumers == 4)
    assert world.counts("q") == (0, 0, 3, 0)
    world.fill("q", count=1)
    got = [delivery.id for claim in claims for delivery in claim.result()]
    assert len(set(got)) == 4


def test_the_claim_that_waited_longest_is_served_first(world: World) -> None:
    claims = [waiting_claim(world) for _ in range(3)]
    for claim in claims:
        world.fill("q", count=1)
        assert len(claim.result()) == 1


def test_a_claim_woken_for_one_queue_that_takes_from_another_leaves_nobody_asleep_beside_a_message(
    world: World,
) -> None:
    world.broker.create_queue("r")
    both, only = waiting_claim(world, ["q", "r"]), waiting_claim(world, "r")
    with engine_lock(world.broker):
        # Both come in before the first claim gets to look: it was woken for r, and looks at q first.
        for name in ("r", "q"):
            world.broker.enqueue(name, name.encode())
    assert [delivery.payload for claim in (both, only) for delivery in claim.result()] == [b"q", b"r"]


def test_closing_the_broker_wakes_waiting_claims_with_an_error_and_keeps_leases(world: World) -> None:
    world.fill("q", count=1)
    held = world.claim_one("q")
    claims = [waiting_claim(world) for _ in range(3)]
    world.broker.close()
    for claim in claims:
        with pytest.raises(errors.BrokerClosed):
            claim.result()
    world.restart()
    assert world.broker.settle([Complete(held)])[0].outcome == "completed"


def test_interrupting_waits_ends_every_waiting_claim_empty_and_leaves_the_broker_open(world: World) -> None:
    world.broker.create_queue("r")
    claims = [
        waiting_claim(world),
        waiting_claim(world, ["r", "q"], token="t"),
        waiting_claim(world, consumer="ann"),
    ]
    world.broker.interrupt_waits()
    assert [claim.result() for claim in claims] == [[], [], []]
    assert [world.broker.stats(name).consumers for name in ("q", "r")] == [0, 0]
    world.fill("q", count=1)
    assert world.broker.settle([Complete(world.claim_one("q"))])[0].outcome == "completed"


def test_after_an_interrupt_a_claim_takes_what_is_there_and_does_not_wait(world: World) -> None:
    world.broker.interrupt_waits()
    world.broker.interrupt_waits()
    assert within_reach(lambda: world.broker.claim("q", wait="1h")) == []
    world.fill("q", count=1)
    assert len(within_reach(lambda: world.broker.claim("q", wait="1h"))) == 1


def test_an_interrupted_claim_takes_nothing_any_more_and_the_message_stays_for_others(world: World) -> None:
    claim = waiting_claim(world)
    with engine_lock(world.broker):
        # The message comes in before the claim gets to look, and so does the interrupt.
        world.broker.enqueue("q", b"m")
        world.broker.interrupt_waits()
    assert claim.result() == []
    assert world.counts("q") == (1, 0, 0, 0)


def test_interrupting_the_waits_of_a_closed_broker_is_fine(world: World) -> None:
    world.broker.close()
    world.broker.interrupt_waits()


def test_deleting_a_queue_wakes_its_waiting_claims_with_an_error(world: World) -> None:
    world.broker.create_queue("r")
    claim, both = waiting_claim(world), waiting_claim(world, ["r", "q"])
    world.broker.delete_queue("q")
    for waiting in (claim, both):
        with pytest.raises(errors.QueueNotFound):
            waiting.result()
    assert world.broker.stats("r").consumers == 0


def test_many_consumers_share_a_queue_without_taking_a_message_twice(world: World) -> None:
    world.fill("q", count=400)
    taken: list[str] = []
    lock = threading.Lock()

    def work(name: str) -> None:
        while claimed := world.broker.claim("q", limit=7, consumer=name):
            world.broker.settle([Complete(delivery) for delivery in claimed])
            with lock:
                taken.extend(delivery.id for delivery in claimed)

    workers = [Background(lambda at=at: work(f"c{at}")) for at in range(4)]  # type: ignore[misc]
    for worker in workers:
        worker.result()
    assert len(taken) == len(set(taken)) == 400
