"""Lanes that wait for tokens: out of their keys, in one ring per bucket, woken by weight.

A refill wakes as many lanes as it has tokens, so 100,000 parked lanes cost nothing. A wake-up is a grant to
try a number of messages, not a reserved token: a queue that nobody claims from must not starve another one. A
lane that needs several buckets waits for the slowest first and keeps that grant while it waits for the next
faster one, where every second turn is for lanes with a grant; otherwise one of its tokens would always be
taken. All lanes wait in the same order, so no two wait for each other; slowest first, so no grant is kept for
longer than a faster bucket needs.
"""

from __future__ import annotations

from typing import Protocol

from fairlead.records.chunk import LaneName
from fairlead.schedule.lanes import NOTHING_HELD, ParkedRing, ThrottledLane
from fairlead.schedule.throttle import Buckets, BucketsDraft
from fairlead.schedule.views import Heap, HeapView


class Parking:
    """The parked lanes of one queue."""

    __slots__ = ("buckets", "holding", "parked", "rings", "wakes")

    def __init__(self, buckets: Buckets) -> None:
        self.buckets = buckets
        self.rings: dict[str, ParkedRing] = {}
        #: (time, throttle key): when to look at a ring again.
        self.wakes: Heap[tuple[int, str]] = Heap()
        #: Lanes that keep the grant of a slower bucket.
        self.holding: dict[LaneName, None] = {}
        #: How often a lane was parked.
        self.parked = 0

    def has_wakes(self, now_ms: int) -> bool:
        return len(self.wakes) > 0 and self.wakes.first()[0] <= now_ms

    def apply(self, draft: ParkingDraft) -> None:
        for throttle_key, ring in draft.rings.items():
            if ring is None:
                self.rings.pop(throttle_key, None)
            else:
                ring.settle()
                self.rings[throttle_key] = ring
        self.wakes = draft.wakes.settle()
        self.parked += draft.parked
        self.buckets.charge(draft.buckets.charged())

    def note_holding(self, lane: ThrottledLane) -> None:
        if lane.held:
            self.holding[lane.name] = None
        else:
            self.holding.pop(lane.name, None)


class KeysDraft(Protocol):
    """The operations on keys and lanes that parking needs from the draft."""

    def throttled(self, name: LaneName) -> ThrottledLane: ...

    def enter(self, lane: ThrottledLane) -> None: ...

    def leave(self, lane: ThrottledLane) -> None: ...

    def weight(self, lane: ThrottledLane) -> int: ...

    def is_at_limit(self, lane: ThrottledLane) -> bool: ...


class ParkingDraft:
    """Parking at one instant, on copies."""

    __slots__ = ("_keys", "_now_ms", "_parking", "buckets", "parked", "rings", "visits", "wakes")

    def __init__(self, parking: Parking, keys: KeysDraft, now_ms: int) -> None:
        self._parking = parking
        self._keys = keys
        self._now_ms = now_ms
        self.buckets = BucketsDraft(parking.buckets, now_ms)
        #: Copies; None: no lane waits for the bucket any more.
        self.rings: dict[str, ParkedRing | None] = {}
        self.wakes = HeapView(parking.wakes)
        #: How often a lane was parked, and how many lanes in rings were visited.
        self.parked = 0
        self.visits = 0

    def _find_ring(self, throttle_key: str) -> ParkedRing | None:
        if throttle_key in self.rings:
            return self.rings[throttle_key]
        original = self._parking.rings.get(throttle_key)
        if original is None:
            return None
        ring = self.rings[throttle_key] = original.copy()
        return ring

    def _ring(self, throttle_key: str) -> ParkedRing:
        ring = self._find_ring(throttle_key)
        assert ring is not None, f"expected lanes or grants of bucket {throttle_key}"
        return ring

    def has_wakes(self) -> bool:
        return len(self.wakes) > 0 and self.wakes.first()[0] <= self._now_ms

    def bucket_changed(self, throttle_key: str) -> None:
        # The order of the buckets may have changed: no lane keeps a grant of the old order.
        for name in self._parking.holding:
            self.return_grant(self._keys.throttled(name))
        ring = self._find_ring(throttle_key)
        if ring is not None:
            ring.scheduled = True
            self.wakes.push((self._now_ms, throttle_key))

    def lacking(self, lane: ThrottledLane) -> str | None:
        """Take the tokens of the lane's next message, or return the bucket it must wait for; then none is
        taken.
        """
        order = self.buckets.slowest_first(lane.name[1:])
        for throttle_key in order:
            ring = self._find_ring(throttle_key)
            if ring is None or throttle_key == lane.granted_by or throttle_key in lane.held:
                continue
            if len(ring) or ring.awake >= (self.buckets.whole_tokens(throttle_key) or 0):
                # Other lanes wait for this bucket already, or have a grant for its tokens: no overtaking.
                return throttle_key
        return self.buckets.take(order)

    def use_grants(self, lane: ThrottledLane) -> None:
        """Use up one of each grant, because a message was delivered."""
        assert lane.granted_by is not None
        self._ring(lane.granted_by).awake -= 1
        lane.grant -= 1
        if not lane.held:
            return
        before = lane.held
        lane.held = {throttle_key: held - 1 for throttle_key, held in before.items() if held > 1}
        for throttle_key in before:
            ring = self._ring(throttle_key)
            ring.awake -= 1
            self._schedule(throttle_key, ring)
            self.tidy(throttle_key)

    def turn_over(self, lane: ThrottledLane) -> None:
        """The grant is used up: back to the ring, in front if some of its share is left."""
        throttle_key = lane.granted_by
        assert throttle_key is not None
        if lane.held:
            self.wait_for(lane, throttle_key)
            return
        self.return_grant(lane)
        order = self.buckets.slowest_first(lane.name[1:])
        if order:
            self._park(lane, order[0], front=lane.share > 0 and order[0] == throttle_key)

    def wait_for(self, lane: ThrottledLane, throttle_key: str) -> None:
        """Park the lane until it gets a token of that bucket; grants of slower buckets are kept."""
        granted = lane.granted()
        order = self.buckets.slowest_first(lane.name[1:])
        slower = order[: order.index(throttle_key)]
        kept = {key: granted[key] for key in slower if granted.get(key)}
        lane.held, lane.granted_by, lane.grant = kept, None, 0
        self._park(lane, throttle_key, front=throttle_key in granted)
        for key, count in granted.items():
            if key not in kept:
                self._give_back(key, count)

    def return_grant(self, lane: ThrottledLane) -> None:
        """Other lanes may have the tokens that the lane was woken for, or kept."""
        granted = lane.granted()
        lane.held, lane.granted_by, lane.grant = NOTHING_HELD, None, 0
        for throttle_key, count in granted.items():
            self._give_back(throttle_key, count)

    def wake(self) -> None:
        """Wake as many parked lanes as their buckets have tokens, each bucket by its own round robin."""
        woken: list[str] = []
        while self.has_wakes():
            throttle_key = self.wakes.pop()[1]
            ring = self._find_ring(throttle_key)
            if ring is None:
                continue
            ring.scheduled = False
            woken.append(throttle_key)
            self._wake_lanes(throttle_key, ring)
            self.tidy(throttle_key)
        for throttle_key in woken:
            self._schedule_later(throttle_key)

    def _wake_lanes(self, throttle_key: str, ring: ParkedRing) -> None:
        tokens = self.buckets.whole_tokens(throttle_key)
        free = 0 if tokens is None else tokens - ring.awake
        while len(ring) and (tokens is None or free > 0):
            self.visits += 1
            lane = self._keys.throttled(ring.pop())
            lane.parked = None
            if tokens is None or self._keys.is_at_limit(lane):
                self.return_grant(lane)
            else:
                free -= self._grant(lane, throttle_key, ring, free)
            self._keys.enter(lane)

    def _grant(self, lane: ThrottledLane, throttle_key: str, ring: ParkedRing, free: int) -> int:
        """How many messages the lane may deliver before it returns to the ring."""
        if lane.share < 1:
            lane.share += self._keys.weight(lane)
        count = min(lane.share, free, *lane.held.values())
        lane.share -= count
        lane.grant, lane.granted_by = count, throttle_key
        ring.awake += count
        return count

    def _park(self, lane: ThrottledLane, throttle_key: str, *, front: bool) -> None:
        self._keys.leave(lane)
        self.parked += 1
        ring = self._find_ring(throttle_key)
        if ring is None:
            ring = self.rings[throttle_key] = ParkedRing()
        lane.parked = throttle_key
        ring.add(lane, front=front)
        self._schedule(throttle_key, ring)

    def _give_back(self, throttle_key: str, count: int) -> None:
        ring = self._ring(throttle_key)
        ring.awake -= count
        if len(ring) and not ring.scheduled:
            ring.scheduled = True
            self.wakes.push((0, throttle_key))
        self.tidy(throttle_key)

    def tidy(self, throttle_key: str) -> None:
        """Delete a ring without lanes and grants."""
        ring = self._find_ring(throttle_key)
        if ring is not None and not len(ring) and not ring.awake:
            self.rings[throttle_key] = None

    def _schedule(self, throttle_key: str, ring: ParkedRing) -> None:
        """Look again when the bucket has one token more than were granted."""
        if ring.scheduled or not len(ring):
            return
        at_ms = self.buckets.ready_at(throttle_key, ring.awake + 1)
        if at_ms is not None:
            ring.scheduled = True
            self.wakes.push((at_ms, throttle_key))

    def _schedule_later(self, throttle_key: str) -> None:
        """After a wake-up: no more lanes can be woken at this instant."""
        ring = self._find_ring(throttle_key)
        if ring is None or ring.scheduled or not len(ring):
            return
        at_ms = self.buckets.ready_at(throttle_key, ring.awake + 1)
        if at_ms is not None and at_ms > self._now_ms:
            ring.scheduled = True
            self.wakes.push((at_ms, throttle_key))
