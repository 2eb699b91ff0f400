"""The four questions of a bad night, answered from live state, and which streams are held up."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Complete, Fail, NewMessage, Release, errors
from fairlead.model.views import BlockedStream, PoisonCandidate
from tests.integration.world import World


def fail(world: World, message_id: str, times: int = 1, **options: Any) -> None:
    """So many failures, the last as told; a message that must be claimed stands alone in the queue."""
    for left in range(times, 0, -1):
        (delivery,) = [found for found in world.broker.claim("q", limit=100) if found.id == message_id]
        world.broker.settle(
            [Fail(delivery, **({"retry_in": "0s", **options} if left == 1 else {"retry_in": "0s"}))]
        )


def test_a_queue_without_failures_has_nothing_to_tell(world: World) -> None:
    world.fill("q", count=3)
    world.claim_one("q")
    metrics = world.broker.failure_metrics("q")
    assert (
        metrics.by_attempts,
        metrics.by_reason,
        metrics.scheduled,
        metrics.next_due,
        metrics.latest_due,
    ) == ({}, {}, 0, None, None)
    assert (metrics.poison_candidates, metrics.blocked_streams, metrics.complete, metrics.queue) == (
        (),
        (),
        True,
        "q",
    )


def test_attempts_and_reasons_of_live_messages_wherever_they_are(world: World) -> None:
    (waiting,) = world.fill("q", count=1)
    fail(world, waiting, 3, reason="timeout_exceeded", retry_in="1h")
    (leased,) = world.fill("q", count=1)
    fail(world, leased, 2, reason="handler_exception")
    world.claim_one("q")
    (ready,) = world.fill("q", count=1)
    fail(world, ready, 1, reason="handler_exception")
    (held,) = world.fill("q", count=1)
    world.broker.hold("q", [ready])
    fail(world, held, 2)
    world.broker.hold("q", [held])
    world.broker.unhold("q", [ready])
    world.broker.quarantine("q", [NewMessage(b"")], reason="serialization_error")
    world.fill("q", count=2)
    metrics = world.broker.failure_metrics("q")
    assert metrics.by_attempts == {1: 1, 2: 2, 3: 1}
    assert metrics.by_reason == {"handler_exception": 2, "timeout_exceeded": 1, "unknown": 1}
    assert list(metrics.by_attempts) == [1, 2, 3], "in order"
    assert metrics.scheduled == 1, "who is held has no time"


def test_messages_that_failed_and_stand_behind_in_their_stream_count_too(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"", stream="s") for _ in range(3)])
    a, b, c = world.broker.claim("q", limit=3, max_per_stream=3)
    world.broker.settle(
        [
            Fail(a, retry_in="1h"),
            Fail(b, retry_in="1s", reason="dependency_failure"),
            Release(c, keep_order=True),
        ]
    )
    world.clock.advance(seconds=1)
    metrics = world.broker.failure_metrics("q")
    assert metrics.by_attempts == {1: 2}
    assert metrics.by_reason == {"unknown": 1, "dependency_failure": 1}


def test_the_backlog_of_scheduled_retries_has_a_next_and_a_latest(world: World) -> None:
    ids = world.fill("q", count=3)
    now = world.clock.now_ms()
    for delivery, wait in zip(world.broker.claim("q", limit=3), ("30s", "10s", "20s"), strict=True):
        world.broker.settle([Fail(delivery, retry_in=wait)])
    metrics = world.broker.failure_metrics("q")
    assert (metrics.scheduled, metrics.next_due, metrics.latest_due) == (3, now + 10_000, now + 30_000)
    world.clock.advance(seconds=10)
    metrics = world.broker.failure_metrics("q")
    assert (metrics.scheduled, metrics.next_due, metrics.latest_due) == (2, now + 20_000, now + 30_000)
    world.broker.retry("q", ids)
    metrics = world.broker.failure_metrics("q")
    assert (metrics.scheduled, metrics.next_due, metrics.latest_due) == (0, None, None)


def test_delays_and_holds_are_no_scheduled_retries(world: World) -> None:
    world.broker.enqueue("q", b"", delay="1s")
    world.broker.enqueue("q", b"", delay="2h")
    (held,) = world.fill("q", count=1)
    world.broker.hold("q", [held])
    (failed,) = world.fill("q", count=1)
    fail(world, failed, retry_in="1h")
    metrics = world.broker.failure_metrics("q")
    due = world.clock.now_ms() + 3_600_000
    assert (metrics.scheduled, metrics.next_due, metrics.latest_due) == (1, due, due)


def test_poison_candidates_are_the_living_at_or_over_the_mark(world: World) -> None:
    world.broker.update_queue("q", poison_after=3)
    ids = []
    for failures in (2, 3, 4):
        (message_id,) = world.fill("q", count=1)
        fail(world, message_id, failures, retry_in="1h")
        ids.append(message_id)
    assert poison(world) == [ids[2], ids[1]]
    world.broker.bury("q", ids[1:2])
    assert poison(world) == [ids[2]]
    world.broker.retry("q", ids[2:])
    assert world.broker.failure_metrics("q").poison_candidates == (), "a new life"
    world.broker.update_queue("q", poison_after=0)
    assert world.broker.failure_metrics("q").poison_candidates == ()


def test_the_mark_is_ten_unless_said_otherwise(world: World) -> None:
    (message_id,) = world.fill("q", count=1)
    fail(world, message_id, 9)
    assert world.broker.failure_metrics("q").poison_candidates == ()
    fail(world, message_id, 1)
    assert poison(world) == [message_id]


def test_poison_candidates_have_the_most_attempts_first_and_then_the_oldest(world: World) -> None:
    world.broker.update_queue("q", poison_after=2)
    found = {}
    for failures, options in ((2, {"retry_in": "1h"}), (4, {}), (2, {}), (3, {"reason": "timeout_exceeded"})):
        created = world.clock.now_ms()
        (message_id,) = world.fill("q", count=1)
        fail(world, message_id, failures, **options)
        world.broker.hold("q", [message_id])
        found[message_id] = created
        world.clock.advance(seconds=1)
    a, b, c, d = found
    assert poison(world) == [], "an operator holds them"
    due = world.clock.now_ms() + 3_600_000
    world.broker.unhold("q", list(found))
    (delivery,) = [delivery for delivery in world.broker.claim("q", limit=9) if delivery.id == a]
    world.broker.settle([Fail(delivery, retry_in="1h")])
    assert world.broker.failure_metrics("q").poison_candidates == (
        PoisonCandidate(b, 4, "unknown", None, found[b]),
        PoisonCandidate(a, 3, "unknown", due, found[a]),
        PoisonCandidate(d, 3, "timeout_exceeded", None, found[d]),
        PoisonCandidate(c, 2, "unknown", None, found[c]),
    )


def poison(world: World) -> list[str]:
    return [candidate.id for candidate in world.broker.failure_metrics("q").poison_candidates]


def blocked(world: World, stream: str, count: int, **options: Any) -> str:
    """A stream of so many messages whose first one failed."""
    world.broker.enqueue_many("q", [NewMessage(b"", stream=stream) for _ in range(count)])
    (head,) = [delivery for delivery in world.broker.claim("q", limit=100) if delivery.stream == stream]
    world.broker.settle([Fail(head, **options)])
    return head.id


def test_blocked_streams_name_the_blocker_since_when_and_until_when(world: World) -> None:
    start = world.clock.now_ms()
    old = blocked(world, "old", 3, retry_in="2h")
    world.clock.advance(seconds=60)
    young = blocked(world, "young", 2, retry_in="1h")
    blocked(world, "alone", 1, retry_in="1h")
    world.broker.enqueue_many("q", [NewMessage(b"", stream="free"), NewMessage(b"", stream="free")])
    assert world.broker.failure_metrics("q").blocked_streams == (
        BlockedStream("old", old, start, start + 7_200_000, 2),
        BlockedStream("young", young, start + 60_000, start + 3_660_000, 1),
    )
    assert [stream.stream for stream in world.broker.failure_metrics("q", streams=1).blocked_streams] == [
        "old"
    ], "the longest held up first"
    assert world.broker.failure_metrics("q", streams=1).blocked_count == 2
    world.restart()
    assert len(world.broker.failure_metrics("q").blocked_streams) == 2


def test_a_held_head_blocks_without_an_end(world: World) -> None:
    head = world.broker.enqueue("q", b"", stream="s")
    world.broker.enqueue("q", b"", stream="s")
    world.broker.hold("q", [head])
    (found,) = world.broker.failure_metrics("q").blocked_streams
    assert (found.blocker, found.until, found.behind) == (head, None, 1)


def test_work_in_progress_and_a_stream_that_goes_on_are_not_blocked(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"", stream="s") for _ in range(3)])
    world.claim_one("q")
    assert world.broker.failure_metrics("q").blocked_streams == ()
    blocked(world, "t", 3, retry_in="1h")
    assert len(world.broker.failure_metrics("q").blocked_streams) == 1
    world.broker.release_stream("q", "t")
    assert world.broker.failure_metrics("q").blocked_streams == ()
    (second,) = [delivery for delivery in world.broker.claim("q", limit=9) if delivery.stream == "t"]
    assert world.broker.failure_metrics("q").blocked_streams == (), "somebody works on it"
    world.broker.settle([Complete(second)])
    assert world.broker.failure_metrics("q").blocked_streams == ()


def test_when_time_unblocks_the_stream_is_off_the_list(world: World) -> None:
    blocked(world, "s", 2, retry_in="1m")
    world.clock.advance(seconds=60)
    assert world.broker.failure_metrics("q").blocked_streams == ()


@pytest.mark.parametrize("streams", [-1, 0, True, "3", None])
def test_a_number_of_streams_that_is_none_is_refused(world: World, streams: Any) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.failure_metrics("q", streams=streams)
    assert refused.value.field == "streams"


def test_a_queue_that_does_not_exist_is_said_to_be_so(world: World) -> None:
    with pytest.raises(errors.QueueNotFound):
        world.broker.failure_metrics("none")
