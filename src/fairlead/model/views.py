"""What the broker shows to people: plain frozen values, times in epoch milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from fairlead.model.failure import FailureReason, FailureRecord, Progress
from fairlead.model.queue import QueueConfig


@dataclass(frozen=True, slots=True)
class QueueInfo:
    name: str
    config: QueueConfig
    created_at: int
    paused: bool
    dead_letter_queue: str | None
    source: str | None


@dataclass(frozen=True, slots=True)
class KeyStats:
    """`pending` is counted up to 10,000; `more` says that there are more."""

    key: str
    weight: int
    deficit: int
    pending: int
    more: bool


@dataclass(frozen=True, slots=True)
class ThrottleStats:
    key: str
    tokens: float
    rate: float
    burst: float


class HookStats(msgspec.Struct, frozen=True):
    """One hook of one queue since its script was set. `breaker_open_until_ms` is wall-clock time, None while closed."""

    function: str
    calls: int
    failures: int
    bypassed: int
    consecutive: int
    breaker_open_until_ms: int | None
    last_error: str


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The message counts are exact, also after a crash. `consumers` counts those waiting in a claim or holding a lease."""

    queue: str
    ready: int
    waiting: int
    leased: int
    dead: int
    done: int
    bytes: int
    consumers: int
    active_keys: int
    paused: bool
    keys: tuple[KeyStats, ...] = ()
    throttles: tuple[ThrottleStats, ...] = ()
    hooks: tuple[HookStats, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """`where` is ready, waiting or leased; a dead letter is ready in a `.dlq`. `place` is its position in its lane."""

    id: str
    queue: str
    where: str
    payload: bytes = field(repr=False)
    headers: dict[str, str]
    fairness_key: str
    weight: int
    throttle_keys: tuple[str, ...]
    stream: str | None
    enqueued_at: int
    place: int
    attempts: int
    deliveries: int
    progress: Progress
    carry: bytes
    failures: tuple[FailureRecord, ...]
    failures_cut: int
    reason: FailureReason | None
    rule: str
    due_at: int | None
    expires_at: int | None
    lease_until: int | None
    consumer: str | None
    source: str | None
    dead_since: int | None


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """`matched` is the exact number selected (so far, when an intent goes on); `intent_id` is set while it goes on."""

    matched: int
    moved: int
    intent_id: int | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that keeps a message or queue from being delivered. `until_ms` is when that ends by itself, if it does."""

    code: str
    text: str
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why something is not being delivered. No reasons means that nothing stands in the way."""

    subject: str
    summary: str
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.subject}: {self.summary}", *(f"  - {reason.text}" for reason in self.reasons)])
