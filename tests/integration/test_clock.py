"""Steps of the wall clock: leases and buckets follow steady time, and nothing is lost. What waits is in
test_clock_steps.py.
"""

from __future__ import annotations

import pytest

from fairlead import Complete, Extend, Fail
from tests.integration.world import World

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
JUMPS = {
    "an hour ahead": HOUR,
    "an hour back": -HOUR,
    "ten years ahead": 10 * YEAR,
    "ten years back": -10 * YEAR,
}

jumps = pytest.mark.parametrize("jump_ms", JUMPS.values(), ids=JUMPS.keys())


@jumps
def test_no_lease_that_still_runs_expires_early_nor_late(world: World, jump_ms: int) -> None:
    world.fill("q", count=2)
    kept, lost = world.broker.claim("q", limit=2)
    world.clock.advance(ms=10_000)
    world.clock.jump(ms=jump_ms)
    world.clock.advance(ms=19_999)
    assert world.counts("q") == (0, 0, 2, 0)
    assert world.broker.settle([Complete(kept)])[0].outcome == "completed"
    world.clock.advance(ms=1)
    assert world.counts("q") == (1, 0, 0, 0)
    assert world.broker.settle([Complete(lost)])[0].outcome == "lost_lease"


@jumps
def test_an_extended_lease_runs_as_long_as_it_was_extended_for(world: World, jump_ms: int) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.clock.jump(ms=jump_ms)
    world.broker.settle([Extend(delivery, "60s")])
    world.clock.jump(ms=-jump_ms)
    world.clock.advance(ms=59_999)
    assert world.counts("q") == (0, 0, 1, 0)
    world.clock.advance(ms=1)
    assert world.counts("q") == (1, 0, 0, 0)


@jumps
def test_no_bucket_exceeds_its_burst_and_none_stops_filling(world: World, jump_ms: int) -> None:
    world.broker.config.set("throttle:api:burst", 2)
    world.broker.config.set("throttle:api:rate", 10)
    world.fill("q", throttle_keys=["api"], count=20)
    assert len(world.broker.claim("q", limit=20)) == 2
    world.clock.jump(ms=jump_ms)
    assert world.broker.claim("q", limit=20) == []
    world.clock.advance(ms=100)
    assert len(world.broker.claim("q", limit=20)) == 1


@jumps
def test_messages_enqueued_after_a_jump_come_after_the_earlier_ones(world: World, jump_ms: int) -> None:
    ids = world.fill("q", count=3)
    world.clock.jump(ms=jump_ms)
    ids += world.fill("q", count=3)
    world.restart()
    ids += world.fill("q", count=3)
    assert [delivery.id for delivery in world.broker.claim("q", limit=20)] == ids


def test_while_the_clock_stands_still_nothing_expires_and_work_goes_on(world: World) -> None:
    world.fill("q", count=50)
    for _ in range(50):
        delivery = world.claim_one("q")
        world.broker.run_due()
        world.broker.settle([Complete(delivery)])
    world.fill("q", count=1)
    held = world.claim_one("q")
    for _ in range(20):
        world.clock.advance(ms=0)
        world.broker.run_due()
    assert world.broker.settle([Complete(held)])[0].ok


@pytest.mark.parametrize("jump_ms", [jump_ms for jump_ms in JUMPS.values() if jump_ms < 0])
def test_a_machine_that_restarts_with_its_clock_set_back_makes_no_lease_longer(
    world: World, jump_ms: int
) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.clock.advance(ms=10_000)
    world.reboot(jump_ms=jump_ms)
    assert world.broker.settle([Extend(delivery, "30s")])[0].ok
    world.kill()
    world.clock.advance(ms=29_999)
    assert world.counts("q") == (0, 0, 1, 0)
    world.clock.advance(ms=1)
    assert world.counts("q") == (1, 0, 0, 0)


def test_a_lease_kept_alive_by_heartbeats_is_not_longer_than_the_last_one_after_a_reopen_with_the_clock_set_back(
    world: World,
) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    for _ in range(12):
        world.clock.advance(ms=20_000)
        assert world.broker.settle([Extend(delivery, "30s")])[0].ok
    world.reboot(jump_ms=-HOUR)
    world.clock.advance(ms=29_999)
    assert world.counts("q") == (0, 0, 1, 0)
    world.clock.advance(ms=1)
    assert world.counts("q") == (1, 0, 0, 0)


def test_a_lease_extended_beyond_the_queues_own_keeps_its_length_after_a_reopen(world: World) -> None:
    world.fill("q", count=2)
    longer, usual = world.broker.claim("q", limit=2)
    world.broker.settle([Extend(longer, "10m")])
    world.restart(away_ms=40_000)
    world.broker.run_due()
    assert world.counts("q") == (1, 0, 1, 0)
    world.clock.advance(ms=559_999)
    assert [result.outcome for result in world.broker.settle([Complete(longer), Complete(usual)])] == [
        "completed",
        "lost_lease",
    ]


def test_a_redrive_at_a_rate_is_not_hurried_by_a_jump(world: World) -> None:
    world.fill("q", count=10)
    world.broker.settle([Fail(delivery, dead=True) for delivery in world.broker.claim("q", limit=10)])
    world.broker.redrive("q", rate=1)
    world.clock.jump(ms=HOUR)
    assert world.counts("q")[0] <= 1
    world.clock.advance(seconds=3)
    assert world.counts("q")[0] == 4


def test_nothing_is_lost_over_a_day_of_jumps(world: World) -> None:
    ids = set(world.fill("q", count=30))
    done: set[str] = set()
    for step in range(60):
        world.clock.jump(ms=list(JUMPS.values())[step % 4] * (1 + step % 3))
        claimed = world.broker.claim("q", limit=4)
        world.clock.advance(ms=17_000 + step)
        for at, delivery in enumerate(claimed):
            item = Complete(delivery) if at % 2 else Fail(delivery, retry_in="5s")
            if world.broker.settle([item])[0].outcome == "completed":
                done.add(delivery.id)
    world.clock.advance(ms=HOUR)
    while claimed := world.broker.claim("q", limit=100):
        done |= {delivery.id for delivery in claimed}
        world.broker.settle([Complete(delivery) for delivery in claimed])
    assert done == ids
