"""Measurements of one moment for metrics: plain values, cheap enough to collect every few seconds."""

from __future__ import annotations

import msgspec

from fairlead.model.throttle import ClosedThrottle
from fairlead.model.views import ThrottleStats


class QueueMeasures(msgspec.Struct, frozen=True):
    """A queue together with its dead letters, which have no entry of their own.

    `oldest_ready_ms` is the enqueue time (wall clock) of the oldest message at the head of a lane; None if
    nothing is ready, or if there are too many lanes to search. `parked_lanes` are waiting for tokens now;
    `holds` counts how often a lane began to wait since the queue was last loaded. The breakers tell whether
    they are open now.
    """

    queue_id: int
    queue: str
    ready: int
    waiting: int
    leased: int
    done: int
    dead: int
    bytes: int
    dead_bytes: int
    consumers: int
    active_keys: int
    paused: bool
    oldest_ready_ms: int | None
    parked_lanes: int
    holds: int
    hook_breakers: dict[str, bool]
    failure_breakers: dict[str, bool]
    #: Durable consumers of the queue, what their numbered claims hold, and when the first of these claims
    #: expires.
    durable_consumers: int = 0
    numbered_claims: int = 0
    numbered_messages: int = 0
    gives_up_ms: int | None = None
    #: Changes of stream fronts since the queue was last loaded.
    stream_fronts: dict[str, int] = {}


class Measures(msgspec.Struct, frozen=True):
    """`now_ms` is the wall-clock time of the measurement. `intents` counts running long operations by kind."""

    now_ms: int
    queues: list[QueueMeasures]
    throttles: list[ThrottleStats]
    intents: dict[str, int]
    lanes: int
    read_ahead_rows: int
    staged_writes: int = 0
    staged_bytes: int = 0
    closed_throttles: list[ClosedThrottle] = []
