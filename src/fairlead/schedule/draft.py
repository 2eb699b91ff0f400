"""A claim turn by turn, on copies of the keys, lanes, rings and buckets it touches.

In its turn a key gains `weight * quantum`, pays 1 for each message, and moves on when nothing is left of that
or it has nothing claimable. Between the lanes of a key, the one with the oldest head goes first. A lane short
of tokens is parked (`parking.py`); a key whose lanes are all parked leaves the ring with what is left of its
turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from fairlead.records.chunk import LaneName
from fairlead.schedule.lanes import MIN_TRIM, Key, Lane, ThrottledLane
from fairlead.schedule.parking import ParkingDraft
from fairlead.schedule.state import SchedulerState, enter, list_lane, lone_key
from fairlead.schedule.throttle import Bucket
from fairlead.schedule.views import LineView

#: Keys whose debt for a run is remembered while they have no message; past it the oldest debt is forgiven.
_MAX_DEBTORS = 10_000

#: Messages of a head's stream that may be delivered after it, in order, each with its lane. Called during
#: planning, with the head and the room for messages; it must not change the scheduler.
Followers: TypeAlias = Callable[[int, int], Sequence[tuple[LaneName, int]]]
#: Messages of a stream in order, each with its lane.
Run: TypeAlias = Sequence[tuple[LaneName, int]]


class Draft:
    __slots__ = (
        "_missing",
        "_now_ms",
        "_parking",
        "_place_of",
        "_state",
        "count",
        "debts",
        "forgives",
        "gone",
        "keys",
        "lanes",
        "left_over",
        "needs",
        "numbers",
        "ring",
    )

    def __init__(self, state: SchedulerState, now_ms: int) -> None:
        self._state = state
        self._now_ms = now_ms
        self._place_of = state.place_of
        #: Copies of the keys, and the keys to delete.
        self.keys: dict[str, Key] = {}
        self.gone: set[str] = set()
        #: Copies; None: the lane has no message left.
        self.lanes: dict[LaneName, ThrottledLane | None] = {}
        self.ring = LineView(state.ring)
        self._parking: ParkingDraft | None = None
        #: New debts; `forgives`: the former ones are forgiven.
        self.debts: dict[str, int] = {}
        self.forgives = False
        self.left_over = state.left_over
        self.numbers: list[int] = []
        self.needs: dict[LaneName, int] = {}
        #: Messages that leave their lanes, and how many of them are on disk.
        self.count = 0
        self._missing = 0

    # Copies

    @property
    def parking(self) -> ParkingDraft:
        if self._parking is None:
            self._parking = ParkingDraft(self._state.parking, self, self._now_ms)
        return self._parking

    @property
    def buckets(self) -> dict[str, Bucket]:
        """The buckets that give tokens, in their future state."""
        return {} if self._parking is None else self._parking.buckets.charged()

    def _key(self, name: str) -> Key:
        key = self.keys.get(name)
        if key is None:
            known = self._state.keys[name]
            key = self.keys[name] = lone_key(name, known) if isinstance(known, int) else known.copy()
        return key

    def find_throttled(self, name: LaneName) -> ThrottledLane | None:
        if name in self.lanes:
            return self.lanes[name]
        original = self._state.lanes.get(name)
        if original is None:
            return None
        lane = self.lanes[name] = original.copy()
        return lane

    def throttled(self, name: LaneName) -> ThrottledLane:
        lane = self.find_throttled(name)
        assert lane is not None, f"expected lane {name}"
        return lane

    def _lane(self, name: LaneName) -> Lane:
        return self._key(name[0]) if len(name) == 1 else self.throttled(name)

    # The claim

    def take(self, limit: int, up_to: int | None = None) -> None:
        """Plan `limit` messages more, or as many as there are.

        Given a place `up_to`, messages behind it stay: keys that have nothing else sit out, and join the ring
        again behind the others.
        """
        sitting_out: list[Key] = []
        self._take(limit, up_to, sitting_out)
        for key in sitting_out:
            self._join_ring(key)

    def _take(self, limit: int, up_to: int | None, sitting_out: list[Key]) -> None:
        most = self.count + limit
        hops = 0
        while True:
            if self._has_wakes():
                self.parking.wake()
            before = self.count
            self._serve_ring(most, up_to, sitting_out)
            if self.count >= most or not self._has_wakes():
                return
            # A lane used up its grant, or now waits for another bucket: tokens are left for it or for others.
            hops = 0 if self.count > before else hops + 1
            if hops > len(self._state.lanes) + len(self._state.keys):
                return

    def take_runs(self, limit: int, followers: Followers, up_to: int | None = None, run: Run = ()) -> None:
        """Plan `limit` messages: after each head, the followers that have their tokens. A run may be longer
        than the rest of its key's turn; the key then sits out turns until the run is paid for.
        """
        left = limit - self._follow(run, limit)
        while left > 0:
            before = self.count, self._missing
            self.take(1, up_to)
            if self.count == before[0]:
                return
            left -= 1
            if self._missing > before[1]:
                continue
            left -= self._follow(followers(self.numbers[-1], left), left)

    def _follow(self, run: Run, most: int) -> int:
        """Plan the messages of a run that have their tokens; returns how many."""
        for count, (lane, number) in enumerate(run[:most]):
            if not self._charge(lane):
                return count
            self.numbers.append(number)
        return min(len(run), most)

    def _has_wakes(self) -> bool:
        parking = self._parking
        return self._state.parking.has_wakes(self._now_ms) if parking is None else parking.has_wakes()

    def _serve_ring(self, most: int, up_to: int | None, sitting_out: list[Key]) -> None:
        ring = self.ring
        keys = self.keys
        quantum = self._state.quantum
        in_debt = 0
        if not len(ring):
            # No other key wants anything, so there is no one to owe to.
            self.forgives = True
            self.debts.clear()
        while self.count < most:
            name = ring.find_first()
            if name is None:
                return
            key = keys.get(name) or self._key(name)
            if up_to is not None and self._begins_after(key, up_to):
                ring.popleft()
                key.in_ring = False
                sitting_out.append(key)
                continue
            if not key.in_turn:
                key.in_turn = True
                key.deficit += key.weight * quantum
            # The next message of the same key may be after `up_to`.
            left = most - self.count if up_to is None else 1
            served = self._serve(key, key.deficit if key.deficit < left else left)
            key.deficit -= served
            if not key.claimable:
                self._leave_ring(key)
            elif self._is_at_limit(key):
                ring.popleft()
                key.in_ring = False
                self._return_grants(key)
            elif key.deficit < 1:
                key.in_turn = False
                ring.append(ring.popleft())
                in_debt = 0 if served else in_debt + 1
                if in_debt and in_debt >= len(ring):
                    self._skip_turns()
                    in_debt = 0

    def _begins_after(self, key: Key, place: int) -> bool:
        """Whether everything that the key could give now is after that place, as far as is known."""
        if key.only is not None:
            lane: Lane | None = self._lane(key.only)
            assert lane is not None
            return self._is_behind(lane, lane.head(self._place_of), place)
        while key.heap:
            head, name = key.heap.first()
            lane = key if len(name) == 1 else self.find_throttled(name)
            if lane is not None and lane.listed == head:
                return self._is_behind(lane, head, place)
            key.heap.pop()
        return False

    def _is_behind(self, lane: Lane, head: int, place: int) -> bool:
        if head <= place and lane.is_dry and lane.cold_from:
            # The place of a message on disk is known once it is read.
            self.needs[lane.name] = max(1, self.needs.get(lane.name, 0))
        return head > place

    def _leave_ring(self, key: Key) -> None:
        self.ring.popleft()
        key.in_ring = False
        key.in_turn = key.deficit >= 1
        if not key.lane_count:
            self.left_over = key.name[0], key.deficit
            self._forget(key)

    def _skip_turns(self) -> None:
        """Every key pays for a run: do the turns in which all keys would only pay at once."""
        quantum = self._state.quantum
        keys = [self._key(name) for name in self.ring.all()]
        turns = min(-key.deficit // (key.weight * quantum) for key in keys)
        for key in keys:
            key.deficit += turns * key.weight * quantum

    def _is_at_limit(self, key: Key) -> bool:
        return 0 < self._state.max_unsettled_per_key <= key.unsettled

    def _return_grants(self, key: Key) -> None:
        """The key is at its limit of unsettled messages, so others may have the tokens for which its lanes
        were woken.
        """
        names = [key.only] if key.heap is None else [name for _, name in key.heap.all()]
        for name in names:
            lane = None if name is None else self.find_throttled(name)
            if lane is not None:
                self.parking.return_grant(lane)

    # A turn

    def _serve(self, key: Key, allowed: int) -> int:
        """Returns how many of the allowed messages the key gives, those on disk included."""
        limit = self._state.max_unsettled_per_key
        if limit:
            allowed = min(allowed, limit - key.unsettled)
        if allowed <= 0 or not key.claimable:
            return 0
        only = key.only
        if only is None:
            served = self._serve_lanes(key, allowed)
        elif len(only) == 1:
            served = self._serve_plain(key, allowed)
        else:
            served = self._serve_throttled(self.throttled(only), key, allowed)
        self.count += served
        if limit:
            key.unsettled += served
        return served

    def _serve_plain(self, key: Key, allowed: int) -> int:
        taken = key.take(allowed, self._place_of)
        self.numbers += taken
        if key.at == len(key.numbers):
            if key.is_empty:
                self.drop(key.name)
            elif len(taken) < allowed:
                self._need(key, allowed - len(taken))
                return allowed
            else:
                self._look_behind(key)
        return len(taken)

    def _serve_throttled(self, lane: ThrottledLane, key: Key, allowed: int) -> int:
        """The only claimable lane of its key."""
        served = 0
        while served < allowed and key.only == lane.name:
            if lane.is_dry and lane.cold_from:
                self._need(lane, allowed - served)
                return allowed
            if not self._serve_one(lane):
                break
            served += 1
        return served

    def _serve_lanes(self, key: Key, allowed: int) -> int:
        """The lane with the oldest head gives one message at a time."""
        served = 0
        while served < allowed and key.heap:
            place, name = key.heap.first()
            lane = key if len(name) == 1 else self.find_throttled(name)
            if lane is None or lane.listed != place:
                key.heap.pop()
            elif lane.is_dry and lane.cold_from:
                # Its true head may be after those of other lanes: nothing more is known about this turn.
                self._need(lane, allowed - served)
                return allowed
            elif self._serve_one(lane):
                served += 1
                if lane.listed == place and key.heap is not None:
                    key.heap.pop()
                    list_lane(lane, key, self._place_of)
        return served

    def _serve_one(self, lane: Lane) -> bool:
        """Deliver the head of the lane if its tokens are there, otherwise park the lane."""
        if not isinstance(lane, ThrottledLane):
            self.numbers += lane.take(1, self._place_of)
            if lane.is_empty:
                self.drop(lane.name)
            else:
                self._look_behind(lane)
            return True
        parking = self.parking
        lacking = parking.lacking(lane)
        if lacking is not None:
            parking.wait_for(lane, lacking)
            return False
        self.numbers += lane.take(1, self._place_of)
        if lane.granted_by is not None:
            parking.use_grants(lane)
        if lane.is_empty:
            self.drop(lane.name)
        elif lane.granted_by is not None and not lane.grant:
            parking.turn_over(lane)
            self._look_behind(lane)
        else:
            self._look_behind(lane)
        return True

    def _need(self, lane: Lane, count: int) -> None:
        """Plan as if the messages were in memory, to find out what other lanes need."""
        self.needs[lane.name] = self.needs.get(lane.name, 0) + count
        self._missing += count

    def _look_behind(self, lane: Lane) -> None:
        """Ask for one more message, because what a lane leaves, a turn or a grant, depends on whether it has
        a next message.
        """
        if lane.ran_dry:
            self.needs.setdefault(lane.name, 1)

    # Runs of streams

    def _charge(self, name: LaneName) -> bool:
        """Charge a message that is delivered after another of its stream: it pays its tokens and its key's
        deficit, or stays.
        """
        is_known = name[0] in self._state.keys and name[0] not in self.gone
        key = self._key(name[0]) if is_known else None
        if key is not None and self._is_at_limit(key):
            return False
        if len(name) > 1 and self.parking.buckets.take(name[1:]) is not None:
            return False
        if key is not None and self._state.max_unsettled_per_key:
            key.unsettled += 1
        if key is not None and (key.lane_count or key.in_ring):
            key.deficit -= 1
        else:
            self._owe(name[0])
        return True

    def _owe(self, name: str) -> None:
        """The run was all that the key had: the rest of its turn pays first, and the remainder is due when
        the key returns.
        """
        last, credit = self.left_over
        if last == name and credit > 0:
            self.left_over = name, credit - 1
            return
        former = 0 if self.forgives else self._state.debts.get(name, 0)
        self.debts[name] = self.debts.get(name, former) + 1

    # Keys and lanes

    def weight(self, lane: ThrottledLane) -> int:
        return self._key(lane.name[0]).weight

    def is_at_limit(self, lane: ThrottledLane) -> bool:
        return self._is_at_limit(self._key(lane.name[0]))

    def enter(self, lane: ThrottledLane) -> None:
        """The lane is claimable again."""
        key = self._key(lane.name[0])
        only = None if key.only is None else self._lane(key.only)
        enter(lane, key, only, self._place_of)
        self._join_ring(key)

    def _join_ring(self, key: Key) -> None:
        if key.claimable and not key.in_ring and not self._is_at_limit(key):
            key.in_ring = True
            self.ring.append(key.name[0])

    def leave(self, lane: Lane) -> None:
        """The lane is no longer claimable."""
        key = self._key(lane.name[0])
        key.claimable -= 1
        lane.listed = None
        if not key.claimable:
            key.only = None
            key.heap = None

    def drop(self, name: LaneName) -> None:
        """The lane has no message left; a parked one has left its ring. Its key leaves the ring at its next
        turn.
        """
        key = self._key(name[0])
        key.lane_count -= 1
        if len(name) > 1:
            self._drop_throttled(name)
        else:
            key.active = False
            self.leave(key)
        if key.active and key.lane_count == 1:
            key.only, key.heap, key.listed = key.name, None, None
        if not key.lane_count and not key.in_ring:
            self._forget(key)

    def _drop_throttled(self, name: LaneName) -> None:
        lane = self.throttled(name)
        self.lanes[name] = None
        self.parking.return_grant(lane)
        if lane.parked is None:
            self.leave(lane)
        else:
            self.parking.tidy(lane.parked)

    def _forget(self, key: Key) -> None:
        key.deficit = 0
        key.in_turn = False
        if key.unsettled <= 0:
            self.gone.add(key.name[0])

    # Carrying it out

    def apply(self, state: SchedulerState) -> None:
        """Replace the originals by the copies."""
        for name, key in self.keys.items():
            state.inactive -= not state.is_active(name)
            if name in self.gone:
                del state.keys[name]
                state.special.discard(name)
            else:
                _trim(key)
                if key.heap is not None:
                    key.heap = key.heap.settle()
                state.inactive += not key.active
                state.keys[name] = key
                state.note_special(key)
        self._apply_lanes(state)
        if self._parking is not None:
            state.parking.apply(self._parking)
        state.ring = self.ring.settle()
        self._apply_debts(state)
        state.held -= self.count

    def _apply_lanes(self, state: SchedulerState) -> None:
        for name, lane in self.lanes.items():
            if lane is None:
                del state.lanes[name]
                state.parking.holding.pop(name, None)
            else:
                _trim(lane)
                state.lanes[name] = lane
                state.parking.note_holding(lane)

    def _apply_debts(self, state: SchedulerState) -> None:
        state.left_over = self.left_over
        if self.forgives:
            state.debts.clear()
        if self.debts:
            state.debts.update(self.debts)
        while len(state.debts) > _MAX_DEBTORS:
            del state.debts[next(iter(state.debts))]


def _trim(lane: Lane) -> None:
    if lane.at > MIN_TRIM or lane.back_at:
        lane.trim()
