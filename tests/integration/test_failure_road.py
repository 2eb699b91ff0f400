"""From a failure to a decision: the ceiling, the instruction, the policy; and what is remembered about it."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Complete, Fail, FailureReason, Release
from fairlead.model.delivery import Delivery
from tests.integration.world import World


def fail_until_dead(world: World, **fail: Any) -> tuple[int, Delivery]:
    """How many failures it took, and the dead letter."""
    for failures in range(1, 200):
        (result,) = world.broker.settle([Fail(world.claim_one("q"), **fail)])
        if result.outcome == "dead":
            return failures, world.claim_one("q.dlq")
    raise AssertionError("it would not die")


def test_the_default_policy_tries_again_at_once_at_the_tail_and_for_ever(world: World) -> None:
    first, second = world.fill("q", count=2)
    for attempts in range(100):
        delivery = world.claim_one("q")
        assert (delivery.id, delivery.attempts, delivery.deliveries) == (
            first if attempts % 2 == 0 else second,
            attempts // 2,
            attempts // 2 + 1,
        )
        (result,) = world.broker.settle([Fail(delivery)])
        assert (result.outcome, result.rule, result.due_ms) == ("retry", "retry.immediate", 0)


@pytest.mark.parametrize(
    ("options", "failures", "rule"),
    [
        ({"retry": "none"}, 1, "retry.none"),
        ({"retry": {"policy": "none", "attempts": 5}}, 1, "retry.none"),
        ({"retry": {"policy": "immediate", "attempts": 0}}, 1, "retry.immediate"),
        ({"retry": {"policy": "immediate", "attempts": 1}}, 1, "retry.immediate"),
        ({"retry": {"policy": "immediate", "attempts": 2}}, 2, "retry.immediate"),
        ({"retry": {"policy": "immediate", "attempts": 7}}, 7, "retry.immediate"),
        ({"max_attempts": 1}, 1, "max_attempts"),
        ({"max_attempts": 3}, 3, "max_attempts"),
        ({"max_attempts": 3, "retry": {"policy": "immediate", "attempts": 3}}, 3, "max_attempts"),
        ({"max_attempts": 5, "retry": {"policy": "immediate", "attempts": 3}}, 3, "retry.immediate"),
    ],
)
def test_a_policy_kills_on_the_failure_it_names(
    world: World, options: dict[str, Any], failures: int, rule: str
) -> None:
    world.broker.update_queue("q", **options)
    world.fill("q", count=1)
    took, dead = fail_until_dead(world, error="broke", reason="handler_exception")
    info = world.broker.find(dead.id)
    assert (took, dead.attempts, info.rule) == (failures, failures, rule)
    assert [failure.rule for failure in dead.failures] == ["retry.immediate"] * (failures - 1) + [rule]
    expected = FailureReason.POISON_MESSAGE if rule == "max_attempts" else FailureReason.HANDLER_EXCEPTION
    assert info.reason is expected, "the ceiling makes it poison"
    assert {failure.reason for failure in dead.failures} == {FailureReason.HANDLER_EXCEPTION}


@pytest.mark.parametrize("retry_in", [None, "5s"])
def test_the_ceiling_beats_an_instruction(world: World, retry_in: str | None) -> None:
    world.broker.update_queue("q", max_attempts=1)
    world.fill("q", count=1)
    (result,) = world.broker.settle([Fail(world.claim_one("q"), retry_in=retry_in)])
    assert (result.outcome, result.rule) == ("dead", "max_attempts")


def test_an_instruction_beats_the_policy(world: World) -> None:
    world.broker.update_queue("q", retry="none")
    world.fill("q", count=2)
    later, now = world.broker.claim("q", limit=2)
    results = world.broker.settle([Fail(later, retry_in="5s"), Fail(now, retry_in="0s")])
    assert [(result.outcome, result.rule, result.due_ms) for result in results] == [
        ("retry", "instruction", world.clock.now_ms() + 5000),
        ("retry", "instruction", 0),
    ]
    assert world.claim_one("q").id == now.id
    world.clock.advance(ms=4999)
    assert world.broker.claim("q") == []
    world.clock.advance(ms=1)
    again = world.claim_one("q")
    assert (again.id, again.attempts, again.failures[0].due_ms) == (later.id, 1, world.clock.now_ms())


def test_dead_in_a_settle_kills_at_once_and_keeps_the_reason(world: World) -> None:
    world.fill("q", count=1)
    (result,) = world.broker.settle(
        [
            Fail(
                world.claim_one("q"),
                dead=True,
                reason=FailureReason.VALIDATION_FAILURE,
                error="no such field",
            )
        ]
    )
    assert (result.outcome, result.rule) == ("dead", "instruction")
    (dead,) = world.broker.peek("q.dlq")
    assert (dead.reason, dead.failures[-1].error, dead.rule) == (
        FailureReason.VALIDATION_FAILURE,
        "no such field",
        "instruction",
    )


def test_a_message_that_kills_its_worker_ends_as_a_dead_letter(world: World) -> None:
    world.broker.update_queue("q", max_attempts=3)
    world.fill("q", count=1)
    for _ in range(3):
        world.claim_one("q", consumer="doomed")
        world.clock.advance(ms=30_000)
    dead = world.claim_one("q.dlq")
    assert [(failure.reason, failure.consumer) for failure in dead.failures] == [
        (FailureReason.TIMEOUT_EXCEEDED, "doomed")
    ] * 3


def test_the_policy_in_force_is_the_one_at_the_time_of_the_failure(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.broker.update_queue("q", retry="none")
    assert world.broker.settle([Fail(delivery)])[0].outcome == "dead"


def test_the_first_and_the_last_31_failures_are_kept_and_the_rest_counted(world: World) -> None:
    world.fill("q", count=1)
    for at in range(50):
        world.clock.advance(ms=1)
        world.broker.settle([Fail(world.claim_one("q", consumer=f"c{at}"), error=f"error {at}")])
    (info,) = world.broker.peek("q")
    assert [failure.error for failure in info.failures] == [
        "error 0",
        *(f"error {at}" for at in range(19, 50)),
    ]
    assert [failure.attempt for failure in info.failures] == [1, *range(20, 51)]
    assert [failure.consumer for failure in info.failures] == ["c0", *(f"c{at}" for at in range(19, 50))]
    assert (info.failures_cut, info.attempts) == (18, 50)
    assert info.failures[-1].at_ms == world.clock.now_ms()


def test_32_failures_are_all_kept(world: World) -> None:
    world.fill("q", count=1)
    for at in range(32):
        world.broker.settle([Fail(world.claim_one("q"), error=f"error {at}")])
    (info,) = world.broker.peek("q")
    assert ([failure.error for failure in info.failures], info.failures_cut) == (
        [f"error {at}" for at in range(32)],
        0,
    )


@pytest.mark.parametrize("text", ["x" * 20_000, "ü" * 10_000, "x" * 8193])
def test_a_long_error_is_cut_at_8_kib_and_marked(world: World, text: str) -> None:
    world.fill("q", count=1)
    world.broker.settle([Fail(world.claim_one("q"), error=text)])
    kept = world.claim_one("q").failures[0].error
    assert len(kept.encode()) <= 8192
    assert kept.endswith("[cut by fairlead: error text is kept to 8 KiB]")
    assert kept[:8000].startswith(text[:3000])


def test_an_error_of_8_kib_is_kept_whole(world: World) -> None:
    world.fill("q", count=1)
    world.broker.settle([Fail(world.claim_one("q"), error="x" * 8192)])
    assert world.claim_one("q").failures[0].error == "x" * 8192


def test_max_deliveries_ends_a_loop_of_releases(world: World) -> None:
    world.broker.update_queue("q", max_deliveries=3)
    world.fill("q", count=1)
    outcomes = [world.broker.settle([Release(world.claim_one("q"))])[0].outcome for _ in range(3)]
    assert outcomes == ["released", "released", "dead"]
    (dead,) = world.broker.peek("q.dlq")
    assert (dead.rule, dead.attempts) == ("max_deliveries", 0)
    assert "3 times" in dead.failures[-1].error


def test_max_deliveries_also_ends_a_loop_of_unstarted_expiries(world: World) -> None:
    world.broker.update_queue("q", max_deliveries=2)
    world.fill("q", count=1)
    for _ in range(2):
        world.claim_one("q", started=False)
        world.clock.advance(ms=30_000)
    assert world.counts("q") == (0, 0, 0, 1)


def test_counts_of_attempts_and_deliveries_survive_a_restart(world: World) -> None:
    world.fill("q", count=1)
    world.broker.settle([Fail(world.claim_one("q"))])
    world.restart()
    world.broker.settle([Release(world.claim_one("q"))])
    world.restart()
    delivery = world.claim_one("q")
    assert (delivery.attempts, delivery.deliveries) == (1, 3)
    assert world.broker.settle([Complete(delivery)])[0].ok


def test_a_retry_that_waits_keeps_waiting_over_a_restart(world: World) -> None:
    world.fill("q", count=1)
    world.broker.settle([Fail(world.claim_one("q"), retry_in="60s")])
    world.restart(away_ms=30_000)
    assert world.counts("q") == (0, 1, 0, 0)
    world.clock.advance(ms=30_000)
    assert world.claim_one("q").attempts == 1


def test_a_failed_try_keeps_its_new_place_over_a_restart(world: World) -> None:
    first, second, third = world.fill("q", count=3)
    world.broker.settle([Fail(world.claim_one("q"))])
    world.restart()
    assert [delivery.id for delivery in world.broker.claim("q", limit=5)] == [second, third, first]


def test_a_due_message_takes_the_tail_in_order_of_its_due_time(world: World) -> None:
    late = world.broker.enqueue("q", b"", delay="2s")
    early = world.broker.enqueue("q", b"", delay="1s")
    ready = world.broker.enqueue("q", b"")
    world.clock.advance(seconds=5)
    assert [delivery.id for delivery in world.broker.claim("q", limit=5)] == [ready, early, late]
