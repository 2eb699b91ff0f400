"""What there is to measure at one moment: plain values for metrics, cheap enough to be asked for every few
seconds.
"""

from __future__ import annotations

import msgspec

from fairlead.model.throttle import ClosedThrottle
from fairlead.model.views import ThrottleStats


class QueueMeasures(msgspec.Struct, frozen=True):
    """A queue and its dead letters, which have no entry of their own.

    `oldest_ready_ms` is when the oldest message at the head of a lane was enqueued (wall clock): None when
    nothing is ready, or when there are too many lanes to look at. `parked_lanes` wait for tokens now; `holds`
    counts how often one began to, since the queue was last loaded. The breakers say whether they are open
    now.
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
    #: Durable consumers of the queue, what they hold in numbered claims, and when the first that holds
    #: something is given up.
    durable_consumers: int = 0
    numbered_claims: int = 0
    numbered_messages: int = 0
    gives_up_ms: int | None = None
    #: Changes of the fronts of streams, since the queue was last loaded; empty in an engine that tells them as facts.
    stream_fronts: dict[str, int] = {}


class Measures(msgspec.Struct, frozen=True):
    """`now_ms` is the wall clock they were taken by. `intents` counts long operations under way, by kind."""

    now_ms: int
    queues: list[QueueMeasures]
    throttles: list[ThrottleStats]
    intents: dict[str, int]
    lanes: int
    read_ahead_rows: int
    staged_writes: int = 0
    staged_bytes: int = 0
    closed_throttles: list[ClosedThrottle] = []
