"""Frozen values that the broker shows to people. Times are epoch milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from fairlead.model.failure import FailureReason, FailureRecord, Progress
from fairlead.model.queue import QueueConfig
from fairlead.model.throttle import ClosedThrottle


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
    """`pending` is counted up to 10,000, or less if there are many keys; `more` says that there are more.

    A stream counts as the one message at its front. `delivered` grows with each delivery, and may restart
    from 0 at any time.
    """

    key: str
    weight: int
    deficit: int
    pending: int
    more: bool
    delivered: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ThrottleStats:
    key: str
    tokens: float
    rate: float
    burst: float


class HookStats(msgspec.Struct, frozen=True):
    """One hook of one queue since its script was set. `breaker_open_until_ms` is wall-clock time, None while
    the breaker is closed.

    `corrected` counts results in which a value was corrected or ignored; `last_note` describes the last one.
    """

    function: str
    calls: int
    failures: int
    bypassed: int
    consecutive: int
    breaker_open_until_ms: int | None
    last_error: str
    corrected: int = 0
    last_note: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the broker was opened. `failed` counts failed tries, including leases that expired."""

    enqueued: int = 0
    delivered: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The message counts are exact, also after a crash. `bytes` is the size of all messages that are not
    done. `consumers` counts consumers that wait in a claim or hold a lease.
    """

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
    closed_throttles: tuple[ClosedThrottle, ...] = ()
    hooks: tuple[HookStats, ...] = ()
    totals: Totals = field(default=Totals(), compare=False)


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """`where` is ready, waiting, leased or done; a dead letter is ready in a `.dlq`. `place` is the position
    in its lane.

    `seq` is the order in its stream, or 0 if no stream orders it.
    """

    id: str
    queue: str
    where: str
    payload: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    fairness_key: str
    weight: int
    throttle_keys: tuple[str, ...]
    stream: str | None
    enqueued_at: int
    place: int
    seq: int
    attempts: int
    deliveries: int
    progress: Progress
    carry: bytes = field(repr=False)
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
    done_at: int | None = None
    #: Fields that are left out because the caller may not read them, or nobody may: "payload", "headers", ...
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """`matched` is the exact number of selected messages; while an intent is running, the number so far.
    `intent_id` is set while it is running.
    """

    matched: int
    moved: int
    intent_id: int | None = None


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """Ids that were changed, and (id, why) of those that were not. `more`: the filter selects more messages
    than one call may change.
    """

    changed: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class BlockedStream:
    """`blocker` has held up `behind` messages since its last failure (or its enqueue), until its due time if
    it has one.
    """

    stream: str
    blocker: str
    since: int
    until: int | None
    behind: int


@dataclass(frozen=True, slots=True)
class PoisonCandidate:
    """A live message with at least `poison_after` attempts. `due_at` is None unless the message waits for its
    next try. Its errors are in `find`.
    """

    id: str
    attempts: int
    reason: str
    due_at: int | None
    created_at: int


@dataclass(frozen=True, slots=True)
class FailureMetrics:
    """Live messages by attempts and by the reason of their last failure, scheduled retries, poison
    candidates, and blocked streams.

    `poison_candidates` are sorted by attempts (most first), then by age. Held messages are not among them,
    because an operator has dealt with them. `blocked_count` includes blocked streams that are not listed.

    `complete` is False if the queue holds more than the 100,000 messages that are scanned; then `latest_due`
    covers all waiting messages.
    """

    queue: str
    by_attempts: dict[int, int]
    by_reason: dict[str, int]
    scheduled: int
    next_due: int | None
    latest_due: int | None
    poison_candidates: tuple[PoisonCandidate, ...]
    blocked_streams: tuple[BlockedStream, ...]
    complete: bool
    blocked_count: int = 0


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why a message or queue is not delivered. `until_ms` is when it ends by itself, if it does."""

    code: str
    text: str
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why something is not delivered. An empty list of reasons means that nothing prevents the delivery."""

    subject: str
    summary: str
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.subject}: {self.summary}", *(f"  - {reason.text}" for reason in self.reasons)]
        )
