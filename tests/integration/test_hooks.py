"""Lua hooks through the broker: what `on_enqueue` and `on_failure` are asked, and what becomes of their
answers.
"""

from __future__ import annotations

import pytest

from fairlead import Complete, Extend, Fail, NewMessage, Release
from fairlead.errors import HookInvalid
from fairlead.testing.engine import hooks_of
from tests.integration.world import Background, World, wait_until

#: The two scripts of the first story, as it wrote them.
BY_HEADERS = """
function on_enqueue(msg)
  return {
    fairness_key = msg.headers["tenant"],
    weight = tonumber(msg.headers["priority"]),
    throttle_keys = msg.headers["endpoint"] and { msg.headers["endpoint"] },
    stream = msg.headers["order_id"],
  }
end
"""
THREE_TRIES = """
function on_failure(msg)
  if msg.attempts >= 3 then
    return { action = "dlq" }
  end
  return { action = "retry", delay_ms = 1000 * msg.attempts }
end
"""
BROKEN_ENQUEUE = "function on_enqueue(msg) error('broken') end"
BROKEN_FAILURE = "function on_failure(msg) error('broken') end"


def tells(expression: str) -> str:
    """An `on_failure` that shows something of the message in the rule, as an action that does not exist."""
    return f"function on_failure(msg) return {{ action = tostring({expression}) }} end"


def test_on_enqueue_says_how_a_message_is_scheduled(world: World) -> None:
    world.broker.update_queue("q", on_enqueue=BY_HEADERS)
    world.broker.enqueue(
        "q", b"x", headers={"tenant": "acme", "priority": "7", "endpoint": "api", "order_id": "o1"}
    )
    world.restart()
    delivery = world.claim_one("q")
    assert (delivery.fairness_key, delivery.weight, delivery.throttle_keys, delivery.stream) == (
        "acme",
        7,
        ("api",),
        "o1",
    )


def test_what_the_hook_leaves_out_keeps_what_the_caller_gave(world: World) -> None:
    world.broker.update_queue("q", on_enqueue=BY_HEADERS)
    own = {"fairness_key": "mine", "weight": 3, "throttle_keys": ["a", "b"], "stream": "s"}
    world.broker.enqueue_many(
        "q", [NewMessage(b"all", **own), NewMessage(b"some", headers={"tenant": "acme"}, **own)]
    )  # type: ignore[arg-type]
    first, second = world.broker.claim("q", limit=2, max_per_stream=2)
    assert (first.fairness_key, first.weight, first.throttle_keys, first.stream) == (
        "mine",
        3,
        ("a", "b"),
        "s",
    )
    assert (second.weight, second.throttle_keys, second.stream) == (3, ("a", "b"), "s")
    assert second.fairness_key == "mine", "a stream keeps the key of the message that opened it"


def test_the_hook_wins_over_the_caller(memory_world: World) -> None:
    script = 'function on_enqueue() return { fairness_key = "hook", weight = 9, throttle_keys = {}, stream = "" } end'
    memory_world.broker.update_queue("q", on_enqueue=script)
    memory_world.broker.enqueue("q", b"x", fairness_key="mine", weight=3, throttle_keys=["a"], stream="s")
    delivery = memory_world.claim_one("q")
    assert (delivery.fairness_key, delivery.weight, delivery.throttle_keys, delivery.stream) == (
        "hook",
        9,
        (),
        None,
    )


def test_a_stream_given_by_the_hook_is_kept_in_order(world: World) -> None:
    world.broker.update_queue("q", on_enqueue=BY_HEADERS)
    ids = world.broker.enqueue_many(
        "q", [NewMessage(b"x", headers={"order_id": "o1", "tenant": f"t{n}"}) for n in range(3)]
    )
    for expected in ids:
        delivery = world.claim_one("q")
        assert delivery.id == expected
        assert world.broker.claim("q") == []
        world.broker.settle([Complete(delivery)])


def test_throttle_keys_given_by_the_hook_throttle(memory_world: World) -> None:
    memory_world.broker.config.set("throttle:api:burst", 2)
    memory_world.broker.config.set("throttle:api:rate", 1)
    memory_world.broker.update_queue("q", on_enqueue=BY_HEADERS)
    memory_world.fill("q", count=5, headers={"endpoint": "api"})
    assert len(memory_world.broker.claim("q", limit=5)) == 2


def test_on_enqueue_sees_headers_payload_size_and_queue(memory_world: World) -> None:
    script = 'function on_enqueue(msg) return { fairness_key = msg.queue .. ":" .. msg.payload_size .. ":" .. msg.headers.a } end'
    memory_world.broker.update_queue("q", on_enqueue=script)
    memory_world.broker.enqueue("q", b"12345", headers={"a": "ü"})
    assert memory_world.claim_one("q").fairness_key == "q:5:ü"


def test_attempts_and_delay_of_the_story_are_honoured(world: World) -> None:
    world.broker.update_queue("q", on_failure=THREE_TRIES)
    (message_id,) = world.fill("q", count=1)
    for attempts in (1, 2):
        (result,) = world.broker.settle([Fail(world.claim_one("q"), error="boom")])
        assert (result.outcome, result.rule, result.due_ms) == (
            "retry",
            "on_failure",
            world.clock.now_ms() + 1000 * attempts,
        )
        world.clock.advance(ms=1000 * attempts - 1)
        assert world.broker.claim("q") == []
        world.clock.advance(ms=1)
    (result,) = world.broker.settle([Fail(world.claim_one("q"), error="boom")])
    assert (result.outcome, result.rule) == ("dead", "on_failure")
    dead = world.claim_one("q.dlq")
    assert (dead.id, dead.attempts, [failure.rule for failure in dead.failures]) == (
        message_id,
        3,
        ["on_failure"] * 3,
    )


def test_without_a_script_a_failure_is_retried_at_once_and_without_limit(memory_world: World) -> None:
    memory_world.fill("q", count=1)
    for attempts in range(20):
        delivery = memory_world.claim_one("q")
        assert delivery.attempts == attempts
        assert memory_world.broker.nack("q", delivery.id, "boom").rule == "retry.immediate"
    assert memory_world.broker.stats("q").hooks == ()
    assert hooks_of(memory_world.broker).pids() == []


def test_a_nack_asks_the_hook_as_a_fail_does(memory_world: World) -> None:
    memory_world.broker.update_queue("q", on_failure=THREE_TRIES)
    (message_id,) = memory_world.fill("q", count=1)
    memory_world.claim_one("q")
    result = memory_world.broker.nack("q", message_id, "boom")
    assert (result.rule, result.due_ms) == ("on_failure", memory_world.clock.now_ms() + 1000)


def test_on_failure_sees_the_message_and_the_failure(memory_world: World) -> None:
    seen = tells(
        'table.concat({ msg.id:sub(-4), msg.attempts, msg.queue, msg.error, msg.reason, msg.progress, msg.headers.a }, "|")'
    )
    memory_world.broker.update_queue("q", on_failure=seen)
    (message_id,) = memory_world.fill("q", count=1, headers={"a": "h"})
    for attempts, progress in ((1, 1 | 4), (2, 1 | 2 | 4 | 32768)):
        delivery = memory_world.claim_one("q")
        memory_world.broker.settle([Extend(delivery, progress=4)])
        (result,) = memory_world.broker.settle(
            [Fail(delivery, error="e", reason="dependency_failure", progress=attempts)]
        )
        told = f"{message_id[-4:]}|{attempts}|q|e|dependency_failure|{progress}|h"
        assert result.rule == f"on_failure (unknown action {told!r}: retry)"


@pytest.mark.parametrize(
    ("result", "rule"),
    [
        ("{}", "on_failure (no action: retry)"),
        ('{ action = "explode" }', "on_failure (unknown action 'explode': retry)"),
        ('{ action = "retry", delay_ms = -5 }', "on_failure (delay_ms -5 -> 0)"),
    ],
)
def test_a_result_that_makes_no_sense_is_a_retry_and_recorded(
    memory_world: World, result: str, rule: str
) -> None:
    memory_world.broker.update_queue("q", on_failure=f"function on_failure() return {result} end")
    memory_world.fill("q", count=1)
    (settled,) = memory_world.broker.settle([Fail(memory_world.claim_one("q"))])
    assert (settled.outcome, settled.rule, settled.due_ms) == ("retry", rule, 0)
    again = memory_world.claim_one("q")
    assert (again.attempts, again.failures[0].rule) == (1, rule)


def test_a_correction_of_an_enqueue_is_recorded_too(memory_world: World) -> None:
    memory_world.broker.update_queue("q", on_enqueue="function on_enqueue() return { weight = -3 } end")
    memory_world.fill("q", count=2, weight=5)
    assert [delivery.weight for delivery in memory_world.broker.claim("q", limit=2)] == [1, 1]
    (hook,) = memory_world.broker.stats("q").hooks
    assert (hook.calls, hook.failures, hook.corrected, hook.last_note) == (2, 0, 2, "weight -3 -> 1")


def test_instruction_and_ceiling_come_before_the_hook(memory_world: World) -> None:
    memory_world.broker.update_queue(
        "q", on_failure="function on_failure() return { action = 'retry', delay_ms = 5 } end", max_attempts=2
    )
    memory_world.fill("q", count=3)
    now, dead, later = memory_world.broker.claim("q", limit=3)
    results = memory_world.broker.settle(
        [Fail(now, retry_in="0s"), Fail(dead, dead=True), Fail(later, retry_in="1s")]
    )
    assert [(result.outcome, result.rule) for result in results] == [
        ("retry", "instruction"),
        ("dead", "instruction"),
        ("retry", "instruction"),
    ]
    assert memory_world.broker.stats("q").hooks[0].calls == 0
    (result,) = memory_world.broker.settle([Fail(memory_world.claim_one("q"))])
    assert (result.outcome, result.rule) == ("dead", "max_attempts")


def test_the_hook_comes_before_every_policy(memory_world: World) -> None:
    memory_world.broker.update_queue(
        "q", on_failure=THREE_TRIES, retry="none", retry_on={"unknown": "none"}, retry_in_stream="none"
    )
    memory_world.fill("q", count=1, stream="s")
    assert memory_world.broker.settle([Fail(memory_world.claim_one("q"))])[0].rule == "on_failure"


def test_an_expired_delivery_asks_the_hook(world: World) -> None:
    script = tells('msg.attempts .. msg.reason .. (msg.error:find("lease of 30s") and "!" or "?")')
    world.broker.update_queue("q", on_failure=script)
    world.fill("q", count=1)
    world.claim_one("q")
    world.clock.advance(seconds=30)
    again = world.claim_one("q")
    assert (again.attempts, again.failures[0].rule) == (
        1,
        "on_failure (unknown action '1timeout_exceeded!': retry)",
    )


def test_what_was_never_started_expires_without_a_question(memory_world: World) -> None:
    memory_world.broker.update_queue("q", on_failure=THREE_TRIES)
    memory_world.fill("q", count=1)
    memory_world.claim_one("q", started=False)
    memory_world.clock.advance(seconds=30)
    assert memory_world.claim_one("q").attempts == 0
    assert memory_world.broker.stats("q").hooks[0].calls == 0


def test_of_an_expired_run_the_hook_is_asked_about_the_one_that_failed(memory_world: World) -> None:
    memory_world.broker.update_queue("q", on_failure=THREE_TRIES)
    memory_world.fill("q", count=3, stream="s")
    assert len(memory_world.broker.claim("q", limit=3, max_per_stream=3)) == 3
    memory_world.clock.advance(seconds=30)
    assert memory_world.broker.stats("q").hooks[0].calls == 1
    assert memory_world.counts("q") == (2, 1, 0, 0)


def test_many_that_expire_together_are_asked_about_in_steps_and_runs_stay_whole(memory_world: World) -> None:
    memory_world.broker.update_queue("q", on_failure=THREE_TRIES)
    memory_world.fill("q", count=250)
    memory_world.fill("q", count=150, stream="s")
    assert len(memory_world.broker.claim("q", limit=400, max_per_stream=150)) == 400
    memory_world.clock.advance(seconds=30)
    assert memory_world.broker.stats("q").hooks[0].calls == 251
    assert memory_world.counts("q") == (149, 251, 0, 0)


def test_a_claim_at_the_very_end_of_a_lease_does_not_put_the_question_off(world: World) -> None:
    world.broker.update_queue("q", on_failure=THREE_TRIES)
    world.fill("q", count=1)
    world.claim_one("q")
    world.restart(away_ms=30_000)
    assert world.broker.claim("q") == []
    world.broker.run_due()
    assert world.counts("q") == (0, 1, 0, 0)


def test_an_operator_who_fails_a_delivery_asks_the_hook(memory_world: World) -> None:
    memory_world.broker.update_queue("q", on_failure=tells("msg.error"))
    ids = memory_world.fill("q", count=2)
    memory_world.broker.claim("q", limit=2)
    assert memory_world.broker.fail("q", ids[:1], error="by hand").changed == (ids[0],)
    assert memory_world.claim_one("q").failures[0].rule == "on_failure (unknown action 'by hand': retry)"
    assert memory_world.broker.stats("q").hooks[0].calls == 1


def test_scripts_work_again_after_a_restart(world: World) -> None:
    world.broker.update_queue("q", on_enqueue=BY_HEADERS, on_failure=THREE_TRIES)
    world.broker.config.set("who", "acme")
    world.broker.create_queue(
        "asks", on_enqueue='function on_enqueue() return { fairness_key = fila.get("who") } end'
    )
    for _ in range(2):
        broker = world.restart()
        broker.enqueue("q", b"x", headers={"tenant": "t"})
        delivery = world.claim_one("q")
        assert delivery.fairness_key == "t"
        assert broker.settle([Fail(delivery, error="boom")])[0].rule == "on_failure"
        broker.enqueue("asks", b"x")
        assert world.claim_one("asks").fairness_key == "acme"


def test_a_script_can_be_changed_and_taken_away(world: World) -> None:
    for n in (1, 2):
        world.broker.update_queue(
            "q",
            on_enqueue=f"function on_enqueue() return {{ fairness_key = 'v{n}' }} end",
            on_failure=tells(str(n)),
        )
        world.broker.enqueue("q", b"x")
        delivery = world.claim_one("q")
        (result,) = world.broker.settle([Fail(delivery)])
        assert (delivery.fairness_key, result.rule) == (f"v{n}", f"on_failure (unknown action '{n}': retry)")
        world.broker.settle([Complete(world.claim_one("q"))])
    world.broker.update_queue("q", on_enqueue=None, on_failure=None)
    for _ in range(2):
        world.broker.enqueue("q", b"x", fairness_key="own")
        delivery = world.claim_one("q")
        (result,) = world.broker.settle([Fail(delivery)])
        assert (delivery.fairness_key, result.rule) == ("own", "retry.immediate")
        assert world.broker.stats("q").hooks == ()
        world.broker.settle([Complete(world.claim_one("q"))])
        world.restart()


def test_a_change_of_configuration_is_seen_by_the_next_call(memory_world: World) -> None:
    broker = memory_world.broker
    broker.update_queue(
        "q",
        on_enqueue='function on_enqueue() return { fairness_key = (fila.get("a") or "-") .. (fairlead.get("b") or "-") } end',
    )
    keys = []
    for change in (
        lambda: None,
        lambda: broker.config.set("a", "1"),
        lambda: broker.config.set("b", 2),
        lambda: broker.config.delete("a"),
    ):
        change()
        broker.enqueue("q", b"x")
        keys.append(memory_world.claim_one("q").fairness_key)
    assert keys == ["--", "1-", "12", "-2"]


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("function on_%s(msg)\n  return {\nend", 3),
        ("local function on_%s() end", None),
        ("function on_other() end", None),
        ("while true do end", None),
    ],
)
@pytest.mark.parametrize("function", ["enqueue", "failure"])
def test_a_script_that_could_never_run_is_refused_and_nothing_is_stored(
    memory_world: World, function: str, script: str, line: int | None
) -> None:
    bad = {f"on_{function}": script.replace("%s", function)}
    with pytest.raises(HookInvalid) as refused:
        memory_world.broker.create_queue("new", max_attempts=5, **bad)
    assert refused.value.line == line
    with pytest.raises(HookInvalid):
        memory_world.broker.update_queue("q", max_attempts=5, **bad)
    (q, _) = memory_world.broker.queues()
    assert (q.name, q.config.max_attempts, q.config.on_enqueue, q.config.on_failure) == ("q", 0, "", "")
    assert memory_world.broker.stats("q").hooks == ()


def test_a_switch_is_no_failure_and_asks_nobody(memory_world: World) -> None:
    memory_world.broker.update_queue("q", on_failure=THREE_TRIES)
    memory_world.fill("q", count=1)
    memory_world.broker.settle([Release(memory_world.claim_one("q"))])
    assert memory_world.broker.stats("q").hooks[0].calls == 0


def test_enqueues_of_one_thread_are_delivered_in_the_order_sent(world: World) -> None:
    slower = "function on_enqueue(msg) for i = 1, 20000 do end return {} end"
    world.broker.update_queue("q", on_enqueue=slower)
    others = Background(
        lambda: [world.broker.enqueue("q", b"other", fairness_key="other") for _ in range(20)]
    )
    sent = [world.broker.enqueue("q", b"x", fairness_key="mine") for _ in range(20)]
    others.result()
    wait_until(lambda: world.counts("q")[0] == 40)
    assert [
        delivery.id for delivery in world.broker.claim("q", limit=40) if delivery.fairness_key == "mine"
    ] == sent


def test_an_operators_retry_of_a_dead_letter_asks_on_enqueue_again(world: World) -> None:
    world.broker.update_queue(
        "q", on_enqueue="function on_enqueue(msg) return {fairness_key = fairlead.get('tenant')} end"
    )
    world.broker.config.set("tenant", "before")
    message_id = world.broker.enqueue("q", b"")
    world.broker.settle([Fail(world.claim_one("q"), dead=True)])
    world.broker.config.set("tenant", "after")
    assert world.broker.retry("q", [message_id]).changed == (message_id,)
    assert world.claim_one("q").fairness_key == "after"
