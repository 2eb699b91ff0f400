"""The state of one queue's scheduler, and the two moves that operations and plans share."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.records.chunk import LaneName
from fairlead.schedule.lanes import Key, Lane, PlaceOf, ThrottledLane
from fairlead.schedule.parking import Parking
from fairlead.schedule.throttle import Buckets
from fairlead.schedule.views import Heap, Line


class SchedulerState:
    __slots__ = (
        "cold",
        "debts",
        "held",
        "inactive",
        "keys",
        "lanes",
        "left_over",
        "max_unsettled_per_key",
        "parking",
        "place_of",
        "quantum",
        "ring",
        "special",
        "version",
    )

    def __init__(
        self, place_of: PlaceOf, buckets: Buckets, *, quantum: int = 1, max_unsettled_per_key: int = 0
    ) -> None:
        self.place_of = place_of
        self.quantum = quantum
        self.max_unsettled_per_key = max_unsettled_per_key
        #: A key whose only message was added in order, with weight 1 and no debt, is that bare number until
        #: `find_key` asks for it: with many keys most have one message, and an object for each would cost
        #: more than everything else.
        self.keys: dict[str, Key | int] = {}
        #: How many of the keys have no message in their plain lanes.
        self.inactive = 0
        #: Lanes with throttle keys.
        self.lanes: dict[LaneName, ThrottledLane] = {}
        #: Keys that have something claimable, and keys that lost their last message outside a claim: these
        #: leave the ring at their turn.
        self.ring: Line[str] = Line()
        #: Keys in the ring whose turns may differ from those of a plain key.
        self.special: set[str] = set()
        self.cold: set[LaneName] = set()
        self.parking = Parking(buckets)
        #: What keys without messages owe for the runs of their streams.
        self.debts: dict[str, int] = {}
        #: The last key that ran out of messages in its turn, and what was left of the turn.
        self.left_over = ("", 0)
        #: Messages in memory.
        self.held = 0
        #: Counts changes, so that a plan of another state is not carried out.
        self.version = 0

    def find_key(self, name: str) -> Key | None:
        """The key. A bare number becomes an equivalent object."""
        known = self.keys.get(name)
        if isinstance(known, int):
            known = self.keys[name] = lone_key(name, known)
        return known

    def key(self, name: str) -> Key:
        key = self.find_key(name)
        assert key is not None, f"expected key {name}"
        return key

    def is_active(self, name: str) -> bool:
        """Whether the plain lane of a key has messages."""
        known = self.keys.get(name)
        return known is not None and (isinstance(known, int) or known.active)

    def all_keys(self) -> Iterator[Key]:
        """Bare numbers as objects that are not kept."""
        for name, known in self.keys.items():
            yield lone_key(name, known) if isinstance(known, int) else known

    def find_lane(self, name: LaneName) -> Lane | None:
        if len(name) > 1:
            return self.lanes.get(name)
        key = self.find_key(name[0])
        return key if key is not None and key.active else None

    def note_special(self, key: Key) -> None:
        if key.in_ring and not key.is_plain:
            self.special.add(key.name[0])
        else:
            self.special.discard(key.name[0])


def lone_key(name: str, number: int, weight: int = 1) -> Key:
    """A key that has just joined the ring with one message."""
    lane = (name,)
    return Key(lane, [number], weight=weight, active=True, in_ring=True, lane_count=1, claimable=1, only=lane)


def enter(lane: Lane, key: Key, only: Lane | None, place_of: PlaceOf) -> None:
    """The lane is claimable: it joins its key, whose only claimable lane so far is `only`."""
    key.claimable += 1
    if key.heap is None:
        if only is None:
            key.only = lane.name
            return
        key.heap = Heap()
        key.only = None
        list_lane(only, key, place_of)
    list_lane(lane, key, place_of)


def list_lane(lane: Lane, key: Key, place_of: PlaceOf) -> None:
    """Update the lane's entry in the heap after its head changed. The former entry is stale."""
    assert key.heap is not None
    lane.listed = lane.head(place_of)
    key.heap.push((lane.listed, lane.name))
