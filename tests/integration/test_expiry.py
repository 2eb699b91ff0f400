"""Expiry runs on its own time, once, and traffic cannot starve it; a restart keeps what still runs."""

from __future__ import annotations

import pytest

from fairlead import Complete, Fail, Release, Settings
from fairlead.clock import SystemClock
from fairlead.testing import open_in_memory
from tests.integration.world import World, wait_until


def test_expiry_is_not_starved_by_steady_traffic(world: World) -> None:
    world.fill("q", key="stuck", count=3)
    stuck = {delivery.id for delivery in world.broker.claim("q", limit=3, consumer="gone")}
    back: list[str] = []
    for _ in range(400):
        world.fill("q", key="busy", count=2)
        claimed = world.broker.claim("q", limit=2)
        back += [delivery.id for delivery in claimed if delivery.fairness_key == "stuck"]
        world.broker.settle([Complete(delivery) for delivery in claimed])
        world.clock.advance(ms=100)
    assert sorted(back) == sorted(stuck), "each of them came back once, and was completed"


def test_a_claim_finds_expired_leases_though_no_timer_ran(world: World) -> None:
    world.fill("q", count=1)
    first = world.claim_one("q")
    world.clock._wall_ms += 30_000
    world.clock._monotonic_ms += 30_000
    assert world.claim_one("q").id == first.id


def test_two_queues_with_different_timeouts_expire_on_their_own(world: World) -> None:
    world.broker.create_queue("quick", visibility_timeout="1s")
    world.fill("q", count=1)
    world.fill("quick", count=1)
    world.broker.claim(["q", "quick"], limit=2)
    world.clock.advance(seconds=1)
    assert (world.counts("q")[2], world.counts("quick")[2]) == (1, 0)


def test_a_settled_delivery_does_not_expire(world: World) -> None:
    world.fill("q", count=3)
    a, b, c = world.broker.claim("q", limit=3)
    world.broker.settle([Complete(a), Fail(b, retry_in="1h"), Release(c)])
    world.clock.advance(seconds=60)
    assert world.counts("q") == (1, 1, 0, 0)
    assert world.claim_one("q").attempts == 0


def test_more_leases_than_one_step_expire_in_one_go(world: World) -> None:
    world.fill("q", count=2500)
    for _ in range(5):
        world.broker.claim("q", limit=500)
    world.clock.advance(ms=30_000)
    assert world.counts("q") == (2500, 0, 0, 0)
    assert {delivery.attempts for delivery in world.broker.claim("q", limit=2500)} == {1}


def test_a_restart_keeps_unexpired_leases_and_their_tokens_settle_after_it(world: World) -> None:
    world.fill("q", count=4)
    a, b, c, d = world.broker.claim("q", limit=4, consumer="ann")
    world.restart(away_ms=29_000)
    assert world.broker.claim("q", limit=10) == []
    assert [result.outcome for result in world.broker.settle([Complete(a), Fail(b), Release(c)])] == [
        "completed",
        "retry",
        "released",
    ]
    world.clock.advance(ms=1000)
    assert world.broker.settle([Complete(d)])[0].outcome == "lost_lease"
    (last,) = [info for info in world.broker.peek("q") if info.id == d.id]
    assert [(failure.reason, failure.consumer) for failure in last.failures] == [(4, "ann")]


def test_expired_leases_go_the_failure_road_once_after_a_restart(world: World) -> None:
    world.broker.update_queue("q", retry={"policy": "immediate", "attempts": 3})
    world.fill("q", count=5)
    world.broker.claim("q", limit=5)
    for _ in range(3):
        world.restart(away_ms=60_000)
        world.broker.run_due()
    assert {delivery.attempts for delivery in world.broker.claim("q", limit=10)} == {1}


def test_a_lease_that_ends_in_the_same_instant_as_the_reopen_is_over(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.restart(away_ms=30_000)
    world.broker.run_due()
    assert world.broker.settle([Complete(delivery)])[0].outcome == "lost_lease"


@pytest.mark.parametrize("work", ["lease", "delay", "ttl"])
def test_with_a_clock_that_ticks_a_thread_of_its_own_does_what_is_due(work: str) -> None:
    with open_in_memory(clock=SystemClock(), settings=Settings()) as broker:
        broker.create_queue("q", visibility_timeout="100ms")
        if work == "lease":
            broker.enqueue("q", b"")
            broker.claim("q")
            wait_until(lambda: broker.stats("q").ready == 1)
        elif work == "delay":
            broker.enqueue("q", b"", delay="50ms")
            wait_until(lambda: broker.stats("q").ready == 1)
        else:
            broker.enqueue("q", b"", ttl="50ms")
            wait_until(lambda: broker.stats("q").ready == 0)
        assert broker.stats("q").ready == (0 if work == "ttl" else 1)
