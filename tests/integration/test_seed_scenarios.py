"""The scenarios of the seed texts that need no hook, told as they tell them."""

from __future__ import annotations

from fairlead import Complete, Fail, FailureReason, NewMessage, Progress, Release
from tests.integration.world import World
from tests.turns import turn

MINUTE = 60_000


def test_a_nack_counts_an_attempt_and_without_a_script_retries_at_once_and_for_ever(world: World) -> None:
    """Seed 000: nack -> attempt count; no script -> immediate, unlimited."""
    (message_id,) = world.fill("q", count=1)
    for attempts in range(1, 30):
        world.claim_one("q")
        result = world.broker.nack("q", message_id, "boom")
        assert (result.outcome, result.due_ms) == ("retry", 0)
        assert world.broker.find(message_id).attempts == attempts
    assert world.claim_one("q").failures[-1].error == "boom"


def test_a_failure_is_marked_with_its_error_and_scheduled_and_its_lease_is_cleared(world: World) -> None:
    """Seed 004: status | Failed, attempts + 1, scheduled 30 s x 2^1 from now, no owner."""
    message_id = world.broker.enqueue("q", b"", stream="s")
    delivery = world.claim_one("q", consumer="instance")
    world.broker.settle([Fail(delivery, error="Network timeout", progress=Progress.STORED)])
    info = world.broker.find(message_id)
    assert (info.progress, info.attempts, info.consumer, info.lease_until) == (32769, 1, None, None)
    assert (info.failures[-1].error, info.due_at) == ("Network timeout", world.clock.now_ms() + MINUTE)


def test_the_retry_schedule_of_the_seed(world: World) -> None:
    """1, 2, 4, 8, 16 minutes after the first five failures; then, ours, no more than an hour."""
    world.broker.enqueue("q", b"", stream="s")
    minutes = []
    for _ in range(8):
        (result,) = world.broker.settle([Fail(world.claim_one("q"))])
        minutes.append((result.due_ms - world.clock.now_ms()) / MINUTE)
        world.clock.advance(ms=result.due_ms - world.clock.now_ms())
    assert minutes == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_scheduled_retry_blocks_later_messages_of_its_stream(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(name, stream="s") for name in (b"m1", b"m2")])
    world.broker.settle([Fail(world.claim_one("q"))])
    world.clock.advance(ms=MINUTE - 1)
    assert world.broker.claim("q", limit=9, max_per_stream=9) == []


def test_a_scheduled_retry_that_is_due_unblocks_its_stream(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(name, stream="s") for name in (b"m1", b"m2")])
    world.broker.settle([Fail(world.claim_one("q"))])
    world.clock.advance(ms=MINUTE)
    first, second = world.broker.claim("q", limit=9, max_per_stream=9)
    assert (first.payload, first.attempts, second.payload) == (b"m1", 1, b"m2")
    assert [result.outcome for result in world.broker.settle([Complete(first), Complete(second)])] == [
        "completed"
    ] * 2


def test_the_cascade_of_the_seed_releases_later_messages_and_they_finish_while_the_first_waits(
    world: World,
) -> None:
    world.broker.enqueue_many("q", [NewMessage(name, stream="s") for name in (b"m1", b"m2", b"m3")])
    m1, m2, m3 = world.broker.claim("q", limit=3, max_per_stream=3)
    done = turn(
        world.broker,
        "instance",
        settle=[Fail(m1, error="Processing failed", progress=Progress.STORED), Release(m2), Release(m3)],
    )
    assert [result.outcome for result in done.settled] == ["retry", "released", "released"]
    again = world.broker.claim("q", limit=9, max_per_stream=9, consumer="another instance")
    assert [(delivery.payload, delivery.attempts, delivery.progress) for delivery in again] == [
        (b"m2", 0, 0),
        (b"m3", 0, 0),
    ], "unchanged"
    world.broker.settle([Complete(delivery, progress=Progress.PUBLISHED) for delivery in again])
    assert world.counts("q") == (0, 1, 0, 0)
    world.clock.advance(ms=MINUTE)
    assert world.claim_one("q").payload == b"m1"


def test_partial_completion_is_ored_over_the_tries(world: World) -> None:
    """Seed 004: (Stored | EventStored) | Failed, and never less."""
    world.fill("q", count=1)
    world.broker.settle(
        [
            Fail(
                world.claim_one("q"),
                progress=Progress.STORED | Progress.EVENT_STORED,
                error="Transport unavailable",
            )
        ]
    )
    world.broker.settle([Fail(world.claim_one("q"), progress=Progress.STORED)])
    assert world.claim_one("q").progress == Progress.STORED | Progress.EVENT_STORED | Progress.FAILED


def test_a_plain_failure_shows_the_failed_bit_alone(world: World) -> None:
    """Seed 004 counts a message that is stored as stored; here progress has only what consumers report."""
    world.broker.enqueue("q", b"")
    world.broker.settle([Fail(world.claim_one("q"), retry_in="0s")])
    assert world.claim_one("q").progress == Progress.FAILED == 32768


def test_the_troubleshooting_of_a_blocked_stream(world: World) -> None:
    """Seed 004: find the blocking message, see that it is poison, set it aside or retry it now."""
    world.broker.enqueue_many("q", [NewMessage(name, stream="s") for name in (b"m1", b"m2")])
    for _ in range(10):
        world.broker.settle([Fail(world.claim_one("q"), reason="serialization_error")])
        world.clock.advance(ms=60 * MINUTE)
    world.broker.settle([Fail(world.claim_one("q"), reason="serialization_error")])
    metrics = world.broker.failure_metrics("q")
    (blocked,) = metrics.blocked_streams
    assert [candidate.id for candidate in metrics.poison_candidates] == [blocked.blocker]
    assert metrics.by_reason == {"serialization_error": 1}
    assert world.broker.retry("q", [blocked.blocker]).changed
    again = world.claim_one("q")
    assert (again.payload, again.attempts) == (b"m1", 0)
    world.broker.bury("q", [again.id], reason=FailureReason.POISON_MESSAGE)
    assert world.claim_one("q").payload == b"m2"


def test_the_runbook_loop_of_seed_002_dies_on_the_third_failure_and_an_operator_brings_it_back(
    world: World,
) -> None:
    """attempts = 3, cooldown = 30s: fail, wait, fail, wait, fail -> dead; retry -> pending with a count of 0."""
    world.broker.update_queue("q", retry={"cooldown": "30s", "attempts": 3})
    (message_id,) = world.fill("q", count=1)
    outcomes = []
    for _ in range(3):
        outcomes.append(world.broker.settle([Fail(world.claim_one("q"))])[0].outcome)
        world.restart()
        world.clock.advance(seconds=30)
    assert outcomes == ["retry", "retry", "dead"]
    assert world.broker.retry("q", [message_id]).changed == (message_id,)
    again = world.claim_one("q")
    assert again.attempts == 0
    assert world.broker.settle([Complete(again)])[0].outcome == "completed"


def test_attempts_zero_is_dead_at_once_as_in_seed_002(world: World) -> None:
    world.broker.update_queue("q", retry={"cooldown": "30s", "attempts": 0})
    world.fill("q", count=1)
    assert world.broker.settle([Fail(world.claim_one("q"))])[0].outcome == "dead"


def test_a_lease_that_ends_makes_the_message_ready_again_as_in_seed_000(world: World) -> None:
    (message_id,) = world.fill("q", count=1)
    world.claim_one("q")
    world.clock.advance(seconds=30)
    again = world.claim_one("q")
    assert (again.id, again.attempts) == (message_id, 1)


def test_redrive_brings_the_longest_dead_back_first_with_a_count_of_zero_as_in_seed_001(world: World) -> None:
    ids = world.fill("q", count=3)
    for _ in ids:
        world.broker.settle([Fail(world.claim_one("q"), dead=True)])
        world.clock.advance(ms=1)
    assert world.broker.redrive("q.dlq", count=2).moved == 2
    back = world.broker.claim("q", limit=9)
    assert [(delivery.id, delivery.attempts) for delivery in back] == [(ids[0], 0), (ids[1], 0)]
    assert world.counts("q") == (0, 0, 2, 1)
