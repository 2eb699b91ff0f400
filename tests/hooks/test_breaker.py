from __future__ import annotations

from dataclasses import fields

import pytest

from fairlead.errors import InvalidRequest
from fairlead.hooks import Hooks, HookSettings
from fairlead.hooks.breaker import Breaker
from fairlead.testing import ManualClock
from tests.hooks.scripts import OTHER, QUEUE, enqueue, enqueue_calls, fail

ON_DEMAND = 'function on_enqueue(msg) if msg.headers.bad then error("bad") end return { fairness_key = "good", stream = "s" } end'
GOOD, BAD = enqueue_calls()[0], enqueue_calls(bad="yes")[0]


def outcomes(hooks: Hooks, *calls: object) -> str:
    """One letter per call: r(an), f(ailed), b(ypassed)."""
    return "".join(d.outcome[0] for d in hooks.on_enqueue(QUEUE, "orders", calls))  # type: ignore[arg-type]


def test_the_third_failure_in_a_row_opens_the_breaker(hooks: Hooks) -> None:
    hooks.set_script(QUEUE, "on_enqueue", ON_DEMAND)
    assert outcomes(hooks, BAD, BAD, GOOD) == "ffr"
    assert outcomes(hooks, BAD, BAD, BAD, GOOD, GOOD) == "fffbb"
    (stats,) = hooks.stats(QUEUE)
    assert (stats.calls, stats.failures, stats.bypassed, stats.consecutive) == (6, 5, 2, 3)


def test_a_row_of_failures_continues_across_batches(hooks: Hooks) -> None:
    hooks.set_script(QUEUE, "on_enqueue", ON_DEMAND)
    assert [outcomes(hooks, BAD) for _ in range(4)] == ["f", "f", "f", "b"]


def test_a_success_ends_a_row_of_failures(hooks: Hooks) -> None:
    hooks.set_script(QUEUE, "on_enqueue", ON_DEMAND)
    assert outcomes(hooks, *[BAD, BAD, GOOD] * 20) == "ffr" * 20


def test_the_breaker_closes_after_the_cooldown_with_a_full_threshold(
    hooks: Hooks, clock: ManualClock
) -> None:
    hooks.set_script(QUEUE, "on_enqueue", ON_DEMAND)
    assert outcomes(hooks, BAD, BAD, BAD) == "fff"
    assert hooks.stats(QUEUE)[0].breaker_open_until_ms == clock.now_ms() + 10_000
    clock.advance(ms=9_999)
    assert outcomes(hooks, GOOD) == "b"
    clock.advance(ms=1)
    assert hooks.stats(QUEUE)[0].breaker_open_until_ms is None
    assert outcomes(hooks, BAD, BAD, GOOD) == "ffr"


def test_a_step_of_the_wall_clock_changes_nothing(hooks: Hooks, clock: ManualClock) -> None:
    hooks.set_script(QUEUE, "on_enqueue", ON_DEMAND)
    outcomes(hooks, BAD, BAD, BAD)
    clock.jump(ms=3_600_000)
    assert outcomes(hooks, GOOD) == "b"


def test_bypassed_calls_get_the_defaults_and_keep_their_stream(hooks: Hooks) -> None:
    decision = enqueue(hooks, ON_DEMAND, [BAD] * 3 + [GOOD])[-1]
    assert (
        decision.outcome,
        decision.fairness_key,
        decision.weight,
        decision.throttle_keys,
        decision.stream,
    ) == ("bypassed", "default", 1, (), None)


def test_each_hook_of_each_queue_has_its_own_breaker(hooks: Hooks) -> None:
    hooks.set_script(QUEUE, "on_enqueue", ON_DEMAND)
    assert outcomes(hooks, BAD, BAD, BAD, BAD) == "fffb"
    assert fail(hooks, 'function on_failure() return { action = "dlq" } end')[0].outcome == "ran"
    assert enqueue(hooks, ON_DEMAND, [BAD, GOOD], queue_id=OTHER)[1].outcome == "ran"
    assert [s.function for s in hooks.stats(QUEUE)] == ["on_enqueue", "on_failure"]


def test_a_changed_script_starts_with_a_closed_breaker_and_the_same_script_does_not(hooks: Hooks) -> None:
    hooks.set_script(QUEUE, "on_enqueue", ON_DEMAND)
    outcomes(hooks, BAD, BAD, BAD)
    hooks.set_script(QUEUE, "on_enqueue", ON_DEMAND)
    assert outcomes(hooks, GOOD) == "b"
    hooks.set_script(QUEUE, "on_enqueue", ON_DEMAND + " -- repaired")
    assert outcomes(hooks, GOOD) == "r"
    hooks.set_script(QUEUE, "on_enqueue", None)
    assert outcomes(hooks, GOOD) == "a"


def test_kills_open_the_breaker_whatever_succeeds_in_between() -> None:
    breaker = Breaker(3, 10_000)
    for now_ms in (0, 4_000, 8_000):
        assert breaker.open_for_ms(now_ms) == 0
        breaker.failed(now_ms, killed=True)
        breaker.succeeded()
    assert breaker.open_for_ms(8_000) == 10_000
    assert breaker.open_for_ms(18_000) == 0
    breaker.failed(18_000, killed=True)
    assert breaker.open_for_ms(18_000) == 0


def test_kills_spread_over_more_than_a_cooldown_do_not_open_the_breaker() -> None:
    breaker = Breaker(3, 10_000)
    for now_ms in range(0, 60_000, 5_000):
        breaker.failed(now_ms, killed=True)
        breaker.succeeded()
        assert breaker.open_for_ms(now_ms) == 0


@pytest.mark.parametrize("setting", [f.name for f in fields(HookSettings)])
@pytest.mark.parametrize("value", [0, -1, 1.5, "10"])
def test_invalid_settings_are_refused(setting: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=setting):
        HookSettings(**{setting: value})  # type: ignore[arg-type]


def test_limits_can_be_set(clock: ManualClock) -> None:
    small = Hooks(
        HookSettings(default_timeout_ms=1, default_memory_limit_bytes=50_000, circuit_breaker_threshold=1),
        clock,
    )
    try:
        assert enqueue(small, "function on_enqueue() for i = 1, 200 do end return {} end")[0].outcome == "ran"
        assert (
            "than 1 ms allow"
            in enqueue(small, "function on_enqueue() for i = 1, 50000 do end return {} end")[0].error
        )
        assert (
            "more than 50000 bytes"
            in enqueue(small, 'function on_enqueue() local s = ("x"):rep(60000) return {} end')[0].error
        )
        assert small.on_enqueue(QUEUE, "orders", enqueue_calls())[0].outcome == "bypassed"
    finally:
        small.close()
