"""What the broker shows to people: plain frozen values, times in epoch milliseconds."""

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
    """`pending` is counted up to 10,000, or less where there are many keys; `more` says that there are more.

    A stream counts as the one message at its front. `delivered` grows with each delivery, and may begin anew
    at any time.
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
    closed.

    `corrected` counts results of which something was corrected or ignored; `last_note` says what.
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
    """What passed since the broker was opened. `failed` counts failed tries, leases that ran out among them."""

    enqueued: int = 0
    delivered: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The message counts are exact, also after a crash. `bytes` is of all that are not done. `consumers`
    counts those waiting in a claim or holding a lease.
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
    """`where` is ready, waiting, leased or done; a dead letter is ready in a `.dlq`. `place` is its position
    in its lane.

    `seq` is its order in its stream; 0 when no stream orders it.
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
    #: What is left out here, because the one who looks may not read it, or nobody may: "payload", "headers",
    #: ...
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """`matched` is the exact number selected (so far, when an intent goes on); `intent_id` is set while it
    goes on.
    """

    matched: int
    moved: int
    intent_id: int | None = None


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """Ids that were changed, and (id, why) of those that were not. `more`: a filter selects more than one
    call may touch.
    """

    changed: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class BlockedStream:
    """`blocker` has held up `behind` messages since it last failed (or was enqueued), until its due time, if
    it has one.
    """

    stream: str
    blocker: str
    since: int
    until: int | None
    behind: int


@dataclass(frozen=True, slots=True)
class PoisonCandidate:
    """A live message with at least `poison_after` attempts. `due_at` is None unless it waits for its next one.
    Its errors are in `find`.
    """

    id: str
    attempts: int
    reason: str
    due_at: int | None
    created_at: int


@dataclass(frozen=True, slots=True)
class FailureMetrics:
    """Live messages by attempts and by the reason of their last failure; retries that are scheduled; what
    looks like poison; who is held up.

    `poison_candidates` have the most attempts first, then the oldest; held messages are not among them: an
    operator has dealt with those. `blocked_count` counts blocked streams that are not listed too.

    `complete` is False when the queue holds more than the 100,000 messages that are looked at; then
    `latest_due` is that of anything that waits.
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
    """One thing that keeps a message or queue from being delivered. `until_ms` is when that ends by itself,
    if it does.
    """

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
        return "\n".join(
            [f"{self.subject}: {self.summary}", *(f"  - {reason.text}" for reason in self.reasons)]
        )
