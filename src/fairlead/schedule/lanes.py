"""What the scheduler holds about keys and lanes: small objects, because there may be a million of them.

A lane is named by its fairness key and then its throttle keys. A key *is* its plain lane, the one without
throttle keys; lanes with throttle keys are objects of their own beside it. Keys and lanes refer to each other
by name only, so a changed copy can take the place of its original.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from fairlead.records.chunk import LaneName
from fairlead.schedule.views import Heap, HeapView, Line, LineView

PlaceOf: TypeAlias = Callable[[int], int]

#: Shared by all lanes that keep no grant, which is nearly all of them.
NOTHING_HELD: Mapping[str, int] = MappingProxyType({})
#: A lane is trimmed when it has more used numbers than this, and more than it has unused ones.
MIN_TRIM = 64


class Lane(msgspec.Struct, gc=False, eq=False):
    """Ready messages in the order of their places.

    A copy shares `numbers` and `back` with its original and moves only its own `at` and `back_at`; the
    methods that change the two lists are for originals.
    """

    name: LaneName
    #: Messages that were added in order; those before `at` are gone.
    numbers: list[int] = []
    at: int = 0
    #: Sorted (place, number) of returned messages; those before `back_at` are gone. Shared while there are
    #: none, as in nearly every lane.
    back: list[tuple[int, int]] | tuple[()] = ()
    back_at: int = 0
    #: The place of the first message that is only on disk, or an earlier place; 0: all are in memory.
    cold_from: int = 0
    #: The place under which the lane is in the heap of its key; an entry with another place is stale.
    listed: int | None = None

    @property
    def is_empty(self) -> bool:
        """No message, neither in memory nor on disk."""
        return not self.cold_from and self.at >= len(self.numbers) and self.back_at >= len(self.back)

    @property
    def is_dry(self) -> bool:
        """The next message, if there is one, is on disk."""
        return self.at >= len(self.numbers) and not self._back_may_go()

    @property
    def ran_dry(self) -> bool:
        """Whether only the disk knows if there is a next message."""
        return self.cold_from > 0 and self.is_dry

    def _back_may_go(self) -> bool:
        """Whether the first returned message may be next; one that is after messages on disk waits for them."""
        if self.back_at >= len(self.back):
            return False
        return not 0 < self.cold_from < self.back[self.back_at][0]

    def head(self, place_of: PlaceOf) -> int:
        """Place of the next message. It may be too low while that message is on disk."""
        in_order = place_of(self.numbers[self.at]) if self.at < len(self.numbers) else self.cold_from
        if self.back_at >= len(self.back):
            return in_order
        came_back = self.back[self.back_at][0]
        return min(in_order, came_back) if in_order else came_back

    def take(self, count: int, place_of: PlaceOf) -> list[int]:
        """Move past the next messages in memory, at most `count`, and return them."""
        if self.back_at < len(self.back):
            return self._take_merged(count, place_of)
        at = self.at
        taken = self.numbers[at : at + count]
        self.at = at + len(taken)
        return taken

    def _take_merged(self, count: int, place_of: PlaceOf) -> list[int]:
        taken: list[int] = []
        while len(taken) < count and self._back_may_go():
            place, number = self.back[self.back_at]
            if self.at < len(self.numbers) and place_of(self.numbers[self.at]) < place:
                taken.append(self.numbers[self.at])
                self.at += 1
            else:
                taken.append(number)
                self.back_at += 1
        found = self.numbers[self.at : self.at + count - len(taken)]
        self.at += len(found)
        return taken + found

    def all(self) -> list[int]:
        """All messages, with no order between those added in order and those returned."""
        return [*self.numbers[self.at :], *(number for _, number in self.back[self.back_at :])]

    def last_place(self, place_of: PlaceOf) -> int:
        """The last place among the messages in memory; 0 if there is none."""
        in_order = place_of(self.numbers[-1]) if self.at < len(self.numbers) else 0
        came_back = [place for place, _ in self.back[-1:]] if self.back_at < len(self.back) else []
        return max([in_order, *came_back])

    @property
    def in_memory(self) -> int:
        """How many messages are in memory."""
        return len(self.numbers) - self.at + len(self.back) - self.back_at

    def after(self, place: int, limit: int, place_of: PlaceOf) -> list[int]:
        """The next messages behind a place, in order, without moving past them."""
        at = bisect_right(self.numbers, place, lo=self.at, key=place_of)
        in_order = self.numbers[at : at + limit]
        back_at = bisect_left(self.back, (place + 1, 0), lo=self.back_at)
        came_back = self.back[back_at : back_at + limit]
        if not came_back:
            return in_order
        merged = sorted([*((place_of(number), number) for number in in_order), *came_back])
        return [number for _, number in merged[:limit]]

    def insert(self, number: int, place: int, place_of: PlaceOf) -> None:
        numbers = self.numbers
        in_order = self.at >= len(numbers) or place_of(numbers[-1]) < place
        if in_order and not self.cold_from:
            numbers.append(number)
        else:
            self.back = self.back or []
            insort(self.back, (place, number), lo=self.back_at)

    def remove(self, number: int, place: int, place_of: PlaceOf) -> None:
        at = bisect_left(self.back, (place, number), lo=self.back_at)
        if at < len(self.back) and self.back[at] == (place, number):
            del self.back[at]  # type: ignore[union-attr]
            return
        at = bisect_left(self.numbers, place, lo=self.at, key=place_of)
        assert self.numbers[at] == number, f"expected {number} in lane {self.name} at place {place}"
        del self.numbers[at]

    def cut(self, place: int, place_of: PlaceOf) -> list[int]:
        """Remove the messages from that place on, and return them."""
        at = bisect_left(self.numbers, place, lo=self.at, key=place_of)
        back_at = bisect_left(self.back, (place, 0), lo=self.back_at)
        taken = [*self.numbers[at:], *(number for _, number in self.back[back_at:])]
        del self.numbers[at:]
        self.back = [*self.back[:back_at]] or ()
        return taken

    def trim(self) -> None:
        """Free the memory of messages that are gone."""
        at = self.at
        if at > MIN_TRIM and 2 * at > len(self.numbers):
            del self.numbers[:at]
            self.at = 0
        if self.back_at and self.back_at == len(self.back):
            self.back = ()
            self.back_at = 0
        elif self.back_at > MIN_TRIM and 2 * self.back_at > len(self.back):
            del self.back[: self.back_at]  # type: ignore[union-attr]
            self.back_at = 0


class Key(Lane, gc=False, eq=False):
    weight: int = 1
    #: Whether the plain lane has messages.
    active: bool = False
    deficit: int = 0
    in_turn: bool = False
    in_ring: bool = False
    #: How many lanes have messages, and how many of these are not parked.
    lane_count: int = 0
    claimable: int = 0
    #: Messages with consumers; counted only in a queue that limits them.
    unsettled: int = 0
    #: The claimable lane while there is one and no heap.
    only: LaneName | None = None
    #: (place of the head, name) of the claimable lanes, once there were two. Entries may be stale.
    heap: Heap[tuple[int, LaneName]] | None = None

    def copy(self) -> Key:
        copy: Key = self.__copy__()  # type: ignore[attr-defined]
        if self.heap is not None:
            copy.heap = HeapView(self.heap)
        return copy

    @property
    def is_plain(self) -> bool:
        """Whether each of its turns gives one message, the next one of `numbers`."""
        if self.weight != 1 or self.deficit or self.in_turn or self.lane_count != 1:
            return False
        in_order = self.active and self.heap is None and self.back_at >= len(self.back)
        return in_order and not self.is_empty


class ThrottledLane(Lane, gc=False, eq=False):
    #: The throttle key whose tokens it waits for.
    parked: str | None = None
    #: Deliveries it may still make before it returns to the ring of the bucket that woke it.
    grant: int = 0
    granted_by: str | None = None
    #: Grants of slower buckets, kept while the lane waits for a faster one.
    held: Mapping[str, int] = NOTHING_HELD
    #: What is left of its turn in the rings of buckets.
    share: int = 0

    def copy(self) -> ThrottledLane:
        copy: ThrottledLane = self.__copy__()  # type: ignore[attr-defined]
        return copy

    def granted(self) -> dict[str, int]:
        granted = dict(self.held)
        if self.granted_by is not None:
            granted[self.granted_by] = self.grant
        return granted


class ParkedRing:
    """Lanes of one queue that wait for one bucket, in the order of their turns."""

    __slots__ = ("awake", "holders", "holders_turn", "lanes", "scheduled")

    def __init__(self) -> None:
        self.lanes: Line[LaneName] = Line()
        #: Lanes that keep the grant of a slower bucket meanwhile; they and the others take turns.
        self.holders: Line[LaneName] = Line()
        self.holders_turn = True
        #: Grants given out and not used yet: a refill wakes no more lanes than it has tokens.
        self.awake = 0
        self.scheduled = False

    def copy(self) -> ParkedRing:
        copy = ParkedRing.__new__(ParkedRing)
        copy.lanes = LineView(self.lanes)
        copy.holders = LineView(self.holders)
        copy.holders_turn = self.holders_turn
        copy.awake = self.awake
        copy.scheduled = self.scheduled
        return copy

    def settle(self) -> None:
        self.lanes = self.lanes.settle()
        self.holders = self.holders.settle()

    def __len__(self) -> int:
        return len(self.lanes) + len(self.holders)

    def add(self, lane: ThrottledLane, *, front: bool) -> None:
        if lane.held:
            self.holders.append(lane.name)
        elif front:
            self.lanes.appendleft(lane.name)
        else:
            self.lanes.append(lane.name)

    def pop(self) -> LaneName:
        from_holders = len(self.holders) > 0 and (self.holders_turn or not len(self.lanes))
        self.holders_turn = not from_holders
        return self.holders.popleft() if from_holders else self.lanes.popleft()

    def remove(self, lane: ThrottledLane) -> None:
        """For originals: a view would read the whole line."""
        line = self.holders if lane.name in self.holders.items else self.lanes
        line.items.remove(lane.name)
