"""A step of the wall clock moves nothing that was due: delays, retries, lives, windows, retention and
memories end on time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from fairlead import Complete, Fail, NewMessage
from fairlead.testing import ManualClock
from tests.integration.world import World
from tests.turns import new_place, turn

#: Of every wait with every step on every store.
pytestmark = pytest.mark.sample(25)

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
YEAR = 365 * 24 * HOUR
STEPS = {
    "an hour ahead": HOUR,
    "an hour back": -HOUR,
    "ten years ahead": 10 * YEAR,
    "ten years back": -10 * YEAR,
}

steps = pytest.mark.parametrize("step_ms", STEPS.values(), ids=STEPS.keys())


@dataclass(frozen=True)
class Wait:
    """Something that `begin` starts and that is over, as `ended` tells, after `length_ms` and not a
    millisecond before.
    """

    length_ms: int
    begin: Callable[[World], None]
    ended: Callable[[World], bool]


def _ready(world: World) -> bool:
    return world.counts("q")[0] == 1


def _empty(world: World) -> bool:
    return world.counts("q") == (0, 0, 0, 0) and world.broker.stats("q").done == 0


def _fail(world: World) -> None:
    world.fill("q", count=1)
    world.broker.settle([Fail(world.claim_one("q"), retry_in="10s")])


def _die(world: World) -> None:
    world.broker.update_queue("q", dead_retention="10s")
    world.fill("q", count=1)
    world.broker.settle([Fail(world.claim_one("q"), dead=True)])


def _complete(world: World) -> None:
    world.broker.update_queue("q", retain_completed="10s")
    world.fill("q", count=1)
    world.broker.settle([Complete(world.claim_one("q"))])


def _lease(world: World) -> None:
    world.broker.update_queue("q", visibility_timeout="10s")
    world.fill("q", count=1)
    world.claim_one("q")


def _publish(world: World) -> None:
    world.broker.staging.stage("token", "a", "q", [NewMessage(b"x")])
    world.broker.staging.publish("token", "q", ["a"])


def _consume(world: World) -> None:
    world.fill("q", count=1)
    info = world.broker.consumers.register("etl", "q", ttl="10s")
    world.broker.consumers.claim("etl", "q", info.generation, 1)


WAITS = {
    "delay": Wait(10 * SECOND, lambda world: _ignore(world.broker.enqueue("q", b"", delay="10s")), _ready),
    "retry": Wait(10 * SECOND, _fail, _ready),
    "lease": Wait(10 * SECOND, _lease, _ready),
    "time to live": Wait(
        10 * SECOND, lambda world: _ignore(world.broker.enqueue("q", b"", ttl="10s")), _empty
    ),
    "dedup window": Wait(
        5 * MINUTE,
        lambda world: _ignore(world.broker.enqueue("q", b"", dedup_key="d")),
        lambda world: world.broker.twin("q", "d") is None,
    ),
    "dead letter retention": Wait(10 * SECOND, _die, _empty),
    "retention of completed messages": Wait(10 * SECOND, _complete, _empty),
    "staged write": Wait(
        10 * SECOND,
        lambda world: _ignore(world.broker.staging.stage("token", "a", "q", [NewMessage(b"x")], ttl="10s")),
        lambda world: not world.broker.staging.list(),
    ),
    "memory of a published token": Wait(
        7 * 24 * HOUR, _publish, lambda world: not world.broker.staging.list()
    ),
    "claim of a consumer that stays away": Wait(10 * SECOND, _consume, _ready),
}

waits = pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())


def _ignore(_: object) -> None:
    pass


def _check_after(world: World, wait: Wait, ms: int, *, ended: bool) -> None:
    world.clock.advance(ms=ms)
    world.broker.run_due()
    assert wait.ended(world) is ended


@steps
@waits
def test_a_step_of_the_wall_clock_neither_ends_a_wait_early_nor_holds_it_up(
    world: World, wait: Wait, step_ms: int
) -> None:
    wait.begin(world)
    _check_after(world, wait, wait.length_ms // 2, ended=False)
    world.clock.jump(ms=step_ms)
    _check_after(world, wait, wait.length_ms // 2 - 1, ended=False)
    _check_after(world, wait, 1, ended=True)


@steps
@waits
def test_a_step_while_the_process_restarts_moves_no_wait_as_long_as_the_machine_runs(
    world: World, wait: Wait, step_ms: int
) -> None:
    wait.begin(world)
    _check_after(world, wait, wait.length_ms // 2, ended=False)
    world.restart(jump_ms=step_ms)
    _check_after(world, wait, wait.length_ms // 2 - 1, ended=False)
    _check_after(world, wait, 1, ended=True)


@steps
@waits
def test_a_step_before_the_machine_restarts_moves_no_wait(world: World, wait: Wait, step_ms: int) -> None:
    wait.begin(world)
    world.clock.jump(ms=step_ms)
    _check_after(world, wait, wait.length_ms // 4, ended=False)
    world.reboot(away_ms=wait.length_ms // 4)
    _check_after(world, wait, wait.length_ms // 2 - 1, ended=False)
    _check_after(world, wait, 1, ended=True)


@waits
def test_a_clock_set_back_while_the_machine_restarts_holds_a_wait_up_by_the_time_away_at_most(
    world: World, wait: Wait
) -> None:
    wait.begin(world)
    _check_after(world, wait, wait.length_ms // 2, ended=False)
    world.reboot(away_ms=wait.length_ms // 4, jump_ms=-YEAR)
    _check_after(world, wait, wait.length_ms // 2 - 1, ended=False)
    _check_after(world, wait, 1, ended=True)


@waits
def test_a_clock_set_ahead_while_the_machine_restarts_ends_a_wait_early(world: World, wait: Wait) -> None:
    """Nothing tells such a step from time that passed while the machine was off."""
    wait.begin(world)
    world.reboot(jump_ms=wait.length_ms)
    _check_after(world, wait, 0, ended=True)


@steps
def test_times_are_shown_by_the_wall_clock_of_now(world: World, step_ms: int) -> None:
    world.broker.enqueue("q", b"later", delay="1h")
    began_ms = world.clock.now_ms()
    world.clock.jump(ms=step_ms)
    world.clock.advance(ms=MINUTE)
    (waiting,) = world.broker.peek("q", where="waiting")
    assert (waiting.enqueued_at, waiting.due_at) == (began_ms + step_ms, began_ms + step_ms + HOUR)
    assert world.broker.explain(waiting.id).reasons[0].until_ms == waiting.due_at
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    assert (delivery.enqueued_at, delivery.lease_until - 30_000) == (
        world.clock.now_ms(),
        world.clock.now_ms(),
    )
    assert world.broker.now_ms() == world.clock.now_ms()
    (result,) = world.broker.settle([Fail(delivery, retry_in="5s")])
    assert result.due_ms == world.clock.now_ms() + 5000
    assert world.broker.failure_metrics("q").next_due == result.due_ms
    failed = world.broker.find(delivery.id)
    assert (failed.due_at, failed.failures[0].at_ms, failed.failures[0].due_ms) == (
        result.due_ms,
        world.clock.now_ms(),
        result.due_ms,
    )
    world.broker.quarantine("q", [NewMessage(b"bad")], error="bad")
    dead = world.claim_one("q.dlq")
    assert (dead.dead_since, dead.failures[0].at_ms) == (world.clock.now_ms(), world.clock.now_ms())


def test_times_stay_right_when_a_machine_that_began_with_a_wrong_clock_restarts(world: World) -> None:
    """A machine without a battery begins in 1970 each time, and a time server sets its clock right soon
    after.
    """
    for _ in range(3):
        right_ms = world.clock.now_ms()
        world.reboot(jump_ms=-50 * YEAR)
        world.broker.enqueue("q", b"", delay="1h")
        world.clock.jump(ms=50 * YEAR)
        (waiting,) = world.broker.peek("q", where="waiting")
        assert (waiting.enqueued_at, waiting.due_at) == (right_ms, right_ms + HOUR)
        world.reboot(away_ms=HOUR - 1)
        assert world.counts("q") == (0, 1, 0, 0)
        world.clock.advance(ms=1)
        world.broker.settle([Complete(world.claim_one("q"))])


def test_small_corrections_of_the_clock_change_no_time_that_is_shown(world: World) -> None:
    message_id = world.broker.enqueue("q", b"", delay="1h")
    due_at = world.broker.find(message_id).due_at
    world.clock.jump(ms=999)
    assert world.broker.find(message_id).due_at == due_at


@steps
def test_a_repeated_request_has_no_second_effect_when_the_clock_steps_and_steps_back(
    world: World, step_ms: int
) -> None:
    place = new_place(world.broker)
    first = turn(world.broker, "ann", enqueue={"q": [NewMessage(b"once")]}, place=place)
    world.clock.jump(ms=step_ms)
    world.clock.advance(ms=4 * MINUTE)
    world.clock.jump(ms=-step_ms)
    world.clock.advance(ms=4 * MINUTE)
    again = turn(world.broker, "ann", enqueue={"q": [NewMessage(b"once")]}, place=place)
    assert again.enqueued == first.enqueued
    assert world.counts("q") == (1, 0, 0, 0)


def test_a_repeated_request_has_no_second_effect_after_a_restart_with_a_wrong_clock(world: World) -> None:
    place = new_place(world.broker)
    turn(world.broker, "ann", enqueue={"q": [NewMessage(b"once")]}, place=place)
    world.reboot(jump_ms=HOUR)
    world.broker.run_due()
    world.clock.jump(ms=-HOUR)
    turn(world.broker, "ann", enqueue={"q": [NewMessage(b"once")]}, place=place)
    assert world.counts("q") == (1, 0, 0, 0)


@pytest.mark.parametrize(("step_ms", "told"), [(HOUR, "1h ahead"), (-2 * SECOND, "2s back")])
def test_a_step_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture, step_ms: int, told: str
) -> None:
    with caplog.at_level(logging.WARNING, logger="fairlead.time"):
        world.clock.jump(ms=step_ms)
        world.clock.advance(ms=HOUR)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "fairlead.time"]
    assert told in line


def test_time_goes_on_while_a_manual_clock_is_replaced(world: World) -> None:
    """Another clock counts from elsewhere, as another boot of the machine does."""
    world.broker.enqueue("q", b"", delay="10s")
    world.broker.close()
    world.clock = ManualClock(now_ms=world.clock.now_ms() + 10_000)
    world.restart()
    world.broker.run_due()
    assert world.counts("q") == (1, 0, 0, 0)
