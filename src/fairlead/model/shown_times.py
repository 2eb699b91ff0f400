"""Conversion of times in answers from the store's time to the wall clock.

The engine answers in the store's time, and this conversion is the last step. The two times are equal, and
nothing changes, unless the wall clock was stepped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from fairlead.model.consumer import ConsumerInfo
from fairlead.model.delivery import Delivery
from fairlead.model.failure import FailureRecord
from fairlead.model.intent import Intent
from fairlead.model.message import HELD, Message, MessageState
from fairlead.model.settle import SettleResult
from fairlead.model.staging import StagedWrite
from fairlead.model.views import (
    BlockedStream,
    FailureMetrics,
    MessageInfo,
    PoisonCandidate,
    QueueInfo,
)

Answer = TypeVar("Answer")


class _Fields(NamedTuple):
    times: tuple[str, ...]
    inside: tuple[str, ...] = ()


TIMES: dict[type, _Fields] = {
    Message: _Fields(("enqueued_ms", "due_ms", "expires_ms")),
    MessageState: _Fields(("due_ms", "done_ms", "dead_since_ms"), ("failures",)),
    FailureRecord: _Fields(("at_ms", "due_ms")),
    Delivery: _Fields(("lease_until",), ("state",)),
    SettleResult: _Fields(("due_ms", "lease_until")),
    MessageInfo: _Fields(
        ("enqueued_at", "due_at", "expires_at", "lease_until", "dead_since", "done_at"), ("failures",)
    ),
    BlockedStream: _Fields(("since", "until")),
    PoisonCandidate: _Fields(("due_at", "created_at")),
    FailureMetrics: _Fields(("next_due", "latest_due"), ("poison_candidates", "blocked_streams")),
    QueueInfo: _Fields(("created_at",)),
    ConsumerInfo: _Fields(("seen_at", "expires_at")),
    StagedWrite: _Fields(("staged_at", "expires_at")),
    Intent: _Fields(("created_ms",)),
}


def shown(answer: Answer, ahead_ms: int) -> Answer:
    return _shift(answer, ahead_ms) if ahead_ms else answer


def shown_pages(pages: Iterator[Sequence[Delivery]], ahead_ms: int) -> Iterator[Sequence[Delivery]]:
    return (shown(page, ahead_ms) for page in pages) if ahead_ms else pages


def shown_ms(at_ms: int, ahead_ms: int) -> int:
    """The wall-clock time. 0 and times without an end stay as they are."""
    return at_ms + ahead_ms if 0 < at_ms < HELD else at_ms


def _shift(answer: Any, ahead_ms: int) -> Any:
    if isinstance(answer, (list, tuple)):
        return type(answer)([_shift(part, ahead_ms) for part in answer])
    # The answer may be an instance of a subclass.
    fields = next((TIMES[kind] for kind in type(answer).__mro__ if kind in TIMES), None)
    if fields is None:
        return answer
    changes: dict[str, Any] = {
        name: shown_ms(at_ms, ahead_ms)
        for name in fields.times
        if (at_ms := getattr(answer, name)) is not None
    }
    changes |= {name: _shift(getattr(answer, name), ahead_ms) for name in fields.inside}
    if isinstance(answer, Delivery):
        changes["stored"] = _shift(answer.message, ahead_ms)
    replace = msgspec.structs.replace if isinstance(answer, msgspec.Struct) else dataclasses.replace
    return replace(answer, **changes)
