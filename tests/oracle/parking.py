"""Lanes that wait for tokens: out of their keys, in one ring per bucket, woken by weight.

A refill wakes as many lanes as it has tokens, so that a hundred thousand blocked lanes cost nothing. A
wake-up is a grant to try, so many messages long, and not a reserved token: a queue nobody claims from must
not starve another one that shares the bucket. A lane that needs several buckets waits for the slowest first
and keeps that grant while it waits for the next faster one, where every second turn is for such lanes: else
others would always have one of its tokens. One order for all, so that no two lanes wait for each other;
slowest first, so that no grant is kept for longer than a faster bucket needs.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice

from tests.oracle.lanes import NOTHING_HELD, Key, Lane, ParkedRing
from tests.oracle.throttle import Buckets


class Parking:
    """The parked lanes of one queue. `enter` and `leave` tell the scheduler that a lane is claimable again,
    or no longer.
    """

    def __init__(
        self,
        buckets: Buckets,
        *,
        enter: Callable[[Lane], None],
        leave: Callable[[Lane], None],
        at_limit: Callable[[Key], bool],
    ) -> None:
        self.visits = 0
        #: How often a lane was parked.
        self.holds = 0
        self._buckets = buckets
        self._enter_key = enter
        self._leave_key = leave
        self._at_limit = at_limit
        self._parked: dict[str, ParkedRing] = {}
        self._wakes: list[tuple[int, str]] = []
        self._holding: set[Lane] = set()

    def has_wakes(self, now_ms: int) -> bool:
        return bool(self._wakes) and self._wakes[0][0] <= now_ms

    def next_wake_ms(self) -> int | None:
        return self._wakes[0][0] if self._wakes else None

    @property
    def lanes(self) -> int:
        return sum(len(ring) for ring in self._parked.values())

    def shown(self, limit: int) -> list[tuple[str, int]]:
        return [(key, len(ring)) for key, ring in islice(self._parked.items(), limit) if ring]

    def bucket_changed(self, throttle_key: str, now_ms: int) -> None:
        # The order of the buckets may have changed: nobody keeps a grant of the old one.
        for lane in list(self._holding):
            self.return_grant(lane)
        ring = self._parked.get(throttle_key)
        if ring is not None:
            ring.scheduled = True
            heappush(self._wakes, (now_ms, throttle_key))

    def remove(self, lane: Lane) -> None:
        """A parked lane has no message left."""
        assert lane.parked is not None
        self._parked[lane.parked].remove(lane)
        self._tidy(lane.parked)

    def lacking(self, lane: Lane, now_ms: int) -> str | None:
        """Take the tokens of the lane's next message; the answer is the bucket it must wait for, and then
        none is taken.
        """
        keys = self._buckets.slowest_first(lane.throttle_keys)
        for throttle_key in keys:
            ring = self._parked.get(throttle_key)
            if ring is None or throttle_key == lane.granted_by or throttle_key in lane.held:
                continue
            if ring or ring.awake >= (self._buckets.whole_tokens(throttle_key, now_ms) or 0):
                # Others wait for this bucket already, or have a grant for what is in it: no overtaking.
                return throttle_key
        return self._buckets.take(keys, now_ms)

    def use_grants(self, lane: Lane, now_ms: int) -> None:
        """A message went out: one of each grant is used up."""
        assert lane.granted_by is not None
        self._parked[lane.granted_by].awake -= 1
        lane.grant -= 1
        if not lane.held:
            return
        before, lane.held = (
            lane.held,
            {throttle_key: held - 1 for throttle_key, held in lane.held.items() if held > 1},
        )
        for throttle_key in before:
            ring = self._parked[throttle_key]
            ring.awake -= 1
            self._schedule(throttle_key, ring, now_ms)
            self._tidy(throttle_key)
        if not lane.held:
            self._holding.discard(lane)

    def turn_over(self, lane: Lane, now_ms: int) -> None:
        """The lane has used up the grant it was woken with: back to the ring, in front if it has some of its
        share left.
        """
        throttle_key = lane.granted_by
        assert throttle_key is not None
        if lane.held:
            self.wait_for(lane, throttle_key, now_ms)
            return
        self.return_grant(lane)
        order = self._buckets.slowest_first(lane.throttle_keys)
        if order:
            self._park(lane, order[0], now_ms, front=lane.share > 0 and order[0] == throttle_key)

    def wait_for(self, lane: Lane, throttle_key: str, now_ms: int) -> None:
        """Park the lane until it gets a token of that bucket; grants of slower buckets are kept."""
        granted = dict(lane.held)
        if lane.granted_by is not None:
            granted[lane.granted_by] = lane.grant
        order = self._buckets.slowest_first(lane.throttle_keys)
        kept = {key: granted[key] for key in order[: order.index(throttle_key)] if granted.get(key)}
        lane.held, lane.granted_by, lane.grant = kept, None, 0
        if kept:
            self._holding.add(lane)
        else:
            self._holding.discard(lane)
        self._park(lane, throttle_key, now_ms, front=throttle_key in granted)
        for key, count in granted.items():
            if key not in kept:
                self._give_back(key, count)

    def _park(self, lane: Lane, throttle_key: str, now_ms: int, *, front: bool) -> None:
        self._leave_key(lane)
        self.holds += 1
        ring = self._parked.get(throttle_key)
        if ring is None:
            ring = self._parked[throttle_key] = ParkedRing()
        lane.parked = throttle_key
        ring.add(lane, front=front)
        self._schedule(throttle_key, ring, now_ms)

    def return_grants(self, key: Key) -> None:
        """The key is at its limit of unsettled messages: others may have the tokens its lanes were woken for."""
        if key.lane is not None:
            self.return_grant(key.lane)
        for entry in key.heap or ():
            self.return_grant(entry[2])

    def return_grant(self, lane: Lane) -> None:
        """Others may have the tokens the lane was woken for, or kept."""
        if lane.granted_by is None and not lane.held:
            return
        granted = dict(lane.held)
        if lane.granted_by is not None:
            granted[lane.granted_by] = lane.grant
        lane.held, lane.granted_by, lane.grant = NOTHING_HELD, None, 0
        self._holding.discard(lane)
        for throttle_key, count in granted.items():
            self._give_back(throttle_key, count)

    def _give_back(self, throttle_key: str, count: int) -> None:
        ring = self._parked[throttle_key]
        ring.awake -= count
        if ring and not ring.scheduled:
            ring.scheduled = True
            heappush(self._wakes, (0, throttle_key))
        self._tidy(throttle_key)

    def _tidy(self, throttle_key: str) -> None:
        ring = self._parked[throttle_key]
        if not ring and not ring.awake:
            del self._parked[throttle_key]

    def _schedule(self, throttle_key: str, ring: ParkedRing, now_ms: int) -> None:
        if ring.scheduled or not ring:
            return
        at_ms = self._buckets.ready_at(throttle_key, ring.awake + 1, now_ms)
        if at_ms is not None:
            ring.scheduled = True
            heappush(self._wakes, (at_ms, throttle_key))

    def wake(self, now_ms: int) -> None:
        """Wake as many parked lanes as their buckets have tokens, each bucket by its own deficit round robin."""
        wakes = self._wakes
        woken: list[str] = []
        while wakes and wakes[0][0] <= now_ms:
            throttle_key = heappop(wakes)[1]
            ring = self._parked.get(throttle_key)
            if ring is None:
                continue
            ring.scheduled = False
            woken.append(throttle_key)
            tokens = self._buckets.whole_tokens(throttle_key, now_ms)
            free = 0 if tokens is None else tokens - ring.awake
            while ring and (tokens is None or free > 0):
                self.visits += 1
                lane = ring.pop()
                lane.parked = None
                if tokens is None or self._at_limit(lane.key):
                    self.return_grant(lane)
                else:
                    free -= self._grant(lane, throttle_key, ring, free)
                self._enter_key(lane)
            self._tidy(throttle_key)
        for throttle_key in woken:
            ring = self._parked.get(throttle_key)
            if ring:
                self._schedule_later(throttle_key, ring, now_ms)

    def _grant(self, lane: Lane, throttle_key: str, ring: ParkedRing, free: int) -> int:
        """How many messages the lane may deliver before it goes back to the ring."""
        if lane.share < 1:
            lane.share += lane.key.weight
        count = min(lane.share, free, *lane.held.values())
        lane.share -= count
        lane.grant, lane.granted_by = count, throttle_key
        ring.awake += count
        return count

    def _schedule_later(self, throttle_key: str, ring: ParkedRing, now_ms: int) -> None:
        """Nothing more to wake now: the next look is when one token more than those given out is there."""
        if ring.scheduled:
            return
        at_ms = self._buckets.ready_at(throttle_key, ring.awake + 1, now_ms)
        if at_ms is not None and at_ms > now_ms:
            ring.scheduled = True
            heappush(self._wakes, (at_ms, throttle_key))
