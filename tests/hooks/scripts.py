"""Short ways to run a script."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.hooks import EnqueueDecision, FailureDecision, Hooks, OnEnqueueCall, OnFailureCall

QUEUE, OTHER = 1, 2
KIND = 'function on_enqueue(msg) return { fairness_key = "k-" .. msg.headers.n } end'


def enqueue_calls(count: int = 1, **headers: str) -> list[OnEnqueueCall]:
    return [OnEnqueueCall({"n": str(n), **headers}, 10) for n in range(count)]


def failure_call(**changes: object) -> OnFailureCall:
    fields = {"headers": {}, "id": "0190", "attempts": 1, "error": "boom", "reason": "unknown", "progress": 0}
    return OnFailureCall(**(fields | changes))  # type: ignore[arg-type]


def enqueue(
    hooks: Hooks, script: str, calls: Sequence[OnEnqueueCall] | None = None, queue_id: int = QUEUE
) -> list[EnqueueDecision]:
    hooks.set_script(queue_id, "on_enqueue", script)
    return hooks.on_enqueue(queue_id, "orders", enqueue_calls() if calls is None else calls)


def returned(hooks: Hooks, lua_table: str) -> EnqueueDecision:
    return enqueue(hooks, f"function on_enqueue(msg) return {lua_table} end")[0]


def value_of(hooks: Hooks, expression: str) -> str | None:
    """A Lua expression as text, computed inside the sandbox."""
    decision = returned(hooks, f"{{ fairness_key = tostring({expression}) }}")
    assert decision.outcome == "ran", decision.error
    return decision.fairness_key


def fail(hooks: Hooks, script: str, *calls: OnFailureCall, queue_id: int = QUEUE) -> list[FailureDecision]:
    hooks.set_script(queue_id, "on_failure", script)
    return hooks.on_failure(queue_id, "orders", calls or [failure_call()])
