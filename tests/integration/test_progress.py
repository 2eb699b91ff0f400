"""What a try got done stays done: progress only grows within a life, and the next delivery carries it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from fairlead import Complete, Extend, Fail, NewMessage, Progress, Release
from tests.integration.world import World

STORED, EVENT_STORED, PUBLISHED, FAILED = (
    Progress.STORED,
    Progress.EVENT_STORED,
    Progress.PUBLISHED,
    Progress.FAILED,
)


def test_a_partial_completion_is_delivered_with_the_next_attempt(world: World) -> None:
    """Stored and event-stored, then the transport failed: as the seed has it, 1 | 2 | 32768."""
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    assert delivery.progress == 0
    world.broker.settle([Fail(delivery, progress=STORED | EVENT_STORED, reason="transport_unavailable")])
    world.restart()
    assert world.claim_one("q").progress == STORED | EVENT_STORED | FAILED == 32771


def test_bits_are_only_ever_added(world: World) -> None:
    world.fill("q", count=1)
    seen = []
    for reported in (STORED, 0, PUBLISHED, EVENT_STORED, STORED, 1 << 40, 1 << 62):
        delivery = world.claim_one("q")
        seen.append(int(delivery.progress))
        world.broker.settle([Fail(delivery, progress=reported)])
    assert all(before & after == before for before, after in pairwise(seen))
    assert world.claim_one("q").progress == 7 | FAILED | 1 << 40 | 1 << 62


def test_a_failure_is_marked_and_a_release_is_not(world: World) -> None:
    world.fill("q", count=1)
    world.broker.settle([Release(world.claim_one("q"))])
    delivery = world.claim_one("q")
    assert delivery.progress == 0
    world.broker.settle([Fail(delivery)])
    assert world.claim_one("q").progress == FAILED


@pytest.mark.parametrize("end", ["fail", "release", "expiry", "goodbye", "operator"])
def test_what_an_extension_stored_is_there_however_the_delivery_ends(world: World, end: str) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q", consumer="ann")
    world.broker.settle([Extend(delivery, "30s", progress=STORED, carry=b"step 1")])
    world.restart()
    world.broker.settle([Extend(delivery, "30s", progress=PUBLISHED)])
    if end == "fail":
        world.broker.settle([Fail(delivery)])
    elif end == "release":
        world.broker.settle([Release(delivery)])
    elif end == "goodbye":
        world.broker.goodbye("ann")
    elif end == "operator":
        world.broker.fail("q", [delivery.id])
    else:
        world.clock.advance(seconds=30)
    again = world.claim_one("q")
    assert again.progress & 7 == STORED | PUBLISHED
    assert again.carry == b"step 1", "an extension without a value leaves the last one"


def test_a_value_replaces_the_one_before_and_may_be_emptied(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    for carry in (b"one", b"two", b"x" * 65_536, b""):
        world.broker.settle([Extend(delivery, carry=carry)])
        assert world.broker.find(delivery.id).carry == carry


def test_several_words_on_one_delivery_in_one_call_add_up(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    results = world.broker.settle(
        [
            Extend(delivery, progress=1, carry=b"a"),
            Extend(delivery, "1m", progress=2),
            Fail(delivery, progress=4),
        ]
    )
    assert [result.outcome for result in results] == ["extended", "extended", "retry"]
    again = world.claim_one("q")
    assert (again.progress, again.carry) == (7 | FAILED, b"a")


@pytest.mark.parametrize("how", ["redrive", "retry"])
@pytest.mark.parametrize("stream", [None, "s"])
def test_a_new_life_keeps_progress_and_value(world: World, how: str, stream: str | None) -> None:
    world.broker.enqueue("q", b"", stream=stream)
    delivery = world.claim_one("q")
    world.broker.settle(
        [Extend(delivery, progress=STORED, carry=b"c"), Fail(delivery, dead=True, progress=PUBLISHED)]
    )
    if how == "redrive":
        world.broker.redrive("q")
    else:
        world.broker.retry("q", [delivery.id])
    world.restart()
    again = world.claim_one("q")
    assert (again.progress, again.carry, again.attempts) == (STORED | PUBLISHED | FAILED, b"c", 0)


def test_a_redrive_may_be_told_to_clear_it(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.broker.settle([Extend(delivery, progress=STORED, carry=b"c"), Fail(delivery, dead=True)])
    world.broker.redrive("q", clear_progress=True)
    again = world.claim_one("q")
    assert (again.progress, again.carry) == (0, b"")
    assert len(again.failures) == 1, "what happened stays known"


def test_a_dead_letter_shows_how_far_it_got(world: World) -> None:
    world.fill("q", count=1)
    world.broker.settle([Fail(world.claim_one("q"), dead=True, progress=EVENT_STORED)])
    (dead,) = world.broker.peek("q.dlq")
    assert dead.progress == EVENT_STORED | FAILED
    assert world.claim_one("q.dlq").progress == dead.progress


def test_progress_belongs_to_one_message(world: World) -> None:
    world.fill("q", count=2)
    first, second = world.broker.claim("q", limit=2)
    world.broker.settle([Fail(first, progress=PUBLISHED), Release(second)])
    assert {delivery.id: int(delivery.progress) for delivery in world.broker.claim("q", limit=2)} == {
        first.id: 4 | FAILED,
        second.id: 0,
    }


def test_a_stale_lease_adds_nothing(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.clock.advance(seconds=30)
    assert world.broker.settle([Extend(delivery, progress=STORED, carry=b"late")])[0].outcome == "lost_lease"
    again = world.claim_one("q")
    assert (again.progress, again.carry) == (FAILED, b"")
    assert world.broker.settle([Complete(again, progress=PUBLISHED)])[0].outcome == "completed"


@pytest.mark.parametrize(
    "bad",
    [
        {"progress": -1},
        {"progress": 1 << 63},
        {"progress": "1"},
        {"progress": True},
        {"carry": "text"},
        {"carry": b"x" * 65_537},
    ],
    ids=lambda bad: repr(bad)[:40],
)
def test_progress_that_is_none_is_refused_and_the_lease_stays_as_it_was(
    world: World, bad: dict[str, Any]
) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    (result,) = world.broker.settle([Extend(delivery, "1h", **bad)])
    assert result.outcome == "invalid"
    info = world.broker.find(delivery.id)
    assert (info.lease_until, info.progress, info.carry) == (delivery.lease_until, 0, b"")


def test_progress_and_value_of_a_run_are_each_messages_own(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"", stream="s") for _ in range(2)])
    first, second = world.broker.claim("q", limit=2, max_per_stream=2)
    world.broker.settle(
        [
            Extend(second, progress=STORED, carry=b"2"),
            Fail(first, retry_in="1m", progress=PUBLISHED),
            Release(second),
        ]
    )
    again = world.claim_one("q")
    assert (again.id, again.progress, again.carry) == (second.id, STORED, b"2")
