"""Messages that can never succeed, and failures that pile up: found, ended, and spread out."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Complete, DeadFilter, Fail, FailureReason, NewMessage, Release, SettleResult
from tests.integration.world import World

PAUSE = 300_000


def fail(world: World, count: int = 1, **options: Any) -> list[SettleResult]:
    """So many ready messages claimed and failed, one after the other."""
    return [world.broker.settle([Fail(world.claim_one("q"), **options)])[0] for _ in range(count)]


def breaker(world: World, failures: int = 3, within: str = "1m", pause: str = "5m") -> None:
    world.broker.update_queue("q", failure_breaker={"failures": failures, "within": within, "pause": pause})


# Poison


def test_the_ceiling_makes_a_message_poison_and_keeps_the_reason_of_each_try(world: World) -> None:
    world.broker.update_queue("q", max_attempts=3)
    world.fill("q", count=1)
    assert [result.outcome for result in fail(world, 3, reason="serialization_error", error="no JSON")] == [
        "retry",
        "retry",
        "dead",
    ]
    (dead,) = world.broker.peek("q.dlq")
    assert (dead.reason, dead.rule, dead.attempts) == (FailureReason.POISON_MESSAGE, "max_attempts", 3)
    assert {(failure.reason, failure.error) for failure in dead.failures} == {
        (FailureReason.SERIALIZATION_ERROR, "no JSON")
    }
    assert "poison_message" in str(world.broker.explain(dead.id))


@pytest.mark.parametrize("rule", ["instruction", "retry.none", "retry.immediate", "operator"])
def test_other_deaths_are_not_called_poison(world: World, rule: str) -> None:
    (message_id,) = world.fill("q", count=1)
    if rule == "operator":
        world.broker.bury("q", [message_id], reason="validation_failure")
    else:
        world.broker.update_queue(
            "q",
            retry={"policy": rule.removeprefix("retry."), "attempts": 1}
            if rule != "instruction"
            else "immediate",
        )
        fail(world, reason="validation_failure", dead=rule == "instruction")
    (dead,) = world.broker.peek("q.dlq")
    assert (dead.reason, dead.rule) == (FailureReason.VALIDATION_FAILURE, rule)


def test_poison_can_be_selected_and_brought_back(world: World) -> None:
    world.broker.update_queue("q", max_attempts=1)
    world.fill("q", count=2)
    fail(world, 2)
    world.broker.quarantine("q", [NewMessage(b"other")])
    assert world.broker.redrive("q", filter=DeadFilter(reason="poison_message")).moved == 2


def test_candidates_are_reported_and_nothing_is_done_about_them(world: World) -> None:
    (message_id,) = world.fill("q", count=1)
    fail(world, 15)
    (candidate,) = world.broker.failure_metrics("q").poison_candidates
    assert candidate.id == message_id
    assert world.counts("q") == (1, 0, 0, 0), "without a ceiling it is tried for ever"


# The failure breaker


def test_the_nth_failure_of_a_reason_opens_it_and_that_one_already_waits(world: World) -> None:
    breaker(world)
    world.fill("q", count=5)
    results = fail(world, 5, reason="transport_unavailable")
    end = world.clock.now_ms() + PAUSE
    assert [result.due_ms for result in results] == [0, 0, end, end, end]
    assert [result.rule for result in results] == ["retry.immediate"] * 2 + [
        "retry.immediate + failure_breaker"
    ] * 3
    (late, *_) = world.broker.peek("q", where="waiting")
    assert late.failures[-1].rule == "retry.immediate + failure_breaker"
    assert "failure_breaker" in str(world.broker.explain(late.id))


def test_nothing_already_queued_moves(world: World) -> None:
    breaker(world)
    world.fill("q", count=3)
    fail(world, retry_in="10s", reason="unknown")
    fresh = world.fill("q", count=2)
    fail(world, 2, reason="unknown")
    assert world.broker.find(fresh[0]).where == "ready", "a fresh message has not failed with that reason"
    assert world.counts("q") == (3, 2, 0, 0)
    world.clock.advance(seconds=10)
    assert world.counts("q") == (4, 1, 0, 0), "a retry that was scheduled before comes when it was to come"


def test_another_reason_has_a_breaker_of_its_own(world: World) -> None:
    breaker(world)
    world.fill("q", count=5)
    fail(world, 3, reason="transport_unavailable")
    assert [result.due_ms for result in fail(world, 2, reason="validation_failure")] == [0, 0]


def test_another_queue_has_a_breaker_of_its_own(world: World) -> None:
    breaker(world)
    world.broker.create_queue(
        "other", retry="immediate", failure_breaker={"failures": 3, "within": "1m", "pause": "5m"}
    )
    world.fill("q", count=3)
    fail(world, 3)
    world.fill("other", count=1)
    assert world.broker.settle([Fail(world.claim_one("other"))])[0].due_ms == 0


def test_failures_further_apart_than_the_window_never_open_it(world: World) -> None:
    breaker(world)
    world.fill("q", count=1)
    for _ in range(10):
        assert fail(world)[0].due_ms == 0
        world.clock.advance(seconds=30)


def test_the_first_one_due_is_the_probe_and_its_failure_opens_it_again(world: World) -> None:
    breaker(world)
    world.fill("q", count=3)
    fail(world, 3)
    world.clock.advance(ms=PAUSE)
    (probe,) = fail(world)
    assert probe.due_ms == world.clock.now_ms() + PAUSE, "one is enough now"
    assert fail(world)[0].due_ms == probe.due_ms


def test_a_probe_that_succeeds_and_a_quiet_window_close_it(world: World) -> None:
    breaker(world)
    world.fill("q", count=4)
    fail(world, 4)
    world.clock.advance(ms=PAUSE)
    world.broker.settle([Complete(world.claim_one("q"))])
    world.clock.advance(seconds=60)
    assert [result.due_ms for result in fail(world, 2)] == [0, 0], "it counts from nothing again"


def test_a_policy_that_waits_longer_than_the_breaker_has_its_way(world: World) -> None:
    breaker(world)
    world.broker.update_queue("q", retry={"cooldown": "1h"})
    world.fill("q", count=4)
    results = fail(world, 4)
    assert {(result.rule, result.due_ms) for result in results} == {
        ("retry.fixed", world.clock.now_ms() + 3_600_000)
    }


def test_an_instruction_is_put_off_as_well(world: World) -> None:
    breaker(world, failures=1)
    world.fill("q", count=1)
    (result,) = fail(world, retry_in="1s")
    assert (result.rule, result.due_ms) == ("instruction + failure_breaker", world.clock.now_ms() + PAUSE)


def test_it_never_kills_and_never_saves(world: World) -> None:
    breaker(world, failures=1)
    world.broker.update_queue("q", retry={"policy": "immediate", "attempts": 2})
    world.fill("q", count=1)
    assert fail(world)[0].outcome == "retry"
    world.clock.advance(ms=PAUSE)
    assert fail(world)[0].rule == "retry.immediate"
    assert world.counts("q") == (0, 0, 0, 1)


def test_deaths_count_towards_it(world: World) -> None:
    breaker(world)
    world.fill("q", count=3)
    fail(world, 2, dead=True)
    assert fail(world)[0].rule == "retry.immediate + failure_breaker"


def test_expiries_count_towards_it_and_releases_do_not(world: World) -> None:
    breaker(world)
    world.fill("q", count=3)
    for delivery in world.broker.claim("q", limit=3):
        world.broker.settle([Release(delivery)])
    assert world.counts("q") == (3, 0, 0, 0)
    world.broker.claim("q", limit=3)
    world.clock.advance(seconds=30)
    assert world.counts("q") == (2, 1, 0, 0)
    (late,) = world.broker.peek("q", where="waiting")
    assert (late.reason, late.rule) == (FailureReason.TIMEOUT_EXCEEDED, "retry.immediate + failure_breaker")


def test_in_a_stream_the_pause_blocks_like_any_wait(world: World) -> None:
    breaker(world, failures=1)
    world.broker.enqueue_many("q", [NewMessage(b"a", stream="s"), NewMessage(b"b", stream="s")])
    fail(world, retry_in="0s")
    assert world.broker.claim("q") == []
    world.clock.advance(ms=PAUSE)
    assert [delivery.payload for delivery in world.broker.claim("q", limit=2, max_per_stream=2)] == [
        b"a",
        b"b",
    ]


def test_switched_off_it_has_no_say_and_what_waits_goes_on_waiting(world: World) -> None:
    breaker(world, failures=1)
    world.fill("q", count=2)
    fail(world)
    world.broker.update_queue("q", failure_breaker=None)
    assert fail(world)[0].due_ms == 0
    assert world.counts("q") == (1, 1, 0, 0)


def test_after_a_restart_it_counts_from_nothing_and_due_times_stand(world: World) -> None:
    breaker(world)
    world.fill("q", count=4)
    fail(world, 3)
    world.restart()
    assert world.counts("q") == (3, 1, 0, 0)
    assert fail(world)[0].due_ms == 0
    world.clock.advance(ms=PAUSE)
    assert world.counts("q") == (4, 0, 0, 0)
