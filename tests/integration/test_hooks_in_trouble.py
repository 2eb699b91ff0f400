"""Hooks that fail, hooks that are slow, and dead letters that go through them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Complete, DeadFilter, Extend, Fail, NewMessage
from fairlead.errors import BrokerClosed, QueueNotFound
from fairlead.testing.between import between_steps
from fairlead.testing.engine import hooks_of
from tests.integration.test_hooks import BROKEN_ENQUEUE, BROKEN_FAILURE, BY_HEADERS, THREE_TRIES
from tests.integration.world import Background, World

OWN = {"fairness_key": "mine", "weight": 3, "throttle_keys": ["a"], "headers": {"tenant": "acme"}}


def meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, function: str, action: Callable[[], object]
) -> None:
    """Once, after the hook was asked and before its answer comes back, do something else."""
    ask, pending = getattr(hooks_of(world.broker), function), [action]

    def slow(*arguments: Any) -> Any:
        answer = ask(*arguments)
        if pending:
            pending.pop()()
        return answer

    monkeypatch.setattr(hooks_of(world.broker), function, slow)


def fail_one(world: World, queue: str = "q") -> tuple[str, str, int]:
    world.broker.enqueue(queue, b"x")
    (result,) = world.broker.settle([Fail(world.claim_one(queue), error="boom")])
    return result.outcome, result.rule, result.due_ms


def test_an_enqueue_whose_hook_fails_gets_the_defaults_until_the_breaker_closes(world: World) -> None:
    world.broker.update_queue(
        "q", on_enqueue="function on_enqueue(msg) if fila.get('ok') then return {} end error('broken') end"
    )
    world.broker.enqueue_many("q", [NewMessage(b"x", stream="s", **OWN) for _ in range(5)])  # type: ignore[arg-type]
    deliveries = world.broker.claim("q", limit=5, max_per_stream=5)
    assert [(d.fairness_key, d.weight, d.throttle_keys, d.stream) for d in deliveries] == [
        ("default", 1, (), "s")
    ] * 5
    (hook,) = world.broker.stats("q").hooks
    assert (hook.function, hook.calls, hook.failures, hook.bypassed, hook.consecutive) == (
        "on_enqueue",
        3,
        3,
        2,
        3,
    )
    assert (hook.breaker_open_until_ms, hook.last_error) == (
        world.clock.now_ms() + 10_000,
        "on_enqueue:1: broken",
    )
    world.broker.config.set("ok", "yes")
    world.broker.enqueue("q", b"still open", **OWN)
    assert world.claim_one("q").fairness_key == "default"
    world.clock.advance(seconds=10)
    world.broker.enqueue("q", b"closed", **OWN)
    assert world.claim_one("q").fairness_key == "mine"
    (hook,) = world.broker.stats("q").hooks
    assert (hook.calls, hook.failures, hook.bypassed, hook.consecutive, hook.breaker_open_until_ms) == (
        4,
        3,
        3,
        0,
        None,
    )


def test_an_open_breaker_on_failure_means_again_at_once(memory_world: World) -> None:
    memory_world.broker.create_queue("h", on_failure=BROKEN_FAILURE)
    assert [fail_one(memory_world, "h") for _ in range(5)] == [("retry", "retry.immediate", 0)] * 5
    (hook,) = memory_world.broker.stats("h").hooks
    assert (hook.calls, hook.failures, hook.bypassed) == (3, 3, 2)
    memory_world.broker.enqueue("h", b"x", stream="s", fairness_key="other")
    ordered = next(d for d in memory_world.broker.claim("h", limit=10) if d.stream)
    assert memory_world.broker.settle([Fail(ordered)])[0].rule == "retry.immediate", "also in a stream"


def test_with_a_policy_of_its_own_the_queue_falls_back_on_that(memory_world: World) -> None:
    memory_world.broker.create_queue(
        "h", on_failure=BROKEN_FAILURE, retry={"policy": "fixed", "cooldown": "5s", "attempts": 2}
    )
    for _ in range(4):
        assert fail_one(memory_world, "h") == ("retry", "retry.fixed", memory_world.clock.now_ms() + 5000)
    memory_world.clock.advance(seconds=5)
    (result,) = memory_world.broker.settle([Fail(memory_world.claim_one("h"))])
    assert (result.outcome, result.rule) == ("dead", "retry.fixed")


def test_each_hook_of_each_queue_has_a_breaker_of_its_own(memory_world: World) -> None:
    memory_world.broker.create_queue("h", on_enqueue=BROKEN_ENQUEUE, on_failure=THREE_TRIES)
    memory_world.broker.update_queue("q", on_enqueue=BY_HEADERS)
    memory_world.fill("h", count=3)
    (result,) = memory_world.broker.settle([Fail(memory_world.claim_one("h"))])
    assert result.rule == "on_failure"
    assert [hook.breaker_open_until_ms is None for hook in memory_world.broker.stats("h").hooks] == [
        False,
        True,
    ]
    memory_world.broker.enqueue("q", b"x", headers={"tenant": "acme"})
    assert memory_world.claim_one("q").fairness_key == "acme"


def test_a_new_script_begins_with_a_closed_breaker_and_the_same_one_does_not(memory_world: World) -> None:
    memory_world.broker.update_queue("q", on_enqueue=BROKEN_ENQUEUE)
    memory_world.fill("q", count=3)
    memory_world.broker.update_queue("q", on_enqueue=BROKEN_ENQUEUE, max_attempts=7)
    assert memory_world.broker.stats("q").hooks[0].failures == 3
    memory_world.broker.update_queue("q", on_enqueue=BY_HEADERS)
    memory_world.broker.enqueue("q", b"x", headers={"tenant": "acme"})
    assert "acme" in {delivery.fairness_key for delivery in memory_world.broker.claim("q", limit=4)}


def test_a_host_that_does_not_start_fails_no_enqueue_and_no_settle(
    memory_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_world.broker.update_queue("q", on_enqueue=BY_HEADERS, on_failure=THREE_TRIES)
    memory_world.restart()
    with monkeypatch.context() as broken:
        broken.setattr("fairlead.hooks.process._BOOT", "raise SystemExit(3)")
        assert fail_one(memory_world) == ("retry", "retry.immediate", 0)
        assert {hook.failures for hook in memory_world.broker.stats("q").hooks} == {1}
        assert "does not start" in memory_world.broker.stats("q").hooks[0].last_error
    assert fail_one(memory_world)[1] == "on_failure"


def test_a_lease_lost_while_the_hook_ran_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.broker.update_queue("q", on_failure=THREE_TRIES)
    world.fill("q", count=1)
    slow = world.claim_one("q", consumer="slow")
    quick = []

    def take_over() -> None:
        world.broker.goodbye("slow")
        quick.append(world.claim_one("q", consumer="quick"))

    meanwhile(world, monkeypatch, "on_failure", take_over)
    (result,) = world.broker.settle([Fail(slow, error="too late")])
    assert (result.outcome, result.rule) == ("lost_lease", "")
    assert (quick[0].attempts, world.counts("q")) == (0, (0, 0, 1, 0))
    assert world.broker.settle([Complete(quick[0])])[0].ok


@pytest.mark.parametrize("verb", ["settle", "drop", "purge and delete"])
def test_a_message_gone_while_the_hook_ran_is_not_found(
    memory_world: World, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    memory_world.broker.update_queue("q", on_failure=THREE_TRIES)
    memory_world.fill("q", count=1)
    delivery = memory_world.claim_one("q")
    actions: dict[str, Callable[[], object]] = {
        "settle": lambda: memory_world.broker.settle([Complete(delivery)]),
        "drop": lambda: memory_world.broker.drop("q", [delivery.id]),
        "purge and delete": lambda: memory_world.broker.delete_queue("q"),
    }
    meanwhile(memory_world, monkeypatch, "on_failure", actions[verb])
    assert memory_world.broker.settle([Fail(delivery)])[0].outcome == "not_found"


def test_a_lease_extended_while_the_hook_was_asked_about_its_expiry_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.broker.update_queue("q", on_failure=THREE_TRIES)
    world.fill("q", count=2)
    kept, lost = world.broker.claim("q", limit=2)
    meanwhile(world, monkeypatch, "on_failure", lambda: world.broker.settle([Extend(kept, "30s")]))
    world.clock.advance(seconds=30)
    assert [result.outcome for result in world.broker.settle([Complete(kept), Complete(lost)])] == [
        "completed",
        "lost_lease",
    ]


def test_an_expiry_settled_while_the_hook_was_asked_happens_once(
    memory_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_world.broker.update_queue("q", on_failure=THREE_TRIES)
    memory_world.fill("q", count=1)
    delivery = memory_world.claim_one("q")
    meanwhile(
        memory_world,
        monkeypatch,
        "on_failure",
        lambda: memory_world.broker.settle([Fail(delivery, error="late", retry_in="1h")]),
    )
    memory_world.clock.advance(seconds=30)
    (info,) = memory_world.broker.peek("q", where="waiting")
    assert (info.attempts, info.rule) == (1, "instruction")


def test_a_duplicate_sent_while_the_hook_ran_is_still_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.broker.update_queue("q", on_enqueue=BY_HEADERS)
    first = []
    meanwhile(
        world,
        monkeypatch,
        "on_enqueue_columns",
        lambda: first.append(world.broker.enqueue("q", b"x", dedup_key="once")),
    )
    assert [world.broker.enqueue("q", b"x", dedup_key="once")] == first
    assert world.counts("q") == (1, 0, 0, 0)


def test_a_queue_deleted_while_its_hook_ran_is_not_found(
    memory_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_world.broker.update_queue("q", on_enqueue=BY_HEADERS)
    meanwhile(memory_world, monkeypatch, "on_enqueue_columns", lambda: memory_world.broker.delete_queue("q"))
    with pytest.raises(QueueNotFound):
        memory_world.broker.enqueue("q", b"x")


def test_closing_ends_an_enqueue_that_waits_for_its_hook(world: World) -> None:
    world.broker.update_queue(
        "q", on_enqueue="function on_enqueue(msg) for i = 1, 40000 do end return {} end"
    )
    world.broker.enqueue("q", b"x")
    host = hooks_of(world.broker)._host
    assert host is not None
    host._mark[0] = -7
    waiting = Background(lambda: world.fill("q", count=10_000))
    while host.running_call < 0 and not waiting.done:
        pass
    world.broker.close()
    with pytest.raises(BrokerClosed):
        waiting.result()
    world.restart()
    assert world.counts("q") == (1, 0, 0, 0), "none of the batch"


@pytest.fixture
def dead(world: World) -> list[str]:
    """Five dead letters that came in under the key `old`; the hook came later, and sends them to `new` by
    header.
    """
    ids = world.broker.enqueue_many(
        "q", [NewMessage(b"x", headers={"tenant": "new", "n": str(n)}, fairness_key="old") for n in range(5)]
    )
    world.broker.settle([Fail(delivery, dead=True) for delivery in world.broker.claim("q", limit=5)])
    world.broker.update_queue("q", on_enqueue=BY_HEADERS.replace('tonumber(msg.headers["priority"])', "4"))
    return ids


@pytest.mark.parametrize("how", ["ids", "filter", "all", "count"])
def test_a_redrive_asks_the_hook_about_what_it_moves_and_nothing_else(
    world: World, dead: list[str], how: str
) -> None:
    options: dict[str, dict[str, Any]] = {
        "ids": {"ids": [dead[1], dead[1], dead[3]], "filter": DeadFilter(header=("n", "1"))},
        "filter": {"filter": DeadFilter(header=("n", "3"))},
        "all": {},
        "count": {"count": 2},
    }
    moved = world.broker.redrive("q", **options[how]).moved
    assert moved == {"ids": 1, "filter": 1, "all": 5, "count": 2}[how]
    assert {(d.fairness_key, d.weight) for d in world.broker.claim("q", limit=5)} == {("new", 4)}
    assert world.broker.stats("q").hooks[0].calls == moved


def test_a_redrive_at_a_rate_asks_as_it_goes(world: World, dead: list[str]) -> None:
    world.broker.redrive("q", rate=1)
    for moved in range(1, 6):
        world.clock.advance(seconds=1 if moved > 1 else 0)
        assert (world.counts("q")[0], world.broker.stats("q").hooks[0].calls) == (moved, moved)
    assert {d.fairness_key for d in world.broker.claim("q", limit=5)} == {"new"}


def test_a_redrive_that_appears_after_the_hooks_were_asked_waits_for_them(
    world: World, dead: list[str]
) -> None:
    redrives = iter([lambda: world.broker.redrive("q", rate=1000)])
    with between_steps(world.broker, lambda: next(redrives, lambda: None)()):
        world.broker.run_due()
    world.broker.run_due()
    world.clock.advance(seconds=1)
    assert {d.fairness_key for d in world.broker.claim("q", limit=5)} == {"new"}


def test_where_the_hook_sent_a_dead_letter_it_stays_through_failures_and_restarts(
    world: World, dead: list[str]
) -> None:
    world.broker.redrive("q", ids=dead[:1])
    world.broker.settle([Fail(world.claim_one("q"), retry_in="1s")])
    world.restart(away_ms=1000)
    again = world.claim_one("q")
    assert (again.id, again.fairness_key, again.weight, again.attempts) == (dead[0], "new", 4, 1)
    world.broker.settle([Fail(again, dead=True)])
    world.broker.update_queue("q", on_enqueue=None)
    world.broker.redrive("q", ids=dead[:1])
    assert world.claim_one("q").fairness_key in ("old", "new")


def test_a_redriven_message_of_a_stream_takes_the_key_the_stream_has(world: World) -> None:
    world.fill("q", count=1, key="old", stream="s")
    world.broker.settle([Fail(world.claim_one("q"), dead=True)])
    world.fill("q", count=1, key="present", stream="s")
    world.broker.update_queue(
        "q", on_enqueue='function on_enqueue() return { fairness_key = "hook", stream = "elsewhere" } end'
    )
    assert world.broker.redrive("q").moved == 1
    first, second = world.broker.claim("q", limit=2, max_per_stream=2)
    assert (first.fairness_key, second.fairness_key, second.stream) == ("present", "present", "s")


def test_a_redrive_past_a_broken_hook_moves_everything_with_the_defaults(
    world: World, dead: list[str]
) -> None:
    world.broker.update_queue("q", on_enqueue=BROKEN_ENQUEUE)
    assert world.broker.redrive("q").moved == 5
    assert [(d.fairness_key, d.weight) for d in world.broker.claim("q", limit=5)] == [("default", 1)] * 5
