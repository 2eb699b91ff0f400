"""Messages become calls of `on_enqueue`, and what a script decided becomes a lane or an answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.decide.retry import HookAnswer
from fairlead.hooks import EnqueueCall, EnqueueDecision, FailureDecision, Hooks
from fairlead.model.checks import CheckedMessage
from fairlead.model.lane import lane_key, lane_throttle_keys, pack_lane
from fairlead.model.message import unpack_headers


def ask_on_enqueue(
    hooks: Hooks, queue_id: int, queue: str, checked: Sequence[CheckedMessage]
) -> list[CheckedMessage]:
    """The messages with what the hook returned laid over them; a failed or bypassed call means the defaults."""
    calls = [EnqueueCall(unpack_headers(item.headers), len(item.payload)) for item in checked]
    decisions = hooks.on_enqueue(queue_id, queue, calls)
    return [_lay_over(item, decision) for item, decision in zip(checked, decisions, strict=True)]


def _lay_over(item: CheckedMessage, decision: EnqueueDecision) -> CheckedMessage:
    lane, weight = decided_lane(item.lane, item.weight, decision)
    return msgspec.structs.replace(
        item, lane=lane, weight=weight, stream=item.stream if decision.stream is None else decision.stream
    )


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
