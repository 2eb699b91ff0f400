"""Dead letters: a real queue with rules of its own."""

from __future__ import annotations

import pytest

from fairlead import Complete, Extend, Fail, FailureReason, NewMessage, Release, Start, errors
from tests.integration.world import Background, World, wait_until


def bury(world: World, count: int, **options: object) -> list[str]:
    """That many dead letters in q.dlq."""
    world.fill("q", count=count, **options)
    claimed = world.broker.claim("q", limit=count)
    world.broker.settle([Fail(delivery, dead=True, error="broke") for delivery in claimed])
    return [delivery.id for delivery in claimed]


def test_a_dead_letter_keeps_all_that_is_known_about_it(world: World) -> None:
    message_id = world.broker.enqueue(
        "q", b"body", headers={"h": "1"}, fairness_key="k", weight=3, throttle_keys=["t"]
    )
    enqueued_at = world.clock.now_ms()
    world.clock.advance(ms=5)
    world.broker.settle([Fail(world.claim_one("q", consumer="ann"), error="first", reason=1, progress=1)])
    world.clock.advance(ms=5)
    world.broker.settle(
        [Fail(world.claim_one("q", consumer="bob"), error="second", reason=2, progress=4, dead=True)]
    )
    died_at = world.clock.now_ms()
    world.clock.advance(ms=5)
    world.restart()
    dead = world.claim_one("q.dlq")
    assert (dead.id, dead.payload, dead.headers, dead.fairness_key, dead.weight) == (
        message_id,
        b"body",
        {"h": "1"},
        "k",
        3,
    )
    assert (dead.queue, dead.source, dead.dead_since, dead.enqueued_at) == (
        "q.dlq",
        "q",
        died_at,
        enqueued_at,
    )
    assert (dead.attempts, dead.deliveries, int(dead.progress), dead.throttle_keys) == (
        2,
        1,
        1 | 4 | 32768,
        ("t",),
    )
    assert [
        (failure.at_ms, failure.attempt, failure.reason, failure.error, failure.consumer, failure.rule)
        for failure in dead.failures
    ] == [
        (died_at - 5, 1, 1, "first", "ann", "retry.immediate"),
        (died_at, 2, 2, "second", "bob", "instruction"),
    ]
    assert world.counts("q") == (0, 0, 0, 1)
    assert world.counts("q.dlq") == (0, 0, 1, 1)


def test_dead_letters_come_in_the_order_of_their_death_whatever_their_key(world: World) -> None:
    ids = []
    for key in ("b", "a", "c", "a"):
        world.clock.advance(ms=1)
        ids += bury(world, 1, key=key, weight=10, throttle_keys=["t"])
    assert [delivery.id for delivery in world.broker.claim("q.dlq", limit=10)] == ids


def test_throttles_do_not_apply_to_dead_letters(world: World) -> None:
    bury(world, 3, throttle_keys=["t"])
    world.broker.config.set("throttle:t:rate", 0)
    assert len(world.broker.claim("q.dlq", limit=10)) == 3


def test_a_dead_letter_can_be_completed(world: World) -> None:
    bury(world, 1)
    assert world.broker.settle([Complete(world.claim_one("q.dlq"))])[0].outcome == "completed"
    assert world.counts("q") == (0, 0, 0, 0)


@pytest.mark.parametrize("how", ["fail", "fail dead", "fail later", "release", "expiry", "nack"])
def test_inside_a_dead_letter_queue_a_failure_is_a_release(world: World, how: str) -> None:
    world.broker.update_queue("q", max_attempts=1)
    first, _ = bury(world, 2)
    delivery = world.claim_one("q.dlq")
    before = world.broker.find(delivery.id)
    if how == "expiry":
        world.clock.advance(ms=30_000)
    elif how == "nack":
        assert world.broker.nack("q.dlq", delivery.id, "again").outcome == "released"
    else:
        options = {"fail dead": {"dead": True}, "fail later": {"retry_in": "5s"}}.get(how, {})
        item = Release(delivery) if how == "release" else Fail(delivery, error="again", **options)  # type: ignore[arg-type]
        assert world.broker.settle([item])[0].outcome == "released"
    again = world.claim_one("q.dlq")
    assert again.id == first, "back at its place"
    assert (again.failures, again.attempts, again.dead_since, again.deliveries) == (
        before.failures,
        before.attempts,
        before.dead_since,
        2,
    )


def test_extend_and_start_work_in_a_dead_letter_queue(world: World) -> None:
    bury(world, 1)
    delivery = world.claim_one("q.dlq", started=False)
    results = world.broker.settle([Start(delivery), Extend(delivery, "2m", progress=8)])
    assert [result.outcome for result in results] == ["started", "extended"]
    world.clock.advance(seconds=60)
    world.broker.settle([Release(delivery)])
    assert int(world.claim_one("q.dlq").progress) == 8 | 32768


def test_producers_cannot_enqueue_into_a_dead_letter_queue(world: World) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.enqueue("q.dlq", b"")
    assert refused.value.field == "queue"
    assert "quarantine" in str(refused.value)


def test_quarantine_puts_messages_straight_among_the_dead_letters(world: World) -> None:
    ids = world.broker.quarantine(
        "q",
        [NewMessage(b"1", fairness_key="a"), NewMessage(b"2")],
        reason="serialization_error",
        error="cannot be read",
    )
    assert world.counts("q") == (0, 0, 0, 2)
    world.restart()
    claimed = world.broker.claim("q.dlq", limit=5)
    assert [(delivery.id, delivery.payload) for delivery in claimed] == [(ids[0], b"1"), (ids[1], b"2")]
    assert {(delivery.source, delivery.attempts) for delivery in claimed} == {("q", 0)}
    (failure,) = claimed[0].failures
    assert (failure.reason, failure.error, failure.rule) == (
        FailureReason.SERIALIZATION_ERROR,
        "cannot be read",
        "quarantine",
    )
    world.broker.settle([Release(delivery) for delivery in claimed])
    assert world.broker.redrive("q", ids=ids).moved == 2
    assert [delivery.fairness_key for delivery in world.broker.claim("q", limit=5)] == ["a", "default"]


def test_quarantine_wants_the_queue_and_not_its_dead_letters(world: World) -> None:
    with pytest.raises(errors.InvalidRequest):
        world.broker.quarantine("q.dlq", [NewMessage(b"")])
    assert world.broker.quarantine("q", []) == []


def test_a_waiting_claim_on_a_dead_letter_queue_gets_the_next_dead_letter(world: World) -> None:
    claim = Background(lambda: world.broker.claim("q.dlq", wait="1h"))
    wait_until(lambda: world.broker.stats("q.dlq").consumers == 1)
    (message_id,) = bury(world, 1)
    assert [delivery.id for delivery in claim.result()] == [message_id]


def test_dead_letters_stay_for_ever_unless_a_retention_is_set(world: World) -> None:
    bury(world, 2)
    world.clock.advance(seconds=10 * 365 * 24 * 3600)
    assert world.counts("q")[3] == 2
    world.broker.update_queue("q", dead_retention="1h")
    world.broker.run_due()
    assert world.counts("q")[3] == 0


def test_a_dead_letter_goes_when_its_own_retention_is_over(world: World) -> None:
    world.broker.update_queue("q", dead_retention="10s")
    bury(world, 2)
    world.clock.advance(seconds=5)
    (later,) = bury(world, 1)
    world.clock.advance(ms=4999)
    assert world.counts("q")[3] == 3
    world.clock.advance(ms=1)
    assert [info.id for info in world.broker.peek("q.dlq")] == [later]
    world.restart(away_ms=5000)
    world.broker.run_due()
    assert world.counts("q")[3] == 0


def test_a_leased_dead_letter_outlives_its_retention_until_it_is_released(world: World) -> None:
    world.broker.update_queue("q", dead_retention="10s")
    bury(world, 2)
    held = world.claim_one("q.dlq")
    world.clock.advance(seconds=20)
    assert world.counts("q.dlq") == (0, 0, 1, 1)
    world.broker.settle([Release(held)])
    world.broker.run_due()
    assert world.counts("q.dlq") == (0, 0, 0, 0)


def test_retention_of_more_than_one_step_drops_all(world: World) -> None:
    world.broker.update_queue("q", dead_retention="10s")
    bury(world, 2300)
    world.clock.advance(seconds=10)
    assert world.counts("q.dlq") == (0, 0, 0, 0)
