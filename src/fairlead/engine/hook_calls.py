"""Conversion of messages to calls of `on_enqueue`, and of a script's decisions to lanes and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from fairlead.decide.retry import HookAnswer
from fairlead.hooks import EnqueueDecision, FailureDecision, Hooks
from fairlead.model.checks import MessageColumns
from fairlead.model.lane import lane_key, lane_throttle_keys, pack_lane

T = TypeVar("T")


def ask_on_enqueue(hooks: Hooks, queue_id: int, queue: str, messages: MessageColumns) -> MessageColumns:
    """The messages with the hook's results applied. A failed or bypassed call means the defaults."""
    headers = messages.headers or [b""] * messages.length
    sizes = list(map(len, messages.payloads))
    return lay_over(messages, hooks.on_enqueue_columns(queue_id, queue, headers, sizes))


def lay_over(messages: MessageColumns, decisions: Sequence[EnqueueDecision]) -> MessageColumns:
    """Apply the hook's decisions; fields that a decision leaves out stay."""
    changed = messages._replace(
        keys=laid_over(messages.keys, [one.fairness_key for one in decisions]),
        weights=laid_over(messages.weights, [one.weight for one in decisions]),
    )
    throttle_keys = [one.throttle_keys for one in decisions]
    if throttle_keys.count(None) < len(decisions):
        said = [None if keys is None else tuple(sorted(set(keys))) for keys in throttle_keys]
        kept = laid_over(messages.throttle_keys or [()] * messages.length, said)
        changed = changed._replace(throttle_keys=kept if any(kept) else None)
    streams = [one.stream for one in decisions]
    if streams.count(None) < len(decisions):
        named = laid_over(messages.streams or [""] * messages.length, streams)
        changed = changed._replace(streams=named if any(named) else None)
    return changed


def laid_over(given: Sequence[T], said: Sequence[T | None]) -> Sequence[T]:
    if None not in said:
        return cast("Sequence[T]", said)
    if said.count(None) == len(said):
        return given
    return [before if after is None else after for before, after in zip(given, said, strict=True)]


def decided_lane(lane: bytes, weight: int, decision: EnqueueDecision) -> tuple[bytes, int]:
    """The lane and weight with the hook's decision applied; fields that it leaves out stay."""
    key = lane_key(lane) if decision.fairness_key is None else decision.fairness_key
    throttle_keys = (
        lane_throttle_keys(lane)
        if decision.throttle_keys is None
        else tuple(sorted(set(decision.throttle_keys)))
    )
    return pack_lane(key, throttle_keys), weight if decision.weight is None else decision.weight


def to_answer(decision: FailureDecision) -> HookAnswer | None:
    """None for a call that failed or was bypassed: then the policies decide."""
    if decision.outcome != "ran":
        return None
    return HookAnswer(decision.action, decision.delay_ms, "; ".join(decision.notes))
