"""Who is next: deficit round robin between keys, oldest head first between the lanes of a key, tokens before
delivery.

One `QueueScheduler` per queue; a mutable object under the rules of this folder: time comes in, rows come in
through the `read_rows` it is given, and a decision (the rows to lease) comes out. Its cost per message
depends neither on the number of keys or lanes nor on the backlog:

* The ring holds only keys that have something claimable, as far as is known. Keys that run dry leave it when visited.
* A lane keeps a short window of rows; the rest of its backlog is read when the window is used up. A window is always a
  gapless stretch: `more` says that rows with a greater place than the last one read may exist on disk.
* A lane short of tokens is parked (`parking.py`), out of its key; a key whose lanes are all parked leaves the ring with
  what is left of its turn, and gains nothing while it waits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import islice

from fairlead.errors import TooManyLanes
from tests.oracle.lanes import (
    FIRST_READ_ROWS,
    MOST_SPARE_LANES,
    READ_AHEAD_ROWS,
    Key,
    Lane,
    Memory,
    ReadRows,
)
from tests.oracle.parking import Parking
from tests.oracle.rows import lane_key, lane_throttle_keys, row_place, row_weight
from tests.oracle.throttle import Buckets

#: Keys whose debt for a run is remembered while they have nothing ready; past it the oldest debt is forgiven.
_MAX_DEBTORS = 10_000
#: Keys whose deliveries are counted; past it all counts begin anew.
_MAX_COUNTED = 10_000


class QueueScheduler:
    def __init__(
        self,
        read_rows: ReadRows,
        buckets: Buckets,
        memory: Memory,
        *,
        quantum: int = 1,
        max_unsettled_per_key: int = 0,
        weight_of: Callable[[str], int | None] = lambda key: None,
    ) -> None:
        self.quantum = quantum
        self.max_unsettled_per_key = max_unsettled_per_key
        self._visits = 0
        self._read_rows = read_rows
        self._buckets = buckets
        self._memory = memory
        self._weight_of = weight_of
        self._keys: dict[str, Key] = {}
        #: What keys without a lane owe for the runs of their streams, and what the last of them had left of
        #: its turn.
        self._debts: dict[str, int] = {}
        self._delivered: dict[str, int] = {}
        self._left_over = ("", 0)
        self._lanes: dict[bytes, Lane] = {}
        self._ring: deque[Key] = deque()
        self._parking = Parking(buckets, enter=self._enter, leave=self._leave, at_limit=self._at_limit)
        #: Lanes, each with its key, that had one message and gave it: used again, since with many keys most
        #: do just that.
        self._spare: list[Lane] = []

    # What happens to ready messages

    def load(self, lane_id: bytes, first: bytes, last: bytes) -> None:
        """A lane found on disk at open: only its first row is held, its last one sets the weight."""
        lane = self._lane(lane_id, last)
        lane.rows.append(first)
        self._memory.rows += 1
        lane.last = row_place(first)
        lane.more = first != last
        self._enter(lane)

    def add_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """`add` for a whole batch, with its usual case in line: a row behind the others of a lane that is
        held in full.
        """
        lanes, memory, number = self._lanes, self._memory, int.from_bytes
        for lane_id, row in rows:
            lane = lanes.get(lane_id)
            if lane is None and self._spare and self._reopen(lane_id, row):
                continue
            if (
                lane is None
                or lane.more
                or memory.rows >= memory.row_limit
                or number(row[24:26], "big") != lane.key.weight
            ):
                self.add(lane_id, row)
                continue
            place = number(row[:8], "big")
            if place <= lane.last:
                self.add(lane_id, row)
            else:
                lane.rows.append(row)
                memory.rows += 1
                lane.last = place

    def _reopen(self, lane_id: bytes, row: bytes) -> bool:
        """Make a lane and its key out of spare ones; only for a key that has no other lane and no bucket to
        wait for.
        """
        key_bytes = int.from_bytes(lane_id[:2], "big")
        name = lane_id[2 : 2 + key_bytes].decode()
        if name in self._keys or len(lane_id) != key_bytes + 4:
            return False
        lane = self._spare.pop()
        key = lane.key
        key.name, key.weight = name, self._weight_of(name) or int.from_bytes(row[24:26], "big")
        key.deficit, key.in_turn, key.in_ring = -self._debts.pop(name, 0), False, True
        lane.id, lane.last = lane_id, int.from_bytes(row[:8], "big")
        lane.rows.append(row)
        self._keys[name] = key
        self._lanes[lane_id] = lane
        self._memory.lanes += 1
        self._memory.rows += 1
        self._ring.append(key)
        return True

    def _take_only(self, lane: Lane, picked: list[tuple[bytes, bytes]]) -> None:
        """The only message of the only lane of the key whose turn it is; nothing of the key is left."""
        picked.append((lane.id, lane.rows.pop()))
        self._visits += 1
        self._memory.rows -= 1
        self._memory.lanes -= 1
        key = lane.key
        self._delivered[key.name] = self._delivered.get(key.name, 0) + 1
        self._left_over = key.name, key.deficit - 1 + (0 if key.in_turn else key.weight * self.quantum)
        del self._lanes[lane.id], self._keys[key.name]
        self._ring.popleft()
        lane.at = 0
        lane.ahead = FIRST_READ_ROWS
        if len(self._spare) < MOST_SPARE_LANES:
            self._spare.append(lane)

    def add(self, lane_id: bytes, row: bytes) -> None:
        """A message took a new place at the tail of its lane."""
        lane = self._lanes.get(lane_id)
        if lane is None:
            lane = self._lane(lane_id, row)
            fresh = True
        else:
            fresh = False
            weight = int.from_bytes(row[24:26], "big")
            if weight != lane.key.weight:
                lane.key.weight = self._weight_of(lane.key.name) or weight
        if not lane.more:
            place = int.from_bytes(row[:8], "big")
            if place <= lane.last:
                # Another row of the same commit came first: one of a stream, or it made this lane read ahead
                # and find this one.
                self.give_back(lane_id, row)
            elif self._memory.rows < self._memory.row_limit or not lane.rows:
                lane.rows.append(row)
                self._memory.rows += 1
                lane.last = place
            else:
                lane.more = True
        if fresh:
            self._enter(lane)

    def give_back(self, lane_id: bytes, row: bytes) -> None:
        """A released message returns to its old place."""
        lane = self._lanes.get(lane_id)
        place = row_place(row)
        if lane is None:
            lane = self._lane(lane_id, row)
            lane.rows.append(row)
            self._memory.rows += 1
            lane.last = place
            self._enter(lane)
        elif lane.at < len(lane.rows):
            if place <= lane.last or not lane.more:
                at = bisect_left(lane.rows, row, lo=lane.at)
                if at < len(lane.rows) and lane.rows[at] == row:
                    return  # read ahead already, on behalf of another row of the same commit
                lane.rows.insert(at, row)
                self._memory.rows += 1
                lane.last = max(lane.last, place)
                self._reorder(lane)
        else:
            # The window is used up and the next rows are on disk: read again from just before this one.
            lane.last = min(lane.last, place - 1)
            lane.more = True

    def remove(self, lane_id: bytes, row: bytes) -> None:
        """A ready message left other than by `take` (dropped, expired, buried, redriven)."""
        lane = self._lanes.get(lane_id)
        if lane is None:
            return
        at = bisect_left(lane.rows, row, lo=lane.at)
        if at == len(lane.rows) or lane.rows[at] != row:
            return
        del lane.rows[at]
        self._memory.rows -= 1
        if lane.at >= len(lane.rows) and not lane.more:
            self._drop(lane)

    def settled(self, key: str) -> None:
        """One unsettled message fewer for a key (only called for queues with `max_unsettled_per_key`)."""
        entry = self._keys.get(key)
        if entry is None:
            return
        entry.unsettled -= 1
        if entry.lane_count:
            self._join(entry)
        elif entry.unsettled <= 0 and not entry.in_ring:
            # One that is still in the ring is forgotten there: a second entry beside it would count for
            # itself.
            del self._keys[key]

    def note_unsettled(self, key: str) -> None:
        """A lease found at open."""
        self._key(key, 1).unsettled += 1

    def reweigh(self, key: str, weight: int) -> None:
        """The runtime configuration set a key's weight; it counts from the key's next turn."""
        entry = self._keys.get(key)
        if entry is not None:
            entry.weight = weight

    def has_room_for(self, lanes: int) -> bool:
        """Whether so many lanes may be opened even if all of them are new: the quick question before
        `check_lanes`.
        """
        memory = self._memory
        return (
            memory.lanes + lanes <= memory.lane_limit and len(self._lanes) + lanes <= memory.lanes_per_queue
        )

    def check_lanes(self, lane_ids: Iterable[bytes]) -> None:
        """Refuse new messages that would open too many lanes. Messages that come back are never refused."""
        memory = self._memory
        new = sum(1 for lane_id in set(lane_ids) if lane_id not in self._lanes)
        if memory.lanes + new > memory.lane_limit:
            raise TooManyLanes(memory.lane_limit)
        if new and len(self._lanes) + new > memory.lanes_per_queue:
            raise TooManyLanes(memory.lanes_per_queue)

    # The decision

    def take(self, limit: int, now_ms: int, up_to: int | None = None) -> list[tuple[bytes, bytes]]:
        """The next (lane, row) pairs to deliver, at most `limit`; they have left the scheduler and paid their
        tokens.

        Given a place `up_to`, what stands behind it stays: keys that have nothing else sit out, and join
        again behind the others.
        """
        if up_to is None:
            return self._take(limit, now_ms)
        sitting_out: list[Key] = []
        picked = self._take(limit, now_ms, up_to, sitting_out)
        for key in sitting_out:
            self._join(key)
        return picked

    def _take(
        self, limit: int, now_ms: int, up_to: int | None = None, sitting_out: list[Key] | None = None
    ) -> list[tuple[bytes, bytes]]:
        picked: list[tuple[bytes, bytes]] = []
        parking = self._parking
        if len(self._delivered) > _MAX_COUNTED:
            self._delivered.clear()
        hops = 0
        while True:
            parking.wake(now_ms)
            before = len(picked)
            self._serve_ring(limit - before, now_ms, picked, up_to, sitting_out)
            if len(picked) >= limit or not parking.has_wakes(now_ms):
                return picked
            # A lane used up its grant, or went on to wait for another bucket: tokens are left for it or for
            # others.
            hops = 0 if len(picked) > before else hops + 1
            if hops > len(self._lanes):
                return picked

    def _serve_ring(
        self,
        left: int,
        now_ms: int,
        picked: list[tuple[bytes, bytes]],
        up_to: int | None = None,
        sitting_out: list[Key] | None = None,
    ) -> None:
        """Turn by turn, until so many are picked or no key has anything claimable."""
        ring = self._ring
        quantum = self.quantum
        per_key = self.max_unsettled_per_key
        in_debt = 0
        if not ring:
            # Nobody else wants anything: there is nobody to owe to.
            self._debts.clear()
        while ring and left > 0:
            key = ring[0]
            if up_to is not None and sitting_out is not None and self._begins_after(key, up_to):
                ring.popleft()
                key.in_ring = False
                sitting_out.append(key)
                continue
            lane = key.lane
            if (
                lane is not None
                and key.lane_count == 1 == len(lane.rows)
                and not (lane.more or per_key or lane.throttle_keys)
                and (key.deficit > 0 or (key.deficit == 0 and not key.in_turn))
            ):
                self._take_only(lane, picked)
                left -= 1
                continue
            if not key.in_turn:
                key.deficit += key.weight * quantum
                key.in_turn = True
            allowed = key.deficit if key.deficit < left else left
            if per_key and key.unsettled + allowed > per_key:
                allowed = max(0, per_key - key.unsettled)
            if up_to is not None and allowed > 1:
                # The next of the same key may stand behind it.
                allowed = 1
            served = self._serve(key, allowed, now_ms, picked) if allowed > 0 else 0
            left -= served
            key.deficit -= served
            self._delivered[key.name] = self._delivered.get(key.name, 0) + served
            if per_key:
                key.unsettled += served
            if not key.claimable:
                ring.popleft()
                key.in_ring = False
                key.in_turn = key.deficit >= 1
                if not key.lane_count:
                    self._left_over = key.name, key.deficit
                    self._forget(key)
            elif per_key and key.unsettled >= per_key:
                ring.popleft()
                key.in_ring = False
                self._parking.return_grants(key)
            elif key.deficit < 1:
                key.in_turn = False
                ring.rotate(-1)
                in_debt = 0 if served else in_debt + 1
                if in_debt >= len(ring):
                    self._skip_turns()
                    in_debt = 0

    def _begins_after(self, key: Key, place: int) -> bool:
        """Does all that the key could give now stand behind that place?"""
        if key.lane is not None:
            head = self._head(key.lane)
            return len(head) > 1 and row_place(head) > place
        while key.heap:
            entry = key.heap[0]
            lane = entry[2]
            if entry is not lane.entry:
                heappop(key.heap)
            elif self._head(lane) != entry[0] and lane.rows:
                heappop(key.heap)
                self._push(lane)
            else:
                return len(entry[0]) > 1 and row_place(entry[0]) > place
        return False

    def _skip_turns(self) -> None:
        """Every key pays for a run it had: do at once the turns in which all of them would only pay."""
        turns = min(-key.deficit // (key.weight * self.quantum) for key in self._ring)
        for key in self._ring:
            key.deficit += turns * key.weight * self.quantum

    def charge(self, key: str, throttle_keys: tuple[str, ...], now_ms: int) -> bool:
        """A message goes out behind another of its stream: it pays its tokens and its key's deficit, or does
        not go.
        """
        entry = self._key(key, 1)
        if self.max_unsettled_per_key and entry.unsettled >= self.max_unsettled_per_key:
            return False
        if throttle_keys and self._buckets.take(throttle_keys, now_ms) is not None:
            return False
        if self.max_unsettled_per_key:
            entry.unsettled += 1
        self._delivered[key] = self._delivered.get(key, 0) + 1
        # May go below zero: the key pays for its long run by turns it then sits out.
        if entry.lane_count or entry.in_ring:
            entry.deficit -= 1
        else:
            self._owe(key)
            if not entry.unsettled:
                del self._keys[key]
        return True

    def _owe(self, key: str) -> None:
        """The run was all the key had: what is left of its turn pays first, the rest is due when it comes
        back.
        """
        name, credit = self._left_over
        if name == key and credit > 0:
            self._left_over = name, credit - 1
            return
        self._debts[key] = self._debts.get(key, 0) + 1
        if len(self._debts) > _MAX_DEBTORS:
            del self._debts[next(iter(self._debts))]

    def bucket_changed(self, throttle_key: str, now_ms: int) -> None:
        self._parking.bucket_changed(throttle_key, now_ms)

    def next_wake_ms(self) -> int | None:
        """When a parked lane may get a token (monotonic); None when no lane waits for one."""
        return self._parking.next_wake_ms()

    # For people

    @property
    def visits(self) -> int:
        """Lanes looked at since the start; a test holds it against the number of tokens."""
        return self._visits + self._parking.visits

    def parked(self, limit: int = 5) -> list[tuple[str, int]]:
        """(throttle key, lanes that wait for it), a few of them."""
        return self._parking.shown(limit)

    @property
    def parked_lanes(self) -> int:
        return self._parking.lanes

    @property
    def holds(self) -> int:
        """How often a lane began to wait for tokens."""
        return self._parking.holds

    def heads(self, most: int) -> list[bytes]:
        """The next row of every lane; empty when there are more lanes than `most`, because each may cost a
        read.
        """
        if len(self._lanes) > most:
            return []
        return [lane.rows[lane.at] for lane in self._lanes.values() if self._head(lane) and lane.rows]

    def delivered(self, key: str) -> int:
        """How often the key was served, since the queue was loaded or counts began anew; for looking only."""
        return self._delivered.get(key, 0)

    def keys(self, limit: int) -> list[Key]:
        """The first so many."""
        return list(islice(self._keys.values(), limit))

    def head(self, lane_id: bytes) -> bytes | None:
        """The lane's next row, without taking it."""
        lane = self._lanes.get(lane_id)
        if lane is None:
            return None
        self._head(lane)
        return lane.rows[lane.at] if lane.rows else None

    def find_lane(self, lane_id: bytes) -> Lane | None:
        return self._lanes.get(lane_id)

    def keys_ahead(self, key: Key, limit: int) -> int | None:
        """How many keys have their turn before this one, counted up to `limit`; None when it is not in the
        ring.
        """
        if not key.in_ring:
            return None
        for ahead, entry in enumerate(islice(self._ring, limit)):
            if entry is key:
                return ahead
        return limit

    @property
    def active_keys(self) -> int:
        return len(self._ring)

    def discard(self) -> None:
        """The queue goes or is loaded anew: give back what it held of the shared memory."""
        self._memory.lanes -= len(self._lanes)
        self._memory.rows -= sum(len(lane.rows) - lane.at for lane in self._lanes.values())

    # Keys and lanes

    def _key(self, name: str, weight: int) -> Key:
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = Key(name, self._weight_of(name) or weight)
        return key

    def _lane(self, lane_id: bytes, row: bytes) -> Lane:
        name, weight = lane_key(lane_id), row_weight(row)
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = Key(name, self._weight_of(name) or weight)
        elif key.weight != weight:
            key.weight = self._weight_of(name) or weight
        lane = self._lanes[lane_id] = Lane(lane_id, key, lane_throttle_keys(lane_id))
        if self._debts and not key.lane_count:
            key.deficit -= self._debts.pop(name, 0)
        key.lane_count += 1
        self._memory.lanes += 1
        return lane

    def _enter(self, lane: Lane) -> None:
        """The lane is claimable: it joins its key, and the key the end of the ring."""
        key = lane.key
        key.claimable += 1
        if key.heap is not None:
            self._push(lane)
        elif key.lane is None:
            key.lane = lane
        else:
            key.heap = []
            self._push(key.lane)
            self._push(lane)
            key.lane = None
        self._join(key)

    def _leave(self, lane: Lane) -> None:
        """The lane is no longer claimable."""
        key = lane.key
        key.claimable -= 1
        lane.entry = None
        if key.lane is lane:
            key.lane = None
        elif not key.claimable:
            key.heap = None

    def _push(self, lane: Lane) -> None:
        heap = lane.key.heap
        assert heap is not None
        lane.entry = (self._head(lane), lane.id, lane)
        heappush(heap, lane.entry)

    def _join(self, key: Key) -> None:
        if key.in_ring or not key.claimable:
            return
        if self.max_unsettled_per_key and key.unsettled >= self.max_unsettled_per_key:
            return
        key.in_ring = True
        self._ring.append(key)

    def _forget(self, key: Key) -> None:
        key.deficit = 0
        key.in_turn = False
        if key.unsettled <= 0:
            self._keys.pop(key.name, None)

    def _drop(self, lane: Lane) -> None:
        """The lane has no ready message left. Its key leaves the ring when it is visited next."""
        del self._lanes[lane.id]
        self._memory.lanes -= 1
        key = lane.key
        key.lane_count -= 1
        self._parking.return_grant(lane)
        if lane.parked is None:
            self._leave(lane)
        else:
            self._parking.remove(lane)
        if not key.lane_count and not key.in_ring:
            self._forget(key)

    def _head(self, lane: Lane) -> bytes:
        """The head row; its first bytes are the place, so heads sort by age."""
        if lane.at >= len(lane.rows):
            self._fill(lane)
        return lane.rows[lane.at] if lane.rows else b"\xff"

    def _fill(self, lane: Lane) -> None:
        rows = lane.rows
        rows.clear()
        lane.at = 0
        if lane.more:
            # Each lane has its part of the shared room, and begins with little: most are asked for one row
            # and never again.
            limit = max(1, min(lane.ahead, self._memory.row_limit // max(1, self._memory.lanes)))
            lane.ahead = min(READ_AHEAD_ROWS, 2 * lane.ahead)
            rows.extend(self._read_rows(lane.id, lane.last, limit))
            self._memory.rows += len(rows)
            lane.more = len(rows) == limit
            if rows:
                lane.last = row_place(rows[-1])

    def _reorder(self, lane: Lane) -> None:
        """A row came in before the head: the heap entry of its lane is stale."""
        if lane.entry is not None:
            self._push(lane)

    # Serving

    def _serve(self, key: Key, allowed: int, now_ms: int, picked: list[tuple[bytes, bytes]]) -> int:
        self._visits += 1
        lane = key.lane
        if lane is None:
            return self._serve_lanes(key, allowed, now_ms, picked)
        if lane.throttle_keys:
            served = 0
            while served < allowed and key.lane is lane and self._serve_one(lane, now_ms, picked):
                served += 1
            return served
        served = 0
        while served < allowed:
            rows, at = lane.rows, lane.at
            count = min(allowed - served, len(rows) - at)
            if not count:
                if lane.more:
                    self._fill(lane)
                    if lane.rows:
                        continue
                break
            lane_id = lane.id
            if count == 1:
                picked.append((lane_id, rows[at]))
            else:
                picked.extend([(lane_id, row) for row in rows[at : at + count]])
            served += count
            self._memory.rows -= count
            at += count
            if at == len(rows):
                rows.clear()
                at = 0
            elif at > 1024:
                del rows[:at]
                at = 0
            lane.at = at
        if not lane.rows and not lane.more:
            self._drop(lane)
        return served

    def _serve_lanes(self, key: Key, allowed: int, now_ms: int, picked: list[tuple[bytes, bytes]]) -> int:
        """Several lanes: the one with the oldest head gives one message at a time."""
        served = 0
        while served < allowed and key.heap:
            entry = key.heap[0]
            lane = entry[2]
            if entry is not lane.entry:
                heappop(key.heap)
            elif self._head(lane) != entry[0] and lane.rows:
                heappop(key.heap)
                self._push(lane)
            elif self._serve_one(lane, now_ms, picked):
                served += 1
                if lane.entry is entry:
                    heappop(key.heap)
                    self._push(lane)
        return served

    def _serve_one(self, lane: Lane, now_ms: int, picked: list[tuple[bytes, bytes]]) -> bool:
        """Deliver the head of a lane if its tokens are there, else park the lane. False: the lane gave
        nothing.
        """
        self._head(lane)
        if not lane.rows:
            self._drop(lane)
            return False
        if lane.throttle_keys:
            lacking = self._parking.lacking(lane, now_ms)
            if lacking is not None:
                self._parking.wait_for(lane, lacking, now_ms)
                return False
        picked.append((lane.id, lane.rows[lane.at]))
        lane.at += 1
        self._memory.rows -= 1
        if lane.granted_by is not None:
            self._parking.use_grants(lane, now_ms)
        if lane.at >= len(lane.rows):
            self._fill(lane)
        if not lane.rows:
            self._drop(lane)
        elif lane.granted_by is not None and not lane.grant:
            self._parking.turn_over(lane, now_ms)
        return True

    def _at_limit(self, key: Key) -> bool:
        """No grant for it: it would keep the tokens from others until one of its messages is settled."""
        return bool(self.max_unsettled_per_key) and key.unsettled >= self.max_unsettled_per_key
