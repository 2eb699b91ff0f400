"""Messages become calls of `on_enqueue`, and what a script decided becomes a lane or an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from fairlead.decide.retry import HookAnswer
from fairlead.hooks import EnqueueCall, EnqueueDecision, FailureDecision, Hooks
from fairlead.model.checks import MessageColumns
from fairlead.model.lane import lane_key, lane_throttle_keys, pack_lane
from fairlead.model.message import unpack_headers

T = TypeVar("T")


def ask_on_enqueue(hooks: Hooks, queue_id: int, queue: str, messages: MessageColumns) -> MessageColumns:
    """The messages with what the hook returned laid over them; a failed or bypassed call means the defaults."""
    headers = messages.headers or [b""] * messages.length
    calls = [
        EnqueueCall(unpack_headers(packed), len(payload))
        for packed, payload in zip(headers, messages.payloads, strict=True)
    ]
    return lay_over(messages, hooks.on_enqueue(queue_id, queue, calls))


def lay_over(messages: MessageColumns, decisions: Sequence[EnqueueDecision]) -> MessageColumns:
    """What the hook says wins; what it leaves out stays."""
    throttle_keys = laid_over(
        messages.throttle_keys or [()] * messages.length,
        [None if one.throttle_keys is None else tuple(sorted(set(one.throttle_keys))) for one in decisions],
    )
    streams = laid_over(messages.streams or [""] * messages.length, [one.stream for one in decisions])
    return messages._replace(
        keys=laid_over(messages.keys, [one.fairness_key for one in decisions]),
        weights=laid_over(messages.weights, [one.weight for one in decisions]),
        throttle_keys=throttle_keys if any(throttle_keys) else None,
        streams=streams if any(streams) else None,
    )


def laid_over(given: Sequence[T], said: Sequence[T | None]) -> Sequence[T]:
    if None not in said:
        return cast("Sequence[T]", said)
    return [before if after is None else after for before, after in zip(given, said, strict=True)]


def decided_lane(lane: bytes, weight: int, decision: EnqueueDecision) -> tuple[bytes, int]:
    """What the hook says wins; what it leaves out stays."""
    key = lane_key(lane) if decision.fairness_key is None else decision.fairness_key
    throttle_keys = (
        lane_throttle_keys(lane)
        if decision.throttle_keys is None
        else tuple(sorted(set(decision.throttle_keys)))
    )
    return pack_lane(key, throttle_keys), weight if decision.weight is None else decision.weight


def to_answer(decision: FailureDecision) -> HookAnswer | None:
    """None for a call that failed or was bypassed: the policies decide."""
    if decision.outcome != "ran":
        return None
    return HookAnswer(decision.action, decision.delay_ms, "; ".join(decision.notes))
