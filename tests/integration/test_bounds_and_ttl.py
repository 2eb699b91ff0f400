"""Queues with a bound, messages with an end."""

from __future__ import annotations

import pytest

from fairlead import Complete, Extend, Fail, NewMessage, Release, Settings, errors
from tests.integration.world import World


def test_a_queue_at_its_bound_of_messages_refuses_the_whole_batch(world: World) -> None:
    world.broker.update_queue("q", max_messages=3)
    world.fill("q", count=2)
    with pytest.raises(errors.QueueFull) as full:
        world.fill("q", count=2)
    assert (full.value.queue, full.value.bound, full.value.limit) == ("q", "max_messages", 3)
    assert world.counts("q") == (2, 0, 0, 0)
    world.fill("q", count=1)


def test_leased_and_waiting_messages_count_and_a_completed_one_makes_room(world: World) -> None:
    world.broker.update_queue("q", max_messages=2)
    world.fill("q", count=1)
    world.broker.enqueue("q", b"", delay="1h")
    delivery = world.claim_one("q")
    with pytest.raises(errors.QueueFull):
        world.fill("q", count=1)
    world.broker.settle([Complete(delivery)])
    world.fill("q", count=1)


def test_a_bound_of_bytes_counts_payload_and_headers(world: World) -> None:
    world.broker.update_queue("q", max_bytes=100)
    world.fill("q", payload=b"x" * 90, count=1)
    with pytest.raises(errors.QueueFull) as full:
        world.broker.enqueue("q", b"x" * 5, headers={"a": "b" * 20})
    assert full.value.bound == "max_bytes"
    world.fill("q", payload=b"x" * 10, count=1)
    assert world.broker.stats("q").bytes == 100
    world.broker.settle([Complete(world.claim_one("q"))])
    assert world.broker.stats("q").bytes == 10


def test_a_duplicate_and_a_retry_pass_a_full_queue(world: World) -> None:
    world.broker.update_queue("q", max_messages=1)
    first = world.broker.enqueue("q", b"", dedup_key="d")
    assert world.broker.enqueue("q", b"", dedup_key="d") == first
    assert world.broker.settle([Fail(world.claim_one("q"))])[0].outcome == "retry"


def test_a_bound_can_be_lifted(world: World) -> None:
    world.broker.update_queue("q", max_messages=1)
    world.fill("q", count=1)
    world.broker.update_queue("q", max_messages=None)
    world.fill("q", count=10)
    assert world.broker.stats("q").ready == 11


def test_too_many_active_lanes_are_refused_before_anything_is_stored(tmp_path: object) -> None:
    world = World("memory", tmp_path, Settings(active_lanes=3))  # type: ignore[arg-type]
    world.broker.create_queue("q")
    world.broker.enqueue_many("q", [NewMessage(b"", fairness_key=key) for key in "aabbb"])
    before = world.store.last_commit
    with pytest.raises(errors.TooManyLanes):
        world.broker.enqueue_many("q", [NewMessage(b"", fairness_key=key) for key in "acd"])
    assert world.store.last_commit == before
    world.broker.enqueue_many("q", [NewMessage(b"", fairness_key=key) for key in "aac"])
    for delivery in world.broker.claim("q", limit=100):
        world.broker.settle([Complete(delivery)])
    world.broker.enqueue_many("q", [NewMessage(b"", fairness_key=key) for key in "def"])
    world.close()


def test_a_message_past_its_time_to_live_is_dropped(world: World) -> None:
    world.broker.enqueue("q", b"", ttl="10s")
    kept = world.broker.enqueue("q", b"")
    world.clock.advance(ms=9999)
    assert world.counts("q") == (2, 0, 0, 0)
    world.clock.advance(ms=1)
    assert [info.id for info in world.broker.peek("q")] == [kept]
    assert world.counts("q") == (1, 0, 0, 0)


def test_a_waiting_message_past_its_time_to_live_is_dropped(world: World) -> None:
    world.broker.enqueue("q", b"", ttl="10s", delay="1h")
    world.clock.advance(seconds=10)
    assert world.counts("q") == (0, 0, 0, 0)


def test_the_queues_time_to_live_holds_where_the_message_has_none_of_its_own(world: World) -> None:
    world.broker.update_queue("q", ttl="10s")
    world.broker.enqueue("q", b"")
    longer = world.broker.enqueue("q", b"", ttl="20s")
    endless = world.broker.enqueue("q", b"", ttl="0s")
    world.clock.advance(seconds=10)
    assert [info.id for info in world.broker.peek("q")] == [longer, endless]
    world.clock.advance(seconds=10**6)
    assert [info.id for info in world.broker.peek("q")] == [endless]


def test_expired_to_dead_makes_it_a_dead_letter_with_a_record(world: World) -> None:
    world.broker.update_queue("q", expired_to_dead=True)
    ids = {world.broker.enqueue("q", b"", ttl="10s"), world.broker.enqueue("q", b"", ttl="10s", delay="1h")}
    world.clock.advance(seconds=10)
    dead = world.broker.peek("q.dlq")
    assert {info.id for info in dead} == ids
    assert {(info.rule, info.attempts, info.failures[-1].error, info.expires_at) for info in dead} == {
        ("ttl", 0, "its time to live ended", None)
    }
    assert world.counts("q") == (0, 0, 0, 2)


@pytest.mark.parametrize("to_dead", [False, True])
@pytest.mark.parametrize("how", ["release", "fail", "fail later", "expiry", "unstarted expiry", "goodbye"])
def test_a_leased_message_never_expires_until_it_comes_back(world: World, how: str, to_dead: bool) -> None:
    world.broker.update_queue("q", expired_to_dead=to_dead)
    world.broker.enqueue("q", b"", ttl="10s")
    delivery = world.claim_one("q", consumer="ann", started=how != "unstarted expiry")
    world.clock.advance(seconds=20)
    assert world.counts("q") == (0, 0, 1, 0)
    if how == "release":
        world.broker.settle([Release(delivery)])
    elif how.startswith("fail"):
        world.broker.settle([Fail(delivery, retry_in="1h" if how == "fail later" else None)])
    elif how == "goodbye":
        world.broker.goodbye("ann")
    else:
        world.clock.advance(seconds=10)
    assert world.counts("q") == (0, 0, 0, 1 if to_dead else 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_leased_message_past_its_time_can_still_be_completed(world: World, restarted: bool) -> None:
    world.broker.enqueue("q", b"", ttl="10s")
    delivery = world.claim_one("q")
    world.broker.settle([Extend(delivery, "1h")])
    world.clock.advance(seconds=20)
    if restarted:
        world.restart()
        world.broker.run_due()
    assert world.broker.settle([Complete(delivery)])[0].outcome == "completed"


def test_a_released_message_with_time_left_expires_on_time(world: World) -> None:
    world.broker.enqueue("q", b"", ttl="10s")
    world.broker.settle([Release(world.claim_one("q"))])
    world.broker.settle([Fail(world.claim_one("q"), retry_in="3s")])
    world.clock.advance(seconds=5)
    assert world.counts("q") == (1, 0, 0, 0)
    world.clock.advance(seconds=5)
    assert world.counts("q") == (0, 0, 0, 0)


def test_what_expired_while_the_broker_was_away_is_not_handed_out(world: World) -> None:
    world.broker.enqueue("q", b"", ttl="10s")
    kept = world.broker.enqueue("q", b"")
    world.restart(away_ms=10_000)
    assert [delivery.id for delivery in world.broker.claim("q", limit=5)] == [kept]


def test_a_dead_letter_has_no_time_to_live(world: World) -> None:
    world.broker.enqueue("q", b"", ttl="10s")
    world.broker.settle([Fail(world.claim_one("q"), dead=True)])
    world.clock.advance(seconds=60)
    assert world.counts("q") == (0, 0, 0, 1)


def test_more_expired_messages_than_one_step_all_go(world: World) -> None:
    world.fill("q", count=2300, ttl="10s")
    world.clock.advance(seconds=10)
    assert world.counts("q") == (0, 0, 0, 0)


@pytest.mark.parametrize(("to_dead", "outcome"), [(False, "expired"), (True, "dead")])
def test_a_settle_says_when_the_message_has_outlived_its_time(
    world: World, to_dead: bool, outcome: str
) -> None:
    world.broker.update_queue("q", expired_to_dead=to_dead)
    world.broker.enqueue_many(
        "q",
        [NewMessage(b"failed", ttl="5s"), NewMessage(b"released", ttl="5s"), NewMessage(b"done", ttl="5s")],
    )
    failed, released, done = world.broker.claim("q", limit=3)
    world.clock.advance(seconds=6)
    results = world.broker.settle([Fail(failed, error="late"), Release(released), Complete(done)])
    assert [(result.outcome, result.rule) for result in results] == [
        (outcome, "ttl"),
        (outcome, "ttl"),
        ("completed", ""),
    ]
    assert world.broker.stats("q").dead == (2 if to_dead else 0)
    assert world.broker.stats("q").ready == 0
