"""Dead and back, as seed 002 has it: a runbook says how often and how soon, and an operator brings back what
is dead.

Where the seed's retry resets the count, and so nothing would ever die, only an operator's does (DESIGN 4.2).
"""

from __future__ import annotations

import pytest

from fairlead import Complete, Fail, errors
from fairlead.cli.message_view import status_of_message
from fairlead.runbook.apply import apply_plan, plan_for
from fairlead.runbook.check import check_text
from fairlead.runbook.items import make_item
from tests.integration.test_long_poll import waiting_claim
from tests.integration.world import World

QUEUE = "shop/orders"
RUNBOOK = """
project = "shop"
[queue.orders]
type = "persisted"
vars = ["customer"]
{retry}
[queue.issues]
type = "external"
list = ["true"]
take = ["true"]
"""
THREE = 'retry = { attempts = 3, cooldown = "30s" }'


def apply(world: World, retry: str) -> None:
    """What `fairlead apply` does with it."""
    runbook = check_text(RUNBOOK.replace("{retry}", retry), "toml").runbook
    list(apply_plan(plan_for(world.broker, runbook), world.broker))


def push(world: World, customer: str = "ann") -> str:
    queue = check_text(RUNBOOK.replace("{retry}", ""), "toml").runbook.queues["orders"]
    payload, key = make_item(queue, QUEUE, None, {"customer": customer})
    return world.broker.enqueue(QUEUE, payload, dedup_key=key)


def fail(world: World) -> str:
    (delivery,) = world.broker.claim(QUEUE, consumer="billing")
    return world.broker.settle([Fail(delivery, "no money", "dependency_failure")])[0].outcome


def seen(world: World, item: str) -> tuple[str, int]:
    """As `queue show` has it: the status, and the count of failures in this life."""
    info = world.broker.find(item)
    return status_of_message(info), info.attempts


@pytest.mark.parametrize(
    "retry", ["", 'retry = { cooldown = "30s" }', "retry = { attempts = 0 }", 'retry = "none"']
)
def test_without_attempts_an_item_that_fails_is_dead_at_once(world: World, retry: str) -> None:
    apply(world, retry)
    item = push(world)
    assert fail(world) == "dead"
    assert seen(world, item) == ("dead", 1)
    assert world.broker.stats(QUEUE).waiting == 0, "no timer is set"
    world.clock.advance(seconds=86_400)
    assert world.broker.claim(QUEUE) == []


def test_attempts_1_dies_on_the_first_failure_too(world: World) -> None:
    apply(world, 'retry = { attempts = 1, cooldown = "30s" }')
    push(world)
    assert fail(world) == "dead"


def test_attempts_3_fails_waits_its_cooldown_is_pending_again_and_dies_on_the_third_failure(
    world: World,
) -> None:
    apply(world, THREE)
    item = push(world)
    told = [seen(world, item)]
    for _ in range(2):
        assert fail(world) == "retry"
        told.append(seen(world, item))
        assert world.broker.find(item).due_at == world.clock.now_ms() + 30_000
        world.clock.advance(ms=29_999)
        assert world.broker.claim(QUEUE) == [], "not early"
        world.clock.advance(ms=1)
        told.append(seen(world, item))
    assert fail(world) == "dead"
    told.append(seen(world, item))
    assert told == [("pending", 0), ("failed", 1), ("pending", 1), ("failed", 2), ("pending", 2), ("dead", 3)]
    assert world.broker.stats(QUEUE).waiting == 0, "no timer is set"
    info = world.broker.find(item)
    assert [(record.attempt, record.error, record.consumer) for record in info.failures] == [
        (n, "no money", "billing") for n in (1, 2, 3)
    ]


def test_cooldown_0_is_pending_again_at_once_and_runs_three_times(world: World) -> None:
    apply(world, "retry = { attempts = 3 }")
    item = push(world)
    assert [fail(world) for _ in range(3)] == ["retry", "retry", "dead"]
    assert seen(world, item) == ("dead", 3)


def test_an_item_comes_back_from_its_cooldown_to_a_worker_that_waits(world: World) -> None:
    apply(world, THREE)
    item = push(world)
    fail(world)
    worker = waiting_claim(world, QUEUE)
    world.clock.advance(seconds=30)
    assert [delivery.id for delivery in worker.result()] == [item]


@pytest.mark.parametrize("retry", ["", THREE])
def test_a_dead_item_that_is_retried_is_pending_with_a_count_of_0_and_a_worker_is_woken(
    world: World, retry: str
) -> None:
    apply(world, retry)
    item = push(world)
    while fail(world) != "dead":
        world.clock.advance(seconds=30)
    worker = waiting_claim(world, QUEUE)
    assert world.broker.retry(QUEUE, [item]).changed == (item,)
    (delivery,) = worker.result()
    assert (delivery.id, delivery.attempts) == (item, 0)
    assert world.broker.settle([Complete(delivery)])[0].outcome == "completed"
    assert seen(world, item) == ("completed", 0)
    assert world.broker.stats(QUEUE).dead == 0


def test_a_retried_item_has_all_its_attempts_again(world: World) -> None:
    apply(world, THREE)
    item = push(world)
    for _ in range(3):
        fail(world)
        world.clock.advance(seconds=30)
    world.broker.retry(QUEUE, [item])
    assert fail(world) == "retry"
    world.clock.advance(seconds=30)
    assert fail(world) == "retry"
    world.clock.advance(seconds=30)
    assert fail(world) == "dead"


def test_a_failed_item_that_is_retried_runs_now_and_once(world: World) -> None:
    """The timer of the cooldown must not bring it back a second time, whatever has become of it."""
    apply(world, THREE)
    item = push(world)
    fail(world)
    world.clock.advance(seconds=10)
    assert world.broker.retry(QUEUE, [item]).changed == (item,)
    assert seen(world, item) == ("pending", 0)
    (delivery,) = world.broker.claim(QUEUE)
    world.clock.advance(seconds=20)
    world.broker.run_due()
    assert seen(world, item) == ("active", 0)
    assert world.broker.claim(QUEUE) == []
    world.broker.settle([Complete(delivery)])
    world.clock.advance(seconds=30)
    assert world.broker.claim(QUEUE) == []


def test_a_pending_active_or_completed_item_is_not_retried(world: World) -> None:
    apply(world, THREE)
    item = push(world)
    for status in ("pending", "active", "completed"):
        if status == "active":
            (delivery,) = world.broker.claim(QUEUE)
        if status == "completed":
            world.broker.settle([Complete(delivery)])
        with pytest.raises(errors.InvalidRequest, match="to be dead, or waiting after a failure, got"):
            world.broker.retry(QUEUE, [item])
        assert seen(world, item) == (status, 0)


def test_in_bulk_what_cannot_be_retried_is_skipped_with_why(world: World) -> None:
    apply(world, "")
    dead = push(world, "ann")
    fail(world)
    pending = push(world, "bob")
    unknown = "018bcfe5-6800-7000-8000-00000000001a"
    result = world.broker.retry(QUEUE, [pending, dead, unknown])
    assert result.changed == (dead,)
    assert dict(result.skipped) == {
        pending: "neither dead nor waiting after a failure",
        unknown: "not found in this queue",
    }


@pytest.mark.parametrize("away_ms", [0, 20_000, 30_000, 10_000_000])
def test_a_due_time_survives_a_restart_and_is_neither_early_nor_lost(world: World, away_ms: int) -> None:
    apply(world, THREE)
    item = push(world)
    fail(world)
    world.clock.advance(seconds=5)
    world.restart(away_ms=away_ms)
    left_ms = max(0, 25_000 - away_ms)
    if left_ms:
        world.clock.advance(ms=left_ms - 1)
        assert world.broker.claim(QUEUE) == []
        assert seen(world, item) == ("failed", 1)
        world.clock.advance(ms=1)
    (delivery,) = world.broker.claim(QUEUE, limit=9)
    assert (delivery.id, delivery.attempts) == (item, 1)


def test_the_count_survives_a_restart_after_each_failure(world: World) -> None:
    apply(world, THREE)
    item = push(world)
    outcomes = []
    for _ in range(3):
        outcomes.append(fail(world))
        world.restart(away_ms=30_000)
    assert outcomes == ["retry", "retry", "dead"]
    assert seen(world, item) == ("dead", 3)


def test_an_edited_policy_holds_for_later_failures_only(world: World) -> None:
    apply(world, THREE)
    item = push(world)
    fail(world)
    due_at = world.broker.find(item).due_at
    apply(world, 'retry = { attempts = 2, cooldown = "1h" }')
    assert world.broker.find(item).due_at == due_at, "what waits is not moved"
    world.clock.advance(seconds=30)
    assert fail(world) == "dead"


@pytest.mark.parametrize("how", ["drop", "done", "purge", "bury and prune"])
def test_nothing_comes_back_from_a_cooldown_after_it_was_removed(world: World, how: str) -> None:
    apply(world, THREE)
    item = push(world)
    fail(world)
    if how == "purge":
        world.broker.purge(QUEUE)
    elif how == "bury and prune":
        world.broker.bury(QUEUE, [item])
        world.broker.prune(QUEUE)
    else:
        getattr(world.broker, how)(QUEUE, [item])
    world.clock.advance(seconds=30)
    assert world.broker.claim(QUEUE) == []


def test_equal_data_is_one_item_while_it_is_pending_active_or_failed_and_another_when_it_is_over(
    world: World,
) -> None:
    apply(world, 'retry = { attempts = 2, cooldown = "30s" }')
    first = push(world)
    assert push(world) == first, "pending"
    (delivery,) = world.broker.claim(QUEUE)
    assert push(world) == first, "active"
    world.broker.settle([Fail(delivery)])
    assert push(world) == first, "failed"
    world.clock.advance(seconds=30)
    assert fail(world) == "dead"
    second = push(world)
    assert second != first, "dead"
    world.broker.settle([Complete(world.broker.claim(QUEUE)[0])])
    assert push(world) not in (first, second), "completed"


def test_a_dead_item_brought_back_beside_its_equal_is_worked_as_well(world: World) -> None:
    apply(world, "")
    first = push(world)
    fail(world)
    second = push(world)
    world.broker.retry(QUEUE, [first])
    assert {delivery.id for delivery in world.broker.claim(QUEUE, limit=9)} == {first, second}


def test_an_external_queue_has_nothing_to_retry_here(world: World) -> None:
    apply(world, "")
    with pytest.raises(errors.ExternalQueue) as refused:
        world.broker.retry("shop/issues", ["018bcfe5-6800-7000-8000-00000000001a"])
    assert refused.value.taken == "shop/issues.taken"


def test_a_queue_whose_definition_is_gone_can_still_be_managed(world: World) -> None:
    apply(world, "")
    item = push(world)
    fail(world)
    runbook = check_text('project = "shop"', "toml").runbook
    list(apply_plan(plan_for(world.broker, runbook), world.broker))
    assert world.broker.retry(QUEUE, [item]).changed == (item,)
    assert fail(world) == "dead"
    assert world.broker.prune(QUEUE).changed == (item,)
