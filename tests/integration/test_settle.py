"""Fencing, one result per item, and no item spoils another."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Complete, Extend, Fail, NewMessage, Release, Start
from fairlead.model.ids import find_id
from fairlead.model.settle import DeliveryRef, LeaseRef
from tests.integration.world import World

UNKNOWN = "018bcfe5-6800-7000-8000-00000000001a"

LATE: dict[str, Any] = {
    "complete": Complete,
    "fail": Fail,
    "release": Release,
    "extend": lambda d: Extend(d, "1h"),
    "start": Start,
}
late = pytest.mark.parametrize("make", LATE.values(), ids=LATE.keys())


def everything(world: World) -> tuple[object, ...]:
    """All that a settle could change."""
    infos = [
        info
        for where in ("ready", "waiting", "leased")
        for info in world.broker.peek("q", where=where, limit=100)
    ]
    return world.counts("q"), tuple(infos), world.store.last_commit


@late
def test_a_late_settle_of_a_former_holder_changes_nothing_and_says_lost_lease(
    world: World, make: Any
) -> None:
    world.fill("q", count=1)
    former = world.claim_one("q", consumer="slow")
    world.clock.advance(ms=30_000)
    current = world.claim_one("q", consumer="quick")
    assert current.id == former.id
    before = everything(world)
    (result,) = world.broker.settle([make(former)])
    assert (result.id, result.outcome, result.ok) == (former.id, "lost_lease", False)
    assert everything(world) == before
    assert world.broker.settle([Complete(current)])[0].outcome == "completed"


@late
def test_a_settle_after_expiry_changes_nothing_also_when_nobody_holds_the_message(
    world: World, make: Any
) -> None:
    world.fill("q", count=1)
    former = world.claim_one("q")
    world.clock.advance(ms=30_000)
    before = everything(world)
    assert world.broker.settle([make(former)])[0].outcome == "lost_lease"
    assert everything(world) == before


@late
def test_a_settle_of_a_message_that_is_gone_or_was_never_there_says_not_found(
    world: World, make: Any
) -> None:
    world.fill("q", count=1)
    done = world.claim_one("q")
    world.broker.settle([Complete(done)])
    before = everything(world)
    assert [
        result.outcome for result in world.broker.settle([make(done), make(DeliveryRef(UNKNOWN, "1"))])
    ] == ["not_found", "not_found"]
    assert everything(world) == before


@pytest.mark.parametrize("token", ["", "zz", "-1", "0", "1" * 40])
def test_a_made_up_token_is_fenced_off(world: World, token: str) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    assert world.broker.settle([Complete(DeliveryRef(delivery.id, token))])[0].outcome == "lost_lease"
    assert world.counts("q") == (0, 0, 1, 0)


def test_a_token_stays_valid_until_the_expiry_is_committed(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.clock.advance(ms=29_999)
    assert world.broker.settle([Complete(delivery)])[0].outcome == "completed"


def test_one_bad_item_never_spoils_the_others(world: World) -> None:
    world.fill("q", count=9)
    d = world.broker.claim("q", limit=9)
    items: list[Any] = [
        Complete(d[0]),
        "nonsense",
        Fail(d[1], reason="no such reason"),
        Fail(d[2], retry_in=5),  # type: ignore[arg-type]
        Fail(d[3], dead=True, retry_in="5s"),
        Extend(d[4], "1ms"),
        Extend(d[5], carry=b"x" * 65_537),
        Complete(DeliveryRef(UNKNOWN, "1")),
        Complete("not a delivery"),  # type: ignore[arg-type]
        Extend(d[6], progress=-1),
        Release(d[7]),
        Fail(d[8]),
    ]
    results = world.broker.settle(items)
    assert [result.outcome for result in results] == [
        "completed",
        "invalid",
        "invalid",
        "invalid",
        "invalid",
        "invalid",
        "invalid",
        "not_found",
        "invalid",
        "invalid",
        "released",
        "retry",
    ]
    for at, field in (
        (2, "reason"),
        (3, "retry_in"),
        (4, "retry_in"),
        (5, "duration"),
        (6, "carry"),
        (8, "delivery"),
        (9, "progress"),
    ):
        assert f"expected {field} to be" in results[at].error
    assert "expected Complete, Fail, Release, Extend or Start" in results[1].error
    assert world.counts("q") == (2, 0, 6, 0)
    assert all(result.ok for result in world.broker.settle([Complete(delivery) for delivery in d[1:7]])), (
        "an invalid item keeps its lease"
    )


def test_a_complete_with_bad_progress_is_invalid_however_the_delivery_is_named(world: World) -> None:
    world.fill("q", count=2)
    first, second = world.broker.claim("q", limit=2)
    items = [Complete(first, progress=-1), Complete(DeliveryRef(second.id, second.lease), progress=-1)]
    assert [result.outcome for result in world.broker.settle(items)] == ["invalid", "invalid"]
    assert world.counts("q") == (0, 0, 2, 0)


def by_number(delivery: Any) -> LeaseRef:
    return LeaseRef(delivery.message.id, delivery.claim_id)


def test_a_lease_ref_names_the_same_delivery_as_the_delivery_itself(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    ref = by_number(delivery)
    assert (ref.id, ref.lease) == (delivery.id, delivery.lease)


def test_every_settlement_takes_a_lease_ref(world: World) -> None:
    world.broker.enqueue_many(
        "q", [NewMessage(b"x", stream=stream) for stream in (None, None, "s", None, None, "t")]
    )
    d = [by_number(delivery) for delivery in world.broker.claim("q", limit=6, started=False)]
    items = [
        Complete(d[0]),
        Fail(d[1]),
        Release(d[2]),
        Extend(d[3], "1h", progress=4),
        Start(d[4]),
        Complete(d[5], progress=1),
    ]
    outcomes = [(result.id, result.outcome) for result in world.broker.settle(items)]
    assert outcomes == list(
        zip(
            [ref.id for ref in d],
            ["completed", "retry", "released", "extended", "started", "completed"],
            strict=True,
        )
    )
    assert world.counts("q") == (2, 0, 2, 0)


@late
def test_a_stale_lease_ref_is_fenced_off(world: World, make: Any) -> None:
    world.fill("q", count=1)
    former = by_number(world.claim_one("q"))
    world.clock.advance(ms=30_000)
    world.claim_one("q")
    before = everything(world)
    unknown = LeaseRef(find_id(UNKNOWN) or b"", former.claim_id)
    assert [result.outcome for result in world.broker.settle([make(former), make(unknown)])] == [
        "lost_lease",
        "not_found",
    ]
    assert everything(world) == before


@late
@pytest.mark.parametrize("wrong", ["text", "short", "list", "none", "float", "bool", "token"])
def test_a_lease_ref_of_wrong_parts_is_invalid_and_spoils_nothing(
    world: World, make: Any, wrong: str
) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"x", stream="s")] * 2)
    first, second = world.broker.claim("q", limit=2, max_per_stream=2)
    raw_id, claim_id = second.message.id, second.claim_id
    parts: dict[str, Any] = {
        "text": (second.id, claim_id),
        "short": (raw_id[:15], claim_id),
        "list": ([1], claim_id),
        "none": (None, claim_id),
        "float": (raw_id, float(claim_id)),
        "bool": (raw_id, True),
        "token": (raw_id, second.lease),
    }
    results = world.broker.settle([make(LeaseRef(*parts[wrong])), Complete(first)])
    assert [result.outcome for result in results] == ["invalid", "completed"]
    assert "expected delivery to be" in results[0].error
    assert world.counts("q") == (0, 0, 1, 0)


def test_a_second_settle_of_one_delivery_in_the_same_call_is_fenced_off(world: World) -> None:
    world.fill("q", count=3)
    a, b, c = world.broker.claim("q", limit=3)
    results = world.broker.settle(
        [Complete(a), Complete(a), Fail(b), Complete(b), Release(c), Extend(c, "1m"), Start(c)]
    )
    assert [result.outcome for result in results] == [
        "completed",
        "lost_lease",
        "retry",
        "lost_lease",
        "released",
        "lost_lease",
        "lost_lease",
    ]
    assert world.counts("q") == (2, 0, 0, 0)


def test_start_extend_and_then_fail_in_one_call_all_count(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q", started=False)
    results = world.broker.settle(
        [Start(delivery), Extend(delivery, "1m", progress=2, carry=b"c"), Fail(delivery, error="late")]
    )
    assert [result.outcome for result in results] == ["started", "extended", "retry"]
    again = world.claim_one("q")
    assert (again.attempts, int(again.progress), again.carry) == (1, 2 | 32768, b"c")


def test_one_call_is_one_commit(world: World) -> None:
    world.fill("q", count=30)
    claimed = world.broker.claim("q", limit=30)
    before = world.store.last_commit
    made = [Complete, Fail, Release]
    world.broker.settle([made[at % 3](delivery) for at, delivery in enumerate(claimed)])
    assert world.store.last_commit == before + 1


def test_settling_nothing_is_fine_and_writes_nothing(world: World) -> None:
    before = world.store.last_commit
    assert world.broker.settle([]) == []
    assert world.broker.enqueue_many("q", []) == []
    assert world.store.last_commit == before


def test_a_release_returns_a_message_to_its_place_and_counts_no_attempt(world: World) -> None:
    ids = world.fill("q", count=4)
    _, second, third = world.broker.claim("q", limit=3)
    world.broker.settle([Release(third), Release(second)])
    again = world.broker.claim("q", limit=5)
    assert [delivery.id for delivery in again] == ids[1:]
    assert [(delivery.attempts, delivery.deliveries) for delivery in again] == [(0, 2), (0, 2), (0, 1)]


def test_a_released_message_keeps_its_place_over_a_restart(world: World) -> None:
    ids = world.fill("q", count=600)
    claimed = world.broker.claim("q", limit=300)
    world.broker.settle([Release(claimed[299]), Release(claimed[0])])
    world.restart()
    assert [delivery.id for delivery in world.broker.claim("q", limit=500)] == [ids[0], *ids[299:]]


def test_leases_of_one_claim_can_end_in_every_way_and_at_different_times(world: World) -> None:
    world.fill("q", count=6)
    a, b, c, d, e, f = world.broker.claim("q", limit=6)
    world.broker.settle([Complete(a), Extend(b, "10s"), Extend(c, "50s"), Release(d)])
    world.restart()
    world.broker.settle([Extend(e, "50s")])
    world.clock.advance(ms=10_000)
    assert world.broker.settle([Complete(b)])[0].outcome == "lost_lease"
    world.clock.advance(ms=20_000)
    assert world.broker.settle([Complete(f)])[0].outcome == "lost_lease"
    world.clock.advance(ms=19_999)
    assert [result.outcome for result in world.broker.settle([Complete(c), Complete(e)])] == [
        "completed",
        "completed",
    ]
    assert world.counts("q") == (3, 0, 0, 0)


def test_a_large_batch_settles_in_one_call(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"", fairness_key=f"k{at % 50}") for at in range(2000)])
    claimed = world.broker.claim("q", limit=2000)
    assert {
        result.outcome for result in world.broker.settle([Complete(delivery) for delivery in claimed])
    } == {"completed"}
    assert world.counts("q") == (0, 0, 0, 0)
    assert world.broker.stats("q").bytes == 0
