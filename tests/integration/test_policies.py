"""Retry policies on a live broker: what follows each failure, which rule is named, and what a change or a
restart does.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from fairlead import Complete, Fail, FailureReason, Release, SettleResult, errors
from fairlead.testing.engine import seed_jitter, set_attempts
from tests.integration.world import World

MINUTE = 60_000


def fail(world: World, **options: Any) -> SettleResult:
    """Claim the one message that is ready and fail it."""
    (result,) = world.broker.settle([Fail(world.claim_one("q"), **options)])
    return result


def waits(world: World, failures: int, **options: Any) -> list[int]:
    """How long after each failure the message comes back, measured on the clock."""
    found = []
    for _ in range(failures):
        result = fail(world, **options)
        wait_ms = result.due_ms - world.clock.now_ms() if result.due_ms else 0
        if wait_ms:
            world.clock.advance(ms=wait_ms - 1)
            assert world.broker.claim("q") == [], "not a millisecond early"
            world.clock.advance(ms=1)
        found.append(wait_ms)
    return found


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("immediate", [0, 0, 0]),
        ({"policy": "fixed", "cooldown": "0s"}, [0, 0, 0]),
        ({"policy": "fixed", "cooldown": "10s"}, [10_000] * 3),
        ({"cooldown": "10s"}, [10_000] * 3),
        (
            {"policy": "exponential"},
            [MINUTE, 2 * MINUTE, 4 * MINUTE, 8 * MINUTE, 16 * MINUTE, 32 * MINUTE, 60 * MINUTE, 60 * MINUTE],
        ),
        ({"policy": "exponential", "base": "1s", "factor": 3, "cap": "20s"}, [3000, 9000, 20_000, 20_000]),
    ],
)
def test_each_kind_waits_as_long_as_it_says_and_no_less(
    world: World, policy: Any, expected: list[int]
) -> None:
    world.broker.update_queue("q", retry=policy)
    world.fill("q", count=1)
    assert waits(world, len(expected)) == expected
    assert world.claim_one("q").attempts == len(expected)


@pytest.mark.parametrize("attempts", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "policy",
    [{"policy": "immediate"}, {"policy": "fixed", "cooldown": "5s"}, {"policy": "exponential", "base": "5s"}],
)
def test_attempts_n_is_n_executions_and_0_is_as_1(
    world: World, policy: dict[str, Any], attempts: int
) -> None:
    world.broker.update_queue("q", retry={**policy, "attempts": attempts})
    world.fill("q", count=1)
    executions = 0
    while world.counts("q")[3] == 0:
        executions += 1
        result = fail(world)
        world.restart()
        world.clock.advance(seconds=3600)
    assert executions == max(1, attempts)
    assert (result.outcome, result.rule) == ("dead", f"retry.{policy['policy']}")
    dead = world.claim_one("q.dlq")
    assert [failure.attempt for failure in dead.failures] == list(range(1, executions + 1))


def test_full_jitter_spreads_between_now_and_the_whole_delay(world: World) -> None:
    world.broker.update_queue("q", retry={"policy": "fixed", "cooldown": "1m", "jitter": "full"})
    seed_jitter(world.broker, random.Random(7))
    world.fill("q", count=200)
    results = world.broker.settle([Fail(delivery) for delivery in world.broker.claim("q", limit=200)])
    drawn = [result.due_ms - world.clock.now_ms() for result in results if result.due_ms]
    assert all(0 < wait_ms <= MINUTE for wait_ms in drawn)
    assert len(set(drawn)) > 150, "each is drawn for itself"
    assert min(drawn) < MINUTE // 10
    assert max(drawn) > MINUTE * 9 // 10


def test_without_jitter_what_failed_together_comes_back_together(world: World) -> None:
    world.broker.update_queue("q", retry={"policy": "fixed", "cooldown": "1m"})
    ids = world.fill("q", count=5)
    world.broker.settle([Fail(delivery) for delivery in world.broker.claim("q", limit=5)])
    world.clock.advance(ms=MINUTE)
    assert [delivery.id for delivery in world.broker.claim("q", limit=9)] == ids


def test_a_policy_for_a_reason_comes_before_that_of_the_queue(world: World) -> None:
    world.broker.update_queue(
        "q",
        retry={"policy": "fixed", "cooldown": "1s"},
        retry_on={"serialization_error": "none", "transport_unavailable": {"cooldown": "9s"}},
    )
    world.fill("q", count=4)
    broken, down, other, by_number = world.broker.claim("q", limit=4)
    results = world.broker.settle(
        [
            Fail(broken, reason="serialization_error"),
            Fail(down, reason=FailureReason.TRANSPORT_UNAVAILABLE),
            Fail(other, reason="handler_exception"),
            Fail(by_number, reason=1),
        ]
    )
    now = world.clock.now_ms()
    assert [(result.outcome, result.rule, result.due_ms) for result in results] == [
        ("dead", "retry_on.serialization_error.none", 0),
        ("retry", "retry_on.transport_unavailable.fixed", now + 9000),
        ("retry", "retry.fixed", now + 1000),
        ("retry", "retry_on.transport_unavailable.fixed", now + 9000),
    ]


def test_the_attempts_of_a_policy_for_a_reason_count_all_failures(world: World) -> None:
    world.broker.update_queue("q", retry_on={"timeout_exceeded": {"policy": "immediate", "attempts": 3}})
    world.fill("q", count=1)
    assert [fail(world).outcome, fail(world).outcome] == ["retry", "retry"]
    assert fail(world, reason="timeout_exceeded").rule == "retry_on.timeout_exceeded.immediate"
    assert world.counts("q") == (0, 0, 0, 1)


def test_expiry_asks_the_policy_for_timeouts(world: World) -> None:
    world.broker.update_queue("q", retry_on={"timeout_exceeded": {"cooldown": "1h"}})
    world.fill("q", count=1)
    world.claim_one("q")
    world.clock.advance(seconds=30)
    (late,) = world.broker.peek("q", where="waiting")
    assert (late.rule, late.due_at) == ("retry_on.timeout_exceeded.fixed", world.clock.now_ms() + 3_600_000)


def test_messages_of_a_stream_have_a_policy_of_their_own(world: World) -> None:
    world.broker.update_queue("q", retry="immediate", retry_in_stream={"cooldown": "1m"})
    world.broker.enqueue("q", b"", stream="s")
    world.broker.enqueue("q", b"")
    results = world.broker.settle(
        [
            Fail(delivery)
            for delivery in sorted(world.broker.claim("q", limit=2), key=lambda d: d.stream or "")
        ]
    )
    assert [result.rule for result in results] == ["retry.immediate", "retry_in_stream.fixed"]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, "retry_in_stream.exponential"),
        ({"retry": "immediate"}, "retry.immediate"),
        ({"retry": {"cooldown": "5s"}}, "retry.fixed"),
        ({"retry_in_stream": {"cooldown": "5s"}}, "retry_in_stream.fixed"),
        ({"retry_in_stream": None}, "retry.immediate"),
    ],
)
def test_a_queue_made_without_a_word_backs_off_in_streams_only(
    world: World, options: dict[str, Any], rule: str
) -> None:
    info = world.broker.create_queue("new", **options)
    world.broker.enqueue("new", b"", stream="s")
    (result,) = world.broker.settle([Fail(world.claim_one("new"))])
    assert result.rule == rule
    world.restart()
    assert [queue.config for queue in world.broker.queues("new") if queue.name == "new"] == [info.config], (
        "what is in force is written down"
    )


def test_ordering_none_is_no_stream_for_the_policy_either(world: World) -> None:
    world.broker.update_queue("q", ordering="none")
    world.broker.enqueue("q", b"", stream="s")
    assert fail(world).rule == "retry.immediate"


ROAD = [
    # what is set beside everything below it -> who decides
    ({"max_attempts": 1}, {"dead": True}, "max_attempts"),
    ({"max_attempts": 1}, {"retry_in": "1s"}, "max_attempts"),
    ({"max_attempts": 2}, {"dead": True}, "instruction"),
    ({}, {"retry_in": "1s"}, "instruction"),
    ({}, {"retry_in": "0s"}, "instruction"),
    ({}, {}, "retry_on.handler_exception.fixed"),
    ({"retry_on": {}}, {}, "retry_in_stream.fixed"),
    ({"retry_on": {"unknown": "none"}}, {}, "retry_in_stream.fixed"),
    ({"retry_on": {}, "retry_in_stream": None}, {}, "retry.fixed"),
]


@pytest.mark.parametrize(("options", "instruction", "rule"), ROAD)
def test_the_rule_that_decided_is_in_the_result_in_the_record_and_on_the_message(
    world: World, options: dict[str, Any], instruction: dict[str, Any], rule: str
) -> None:
    everything = {
        "retry": {"cooldown": "1s"},
        "retry_in_stream": {"cooldown": "2s"},
        "retry_on": {"handler_exception": {"cooldown": "3s"}},
    }
    world.broker.update_queue("q", **{**everything, **options})
    message_id = world.broker.enqueue("q", b"", stream="s")
    result = fail(world, reason="handler_exception", error="boom", **instruction)
    info = world.broker.find(message_id)
    record = info.failures[-1]
    assert (result.rule, info.rule, record.rule) == (rule, rule, rule)
    assert (record.reason, record.error, record.attempt) == (FailureReason.HANDLER_EXCEPTION, "boom", 1)
    assert record.due_ms == result.due_ms
    assert (result.outcome == "dead") == (info.queue == "q.dlq")


def test_a_changed_policy_holds_from_the_next_failure_and_moves_nothing_that_waits(world: World) -> None:
    world.broker.update_queue("q", retry={"cooldown": "1h"})
    world.fill("q", count=2)
    first, second = world.broker.claim("q", limit=2)
    (before,) = world.broker.settle([Fail(first)])
    world.broker.update_queue("q", retry={"policy": "fixed", "cooldown": "5s", "attempts": 2})
    (after,) = world.broker.settle([Fail(second)])
    now = world.clock.now_ms()
    assert (before.due_ms, after.due_ms) == (now + 3_600_000, now + 5000)
    world.clock.advance(ms=5000)
    assert world.claim_one("q").id == second.id
    world.broker.update_queue("q", retry="none")
    world.clock.advance(ms=3_595_000 - 1)
    assert world.broker.find(first.id).where == "waiting", "it was promised an hour, and that stands"
    world.clock.advance(ms=1)
    assert (
        world.broker.settle([Fail(delivery) for delivery in world.broker.claim("q", limit=5)])[-1].rule
        == "retry.none"
    )


def test_a_lowered_ceiling_kills_at_the_next_failure_not_before(world: World) -> None:
    world.fill("q", count=1)
    for _ in range(5):
        fail(world)
    world.broker.update_queue("q", max_attempts=3)
    assert world.counts("q") == (1, 0, 0, 0)
    assert fail(world).rule == "max_attempts"
    assert world.claim_one("q.dlq").attempts == 6


@pytest.mark.parametrize("away_ms", [0, 29_999, 30_000, 10**9])
def test_a_cooldown_goes_on_while_the_broker_is_away(world: World, away_ms: int) -> None:
    world.broker.update_queue("q", retry={"policy": "fixed", "cooldown": "30s", "attempts": 3})
    world.fill("q", count=1)
    fail(world)
    world.restart(away_ms=away_ms)
    if away_ms < 30_000:
        assert world.broker.claim("q") == []
        world.clock.advance(ms=30_000 - away_ms)
    (again,) = world.broker.claim("q", limit=5)
    assert (again.attempts, again.deliveries) == (1, 2)
    world.clock.advance(seconds=1)
    assert world.broker.claim("q") == [], "once"


def test_a_message_with_a_million_failures_waits_no_longer_than_the_cap(memory_world: World) -> None:
    world = memory_world
    world.broker.update_queue(
        "q", retry={"policy": "exponential", "base": "1s", "factor": 100, "cap": "1h", "attempts": 1_000_000}
    )
    (message_id,) = world.fill("q", count=1)
    fail(world)
    for attempts, outcome in ((999_998, "retry"), (999_999, "dead")):
        world.clock.advance(seconds=3600)
        delivery = world.claim_one("q")
        set_attempts(world.broker, message_id, attempts)
        (result,) = world.broker.settle([Fail(delivery)])
        assert result.outcome == outcome
        if outcome == "retry":
            assert result.due_ms == world.clock.now_ms() + 3_600_000
    assert world.broker.find(message_id).attempts == 1_000_000


def test_releases_never_count_as_failures_but_the_ceiling_on_deliveries_ends_them(world: World) -> None:
    world.broker.update_queue("q", retry={"policy": "immediate", "attempts": 1}, max_deliveries=4)
    world.fill("q", count=1)
    for deliveries in (1, 2, 3):
        delivery = world.claim_one("q")
        assert (delivery.attempts, delivery.deliveries) == (0, deliveries)
        assert world.broker.settle([Release(delivery)])[0].outcome == "released"
    (result,) = world.broker.settle([Release(world.claim_one("q"))])
    assert (result.outcome, result.rule) == ("dead", "max_deliveries")


def test_a_consumer_that_always_crashes_ends_as_a_dead_letter_under_a_limited_policy(world: World) -> None:
    world.broker.update_queue("q", retry={"policy": "fixed", "cooldown": "10s", "attempts": 3})
    world.fill("q", count=1)
    for _ in range(3):
        world.claim_one("q", consumer="doomed")
        world.restart()
        world.clock.advance(seconds=30)
        world.clock.advance(seconds=10)
    dead = world.claim_one("q.dlq")
    assert [(failure.reason, failure.rule) for failure in dead.failures] == [
        (FailureReason.TIMEOUT_EXCEEDED, "retry.fixed")
    ] * 3


def test_an_automatic_retry_keeps_the_count_and_an_operators_retry_or_a_redrive_resets_it(
    world: World,
) -> None:
    world.broker.update_queue("q", retry={"policy": "fixed", "cooldown": "10s", "attempts": 3})
    (message_id,) = world.fill("q", count=1)
    counts = []
    for bring_back in ("time", "operator", "time", "time", "redrive", "time"):
        if fail(world).outcome == "dead":
            assert bring_back == "redrive"
            assert world.broker.redrive("q").moved == 1
        elif bring_back == "operator":
            assert world.broker.retry("q", [message_id]).changed == (message_id,)
        else:
            world.clock.advance(seconds=10)
        counts.append(world.broker.find(message_id).attempts)
    assert counts == [1, 0, 1, 2, 0, 1]


def test_a_failed_retry_goes_behind_what_was_enqueued_meanwhile(world: World) -> None:
    world.broker.update_queue("q", retry={"cooldown": "10s"})
    (first,) = world.fill("q", count=1)
    fail(world)
    (second,) = world.fill("q", count=1)
    world.clock.advance(seconds=10)
    assert [delivery.id for delivery in world.broker.claim("q", limit=5)] == [second, first]


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"retry": {"policy": "fixed", "cooldown": "-1s"}}, "retry.cooldown"),
    ({"retry": {"policy": "fixed", "cooldown": 30}}, "retry.cooldown"),
    ({"retry": {"policy": "fixed", "base": "1s"}}, "retry.base"),
    ({"retry": {"policy": "exponential", "base": "never"}}, "retry.base"),
    ({"retry": {"policy": "exponential", "cap": "-1s"}}, "retry.cap"),
    ({"retry": {"policy": "exponential", "cooldown": "1s"}}, "retry.cooldown"),
    ({"retry": {"policy": "exponential", "factor": 0.5}}, "retry.factor"),
    ({"retry": {"policy": "exponential", "factor": 101}}, "retry.factor"),
    ({"retry": {"policy": "exponential", "factor": float("nan")}}, "retry.factor"),
    ({"retry": {"policy": "exponential", "factor": float("inf")}}, "retry.factor"),
    ({"retry": {"policy": "exponential", "factor": True}}, "retry.factor"),
    ({"retry": {"policy": "exponential", "jitter": "some"}}, "retry.jitter"),
    ({"retry": {"policy": "fixed", "jitter": True}}, "retry.jitter"),
    ({"retry": {"policy": "immediate", "jitter": "full"}}, "retry.jitter"),
    ({"retry": {"policy": "exponential", "attempts": -1}}, "retry.attempts"),
    ({"retry": {"policy": "exponential", "attempts": 1_000_001}}, "retry.attempts"),
    ({"retry": {"policy": "exponential", "attempts": 2.5}}, "retry.attempts"),
    ({"retry": {"policy": "script"}}, "retry.policy"),
    ({"retry_in_stream": {"cooldown": "1s", "attempts": -1}}, "retry_in_stream.attempts"),
    ({"retry_in_stream": 5}, "retry_in_stream"),
    ({"retry_on": {"no_such_reason": "none"}}, "retry_on reason"),
    ({"retry_on": {0: "none"}}, "retry_on reason"),
    ({"retry_on": {"unknown": "never"}}, "retry_on.unknown.policy"),
    ({"retry_on": {"unknown": {"attempts": -1}}}, "retry_on.unknown.attempts"),
    ({"retry_on": ["unknown"]}, "retry_on"),
    ({"retry_on": None}, "retry_on"),
    ({"failure_breaker": 5}, "failure_breaker"),
    ({"failure_breaker": {"failures": 5}}, "failure_breaker"),
    ({"failure_breaker": {"failures": 5, "within": "1m", "pause": "1m", "more": 1}}, "failure_breaker"),
    ({"failure_breaker": {"failures": 0, "within": "1m", "pause": "1m"}}, "failure_breaker.failures"),
    ({"failure_breaker": {"failures": 10_001, "within": "1m", "pause": "1m"}}, "failure_breaker.failures"),
    ({"failure_breaker": {"failures": True, "within": "1m", "pause": "1m"}}, "failure_breaker.failures"),
    ({"failure_breaker": {"failures": 5, "within": 60, "pause": "1m"}}, "failure_breaker.within"),
    ({"failure_breaker": {"failures": 5, "within": "1m", "pause": "-1m"}}, "failure_breaker.pause"),
    ({"failure_breaker": {"failures": 5, "within": "0s", "pause": "1m"}}, "failure_breaker.within"),
    ({"failure_breaker": {"failures": 5, "within": "1m", "pause": "0s"}}, "failure_breaker.pause"),
    ({"max_attempts": -1}, "max_attempts"),
    ({"poison_after": -1}, "poison_after"),
    ({"poison_after": "10"}, "poison_after"),
    ({"ordering": "loose"}, "ordering"),
]


@pytest.mark.parametrize(("options", "field"), BAD_OPTIONS, ids=str)
def test_a_policy_that_makes_no_sense_is_refused_at_the_call_that_sets_it(
    memory_world: World, options: dict[str, Any], field: str
) -> None:
    world = memory_world
    before = world.store.last_commit, world.broker.queues()
    for call in (
        lambda: world.broker.create_queue("new", **options),
        lambda: world.broker.update_queue("q", **options),
    ):
        with pytest.raises(errors.InvalidRequest) as refused:
            call()
        assert refused.value.field == field
    assert (world.store.last_commit, world.broker.queues()) == before


@pytest.mark.parametrize(
    "bad",
    [
        {"reason": "no_such_reason"},
        {"reason": 0},
        {"reason": 8},
        {"reason": True},
        {"reason": None},
        {"retry_in": "-1s"},
        {"retry_in": 5},
        {"retry_in": "1s", "dead": True},
        {"dead": "yes"},
        {"error": b"bytes"},
        {"progress": -1},
        {"progress": 1 << 64},
    ],
    ids=str,
)
def test_a_failure_that_makes_no_sense_changes_nothing_and_leaves_the_lease(
    world: World, bad: dict[str, Any]
) -> None:
    world.fill("q", count=2)
    delivery, neighbour = world.broker.claim("q", limit=2)
    refused, fine = world.broker.settle([Fail(delivery, **bad), Complete(neighbour)])
    assert (refused.outcome, refused.ok, fine.outcome) == ("invalid", False, "completed")
    assert "expected" in refused.error
    assert world.counts("q") == (0, 0, 1, 0)
    assert world.broker.settle([Fail(delivery)])[0].outcome == "retry"
    assert world.claim_one("q").attempts == 1
