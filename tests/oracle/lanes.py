"""What the scheduler holds in memory about keys and lanes: small objects, because there may be a million of
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol

FIRST_READ_ROWS = 16
READ_AHEAD_ROWS = 256
MOST_SPARE_LANES = 1000


class ReadRows(Protocol):
    def __call__(self, lane: bytes, place: int, limit: int) -> list[bytes]: ...


class Memory:
    """What all queues share: how many lanes and read-ahead rows are held, and how many may be, in all and of
    one queue.
    """

    __slots__ = ("lane_limit", "lanes", "lanes_per_queue", "row_limit", "rows")

    def __init__(
        self, *, row_limit: int = 400_000, lane_limit: int = 1_000_000, lanes_per_queue: int = 500_000
    ) -> None:
        self.rows = 0
        self.row_limit = row_limit
        self.lanes = 0
        self.lane_limit = lane_limit
        self.lanes_per_queue = lanes_per_queue


class Key:
    __slots__ = (
        "claimable",
        "deficit",
        "heap",
        "in_ring",
        "in_turn",
        "lane",
        "lane_count",
        "name",
        "unsettled",
        "weight",
    )

    def __init__(self, name: str, weight: int) -> None:
        self.name = name
        self.weight = weight
        self.deficit = 0
        self.in_turn = False
        self.in_ring = False
        self.unsettled = 0
        #: How many lanes exist, parked ones included.
        self.lane_count = 0
        #: How many of them are not parked.
        self.claimable = 0
        #: The claimable lane while there is only one; with several, `heap` orders them by the place of their
        #: head. An entry that is no longer its lane's own is stale, and skipped when it comes up.
        self.lane: Lane | None = None
        self.heap: list[HeapEntry] | None = None


#: Shared by all lanes that keep no grant, which is nearly all of them.
NOTHING_HELD: Mapping[str, int] = {}


class Lane:
    __slots__ = (
        "ahead",
        "at",
        "entry",
        "grant",
        "granted_by",
        "held",
        "id",
        "key",
        "last",
        "more",
        "parked",
        "rows",
        "share",
        "throttle_keys",
    )

    def __init__(self, lane_id: bytes, key: Key, throttle_keys: tuple[str, ...]) -> None:
        self.id = lane_id
        self.key = key
        self.throttle_keys = throttle_keys
        self.rows: list[bytes] = []
        self.at = 0
        #: The place of the last row read into or appended to the window; rows beyond it are on disk only if
        #: `more`.
        self.last = 0
        self.more = False
        #: How many rows to read when the window is used up; doubles each time.
        self.ahead = FIRST_READ_ROWS
        self.parked: str | None = None
        self.entry: HeapEntry | None = None
        #: Deliveries this lane may still make before it goes back to the ring of the bucket that woke it.
        self.grant = 0
        self.granted_by: str | None = None
        #: Grants of slower buckets, kept while the lane waits for a faster one.
        self.held: Mapping[str, int] = NOTHING_HELD
        self.share = 0

    def __lt__(self, other: Lane) -> bool:
        """Asked only when a lane that was dropped comes back with the same head, beside its stale entry:
        either may be first.
        """
        return False


HeapEntry = tuple[bytes, bytes, Lane]


class ParkedRing:
    """Lanes of one queue that wait for one bucket, in the order of their turns; its length is how many wait."""

    __slots__ = ("_holders", "_holders_turn", "_lanes", "awake", "scheduled")

    def __init__(self) -> None:
        self._lanes: deque[Lane] = deque()
        #: Those that keep the grant of a slower bucket meanwhile; they and the others take turns.
        self._holders: deque[Lane] = deque()
        self._holders_turn = True
        #: Grants given out and not used yet, so that a refill wakes no more lanes than it has tokens.
        self.awake = 0
        self.scheduled = False

    def __len__(self) -> int:
        return len(self._lanes) + len(self._holders)

    def add(self, lane: Lane, *, front: bool) -> None:
        if lane.held:
            self._holders.append(lane)
        elif front:
            self._lanes.appendleft(lane)
        else:
            self._lanes.append(lane)

    def pop(self) -> Lane:
        from_holders = bool(self._holders) and (self._holders_turn or not self._lanes)
        self._holders_turn = not from_holders
        return self._holders.popleft() if from_holders else self._lanes.popleft()

    def remove(self, lane: Lane) -> None:
        (self._holders if lane in self._holders else self._lanes).remove(lane)
