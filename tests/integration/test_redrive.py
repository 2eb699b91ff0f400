"""Bringing dead letters back: which, in what order, how fast, and over a restart."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fairlead import Complete, DeadFilter, Extend, Fail, NewMessage, errors
from tests.integration.world import World

DEATHS: list[dict[str, Any]] = [
    {
        "key": "a",
        "headers": {"kind": "x"},
        "error": "timeout after 5s",
        "reason": "timeout_exceeded",
        "failures": 1,
    },
    {
        "key": "b",
        "headers": {"kind": "y"},
        "error": "no such host",
        "reason": "transport_unavailable",
        "failures": 2,
    },
    {"key": "a", "headers": {}, "error": "Timeout after 30s", "reason": "timeout_exceeded", "failures": 3},
    {"key": "c", "headers": {"kind": "x", "z": ""}, "error": "", "reason": "unknown", "failures": 1},
]


def bury_the_four(world: World) -> list[str]:
    """One dead letter each ten seconds, told apart by everything a filter can ask."""
    ids = []
    for death in DEATHS:
        ids.append(world.broker.enqueue("q", b"", fairness_key=death["key"], headers=death["headers"]))
        for at in range(death["failures"]):
            last = at == death["failures"] - 1
            world.broker.settle(
                [
                    Fail(
                        world.claim_one("q"),
                        error=death["error"] if last else "other",
                        reason=death["reason"],
                        dead=last,
                    )
                ]
            )
        world.clock.advance(seconds=10)
    return ids


def bury(world: World, count: int) -> list[str]:
    return world.broker.quarantine("q", [NewMessage(b"", fairness_key=f"k{at % 3}") for at in range(count)])


FILTERS: dict[str, tuple[DeadFilter | None, list[int]]] = {
    "no filter": (None, [0, 1, 2, 3]),
    "an empty filter": (DeadFilter(), [0, 1, 2, 3]),
    "a reason by word": (DeadFilter(reason="timeout_exceeded"), [0, 2]),
    "a reason by number": (DeadFilter(reason=1), [1]),
    "an error text": (DeadFilter(error="imeout after"), [0, 2]),
    "an error text in its own case": (DeadFilter(error="Timeout"), [2]),
    "an error pattern": (DeadFilter(error_regex=r"(?i)^timeout.*\d+s$"), [0, 2]),
    "the text given where there was no error": (DeadFilter(error_regex="^the consumer said so$"), [3]),
    "a key": (DeadFilter(key="a"), [0, 2]),
    "a header": (DeadFilter(header=("kind", "x")), [0, 3]),
    "an empty header value": (DeadFilter(header=("z", "")), [3]),
    "an age": (DeadFilter(older_than="25s"), [0, 1]),
    "an age to the millisecond": (DeadFilter(older_than=timedelta(seconds=30)), [0, 1]),
    "a younger age": (DeadFilter(newer_than="25s"), [2, 3]),
    "a span of ages": (DeadFilter(older_than="15s", newer_than="35s"), [1, 2]),
    "attempts at least": (DeadFilter(min_attempts=2), [1, 2]),
    "attempts at most": (DeadFilter(max_attempts=2), [0, 1, 3]),
    "all that is given must hold": (DeadFilter(key="a", min_attempts=2, reason="timeout_exceeded"), [2]),
    "nothing fits": (DeadFilter(key="nobody"), []),
}


@pytest.mark.parametrize(("filter", "expected"), FILTERS.values(), ids=FILTERS.keys())
def test_a_filter_selects_what_it_says_and_a_dry_run_counts_exactly_that(
    world: World, filter: DeadFilter | None, expected: list[int]
) -> None:
    ids = bury_the_four(world)
    before = world.store.last_commit
    dry = world.broker.redrive("q", filter=filter, dry_run=True)
    assert (dry.matched, dry.moved, dry.intent_id) == (len(expected), 0, None)
    assert world.store.last_commit == before
    result = world.broker.redrive("q.dlq", filter=filter)
    assert (result.matched, result.moved) == (len(expected), len(expected))
    assert {delivery.id for delivery in world.broker.claim("q", limit=10)} == {ids[at] for at in expected}
    assert world.counts("q")[3] == 4 - len(expected)


def test_a_redriven_message_has_a_new_life_and_keeps_its_id_its_past_and_its_progress(world: World) -> None:
    world.broker.update_queue("q", retry={"policy": "immediate", "attempts": 2})
    message_id = world.broker.enqueue("q", b"body", fairness_key="k", headers={"h": "1"})
    first = world.claim_one("q")
    world.broker.settle([Extend(first, progress=1, carry=b"half")])
    world.broker.settle([Fail(first, error="one")])
    world.broker.settle([Fail(world.claim_one("q"), error="two")])
    world.broker.redrive("q")
    world.restart()
    again = world.claim_one("q")
    assert (again.id, again.payload, again.headers, again.fairness_key) == (
        message_id,
        b"body",
        {"h": "1"},
        "k",
    )
    assert (again.attempts, again.deliveries, again.dead_since, again.source) == (0, 1, None, None)
    assert (int(again.progress), again.carry) == (1 | 32768, b"half")
    assert [failure.error for failure in again.failures] == ["one", "two"]
    assert world.broker.settle([Fail(again)])[0].outcome == "retry", "a whole new count"


def test_a_redrive_can_clear_the_progress(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.broker.settle([Extend(delivery, progress=1, carry=b"half")])
    world.broker.settle([Fail(delivery, dead=True)])
    world.broker.redrive("q", clear_progress=True)
    again = world.claim_one("q")
    assert (int(again.progress), again.carry) == (0, b"")


def test_the_longest_dead_go_first_up_to_the_count_and_to_the_tail_of_their_lane(world: World) -> None:
    dead = bury_the_four(world)
    waiting = world.broker.enqueue("q", b"", fairness_key="a")
    assert world.broker.redrive("q", count=3, dry_run=True).matched == 3
    assert world.broker.redrive("q", count=3).moved == 3
    assert [info.id for info in world.broker.peek("q.dlq")] == [dead[3]]
    assert [info.id for info in world.broker.peek("q", key="a")] == [waiting, dead[0], dead[2]]


def test_leased_dead_letters_are_passed_over(world: World) -> None:
    first, second, third = bury(world, 3)
    held = world.broker.claim("q.dlq", limit=2)
    assert world.broker.redrive("q", dry_run=True).matched == 1
    assert world.broker.redrive("q", ids=[first, third]).moved == 1
    assert world.broker.redrive("q").moved == 0
    assert world.claim_one("q").id == third
    assert [delivery.id for delivery in held] == [first, second]
    assert all(result.ok for result in world.broker.settle([Complete(delivery) for delivery in held]))


def test_ids_are_redriven_the_longest_dead_first_and_unknown_ones_passed_over(world: World) -> None:
    ids = bury(world, 4)
    (alive,) = world.fill("q", count=1)
    wanted = [ids[3], ids[1], "018bcfe5-6800-7000-8000-00000000001a", alive, ids[1]]
    assert world.broker.redrive("q", ids=wanted, dry_run=True).matched == 2
    assert world.broker.redrive("q", ids=wanted, count=1).moved == 1
    assert [info.id for info in world.broker.peek("q.dlq")] == [ids[0], ids[2], ids[3]]
    assert world.broker.redrive("q", ids=wanted, filter=DeadFilter(key="nobody")).matched == 0
    assert world.broker.redrive("q", ids=[]).moved == 0


def test_a_redriven_message_is_subject_to_neither_dedup_nor_bounds_nor_its_old_time_to_live(
    world: World,
) -> None:
    world.broker.update_queue("q", dedup="live", max_messages=1)
    first = world.broker.enqueue("q", b"", dedup_key="d", ttl="10s")
    world.broker.settle([Fail(world.claim_one("q"), dead=True)])
    second = world.broker.enqueue("q", b"", dedup_key="d")
    assert second != first, "a dead letter lets go of its key"
    assert world.broker.redrive("q").moved == 1
    world.clock.advance(seconds=20)
    assert {delivery.id for delivery in world.broker.claim("q", limit=5)} == {first, second}


def test_what_dies_after_a_redrive_began_is_not_part_of_it(world: World) -> None:
    bury(world, 5)
    result = world.broker.redrive("q", rate=1)
    late = bury(world, 5)
    world.clock.advance(seconds=60)
    assert result.matched == 5
    assert [info.id for info in world.broker.peek("q.dlq")] == late


def test_a_rate_spreads_a_redrive_over_time(world: World) -> None:
    ids = bury(world, 12)
    result = world.broker.redrive("q", rate=2)
    assert (result.matched, result.moved) == (12, 0)
    assert [intent.intent_id for intent in world.broker.intents()] == [result.intent_id]
    moved = []
    world.broker.run_due()
    for _ in range(12):
        moved.append(world.counts("q")[0])
        world.clock.advance(ms=500)
    assert moved == list(range(1, 13))
    world.clock.advance(ms=500)
    assert {delivery.id for delivery in world.broker.claim("q", limit=20)} == set(ids)
    assert world.broker.intents() == []


def test_a_rated_redrive_can_be_cancelled_and_what_was_moved_stays_moved(world: World) -> None:
    bury(world, 10)
    result = world.broker.redrive("q", rate=1)
    world.clock.advance(seconds=3)
    assert result.intent_id is not None
    assert world.broker.cancel_intent(result.intent_id)
    assert not world.broker.cancel_intent(result.intent_id)
    moved = world.counts("q")[0]
    assert moved == 4
    world.clock.advance(seconds=60)
    world.restart(away_ms=60_000)
    world.broker.run_due()
    assert (world.counts("q")[0], world.counts("q")[3]) == (moved, 10 - moved)


def test_a_rated_redrive_goes_on_after_a_restart_with_its_filter_count_and_pace(world: World) -> None:
    ids = bury(world, 30)
    world.broker.redrive(
        "q", rate=1, filter=DeadFilter(key="k1", older_than="0s"), count=8, clear_progress=True
    )
    world.clock.advance(seconds=3)
    assert world.counts("q")[0] == 4
    world.restart(away_ms=600_000)
    world.broker.run_due()
    assert world.counts("q")[0] <= 5, "no burst for the time away"
    world.clock.advance(seconds=100)
    assert {delivery.id for delivery in world.broker.claim("q", limit=50)} == set(ids[1::3][:8])
    assert world.broker.intents() == []


def test_a_queue_deleted_in_the_middle_of_a_rated_redrive_ends_it(world: World) -> None:
    bury(world, 5)
    world.broker.redrive("q", rate=1)
    world.clock.advance(seconds=1)
    world.broker.delete_queue("q")
    world.clock.advance(seconds=60)
    assert world.broker.intents() == []


def test_more_than_ten_thousand_dead_letters_come_back_in_order(memory_world: World) -> None:
    world = memory_world
    ids = world.broker.quarantine("q", [NewMessage(b"")] * 12_500)
    assert world.broker.redrive("q", dry_run=True).matched == 12_500
    assert world.broker.redrive("q").moved == 12_500
    assert [delivery.id for delivery in world.broker.claim("q", limit=12_500)] == ids


def test_two_redrives_at_once_move_each_message_once(world: World) -> None:
    bury(world, 10)
    world.broker.redrive("q", rate=1)
    world.broker.redrive("q", rate=1)
    world.clock.advance(seconds=2)
    world.broker.redrive("q", count=2)
    world.clock.advance(seconds=30)
    assert world.counts("q") == (10, 0, 0, 0)


def test_a_redrive_of_an_unknown_queue_is_refused(world: World) -> None:
    with pytest.raises(errors.QueueNotFound):
        world.broker.redrive("nowhere")
