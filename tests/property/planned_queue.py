"""A queue made of the scheduler that plans, with messages on disk: the same questions as `tests/oracle`
answers.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from fairlead.records.chunk import LaneName
from fairlead.schedule.draft import Followers
from fairlead.schedule.drr import Scheduler
from fairlead.schedule.lanes import Lane
from fairlead.schedule.plan import ClaimPlan
from fairlead.schedule.state import SchedulerState
from fairlead.schedule.throttle import Bucket, Buckets
from fairlead.schedule.views import Heap, Line
from tests.oracle.fair_queue import Arrival, FairQueue
from tests.oracle.rows import lane_key, pack_lane, pack_row, row_id


class Settings(NamedTuple):
    quantum: int = 1
    max_unsettled_per_key: int = 0
    #: How likely a message goes to disk, and how many are read from there at a time.
    cold: float = 0.0
    window: int = 1


class PlannedQueue:
    def __init__(self, settings: Settings, chance: random.Random) -> None:
        self.settings = settings
        self.buckets = Buckets()
        self.scheduler = Scheduler(
            lambda number: self.places[number],
            self.buckets,
            quantum=settings.quantum,
            max_unsettled_per_key=settings.max_unsettled_per_key,
        )
        self.places: dict[int, int] = {}
        self.messages: dict[int, tuple[LaneName, int]] = {}
        self.disk: dict[LaneName, list[int]] = {}
        self._chance = chance
        self._last_place = 0

    def set_bucket(self, throttle_key: str, rate: float, burst: float, now_ms: int) -> None:
        bucket = self.buckets.get(throttle_key) or Bucket(rate, burst, burst, now_ms)
        self.buckets.set(throttle_key, bucket.configured(rate, burst, now_ms))
        self.scheduler.bucket_changed(throttle_key, now_ms)

    def add(self, number: int, lane: LaneName, weight: int) -> None:
        self._last_place += 1
        self.places[number] = self._last_place
        self.messages[number] = lane, weight
        if self.scheduler.cold_from(lane):
            self.scheduler.join(lane, weight)
            self.disk[lane].append(number)
        elif self._chance.random() < self.settings.cold:
            self.scheduler.add_cold(lane, weight, self._last_place)
            self.disk[lane] = [number]
        else:
            self.scheduler.add(lane, weight, [number])

    def plan(
        self, limit: int, now_ms: int, followers: Followers | None = None, up_to: int | None = None
    ) -> ClaimPlan:
        """Checks on the way that planning changes nothing."""
        while True:
            before = snapshot(self.scheduler)
            plan = self.scheduler.plan(limit, now_ms, followers=followers, up_to=up_to)
            assert snapshot(self.scheduler) == before
            again = self.scheduler.plan(limit, now_ms, followers=followers, up_to=up_to)
            assert content(again) == content(plan)
            assert snapshot(self.scheduler) == before
            if not plan.needs:
                return plan
            for lane, count in plan.needs.items():
                assert count > 0
                self._promote(lane)

    def take(
        self, limit: int, now_ms: int, followers: Followers | None = None, up_to: int | None = None
    ) -> list[int]:
        plan = self.plan(limit, now_ms, followers, up_to)
        held = self.scheduler.held
        self.scheduler.apply(plan)
        assert self.scheduler.held == held - sum(number in self.messages for number in plan.numbers)
        for throttle_key, bucket in plan.buckets.items():
            assert self.buckets.get(throttle_key) == bucket
        return list(plan.numbers)

    def complete(self, number: int) -> None:
        lane, _ = self.messages.pop(number)
        self._settled(lane)

    def release(self, number: int) -> None:
        lane, weight = self.messages[number]
        self.scheduler.insert(lane, weight, number)
        self._settled(lane)

    def fail(self, number: int) -> None:
        lane, weight = self.messages[number]
        self._last_place += 1
        self.places[number] = self._last_place
        self.scheduler.insert(lane, weight, number, is_latest=True)
        self._settled(lane)

    def remove(self, number: int) -> None:
        lane, _ = self.messages.pop(number)
        on_disk = self.disk.get(lane, [])
        if number not in on_disk:
            self.scheduler.remove(lane, number)
            return
        on_disk.remove(number)
        if not on_disk:
            self.scheduler.end_cold(lane)

    def _settled(self, lane: LaneName) -> None:
        if self.settings.max_unsettled_per_key:
            self.scheduler.settled(lane[0])

    def _promote(self, lane: LaneName) -> None:
        on_disk = self.disk[lane]
        read, self.disk[lane] = on_disk[: self.settings.window], on_disk[self.settings.window :]
        next_place = 0
        if self.disk[lane]:
            # A place before that of the next message will do.
            next_place = self._chance.choice([self.places[self.disk[lane][0]], self.places[read[-1]] + 1])
        self.scheduler.promote(lane, read, next_place)

    def check_laws(self) -> None:
        """Each lane holds its messages in the order of their places, and is counted right."""
        lanes = self.scheduler.lanes()
        assert all(lanes[lane] or self.disk.get(lane) for lane in lanes)
        assert sorted(self.scheduler.numbers()) == sorted(
            number for lane in lanes.values() for number in lane
        )
        assert self.scheduler.held == len(self.scheduler.numbers())
        check_state(self.scheduler._state)


class OracleQueue(FairQueue):
    """The oracle with numbers, failures and removals."""

    def add_one(self, number: int, lane: LaneName, weight: int) -> None:
        self.add([Arrival(_id(number), lane[0], weight, lane[1:])])

    def take_numbers(
        self, limit: int, now_ms: int, followers: Followers | None = None, up_to: int | None = None
    ) -> list[int]:
        if followers is None:
            return [self._number(head) for head in self._scheduler.take(limit, now_ms, up_to)]
        taken: list[int] = []
        while len(taken) < limit:
            heads = self._scheduler.take(1, now_ms, up_to)
            if not heads:
                break
            taken.append(self._number(heads[0]))
            room = limit - len(taken)
            taken += self._run(followers(taken[-1], room), now_ms, room)
        return taken

    def _number(self, picked: tuple[bytes, bytes]) -> int:
        lane, row = picked
        self._ready[lane].remove(row)
        self._taken[row_id(row)] = lane, row
        return int.from_bytes(row_id(row), "big")

    def _run(self, followers: Sequence[tuple[LaneName, int]], now_ms: int, room: int) -> list[int]:
        run: list[int] = []
        for lane, number in followers[:room]:
            if not self._scheduler.charge(lane[0], lane[1:], now_ms):
                break
            run.append(number)
        return run

    def follower_settled(self, key: str) -> None:
        self._scheduler.settled(key)

    def reweigh(self, key: str, weight: int) -> None:
        self._scheduler.reweigh(key, weight)

    def fail(self, number: int, lane: LaneName, weight: int) -> None:
        packed, _ = self._taken.pop(_id(number))
        self.add_one(number, lane, weight)
        if self._limits_keys:
            self._scheduler.settled(lane_key(packed))

    def remove(self, number: int, lane: LaneName, weight: int, place: int) -> None:
        packed = pack_lane(lane[0], lane[1:])
        row = pack_row(place, _id(number), weight, 0, 10)
        self._ready[packed].remove(row)
        self._scheduler.remove(packed, row)


def _id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def check_state(state: SchedulerState) -> None:
    """Counts and sets that are kept beside the things they count."""
    keys = dict(zip(state.keys, state.all_keys(), strict=True))
    assert state.inactive == sum(not key.active for key in keys.values())
    assert set(state.ring.all()) == {name for name, key in keys.items() if key.in_ring}
    assert len(state.ring) == len(set(state.ring.all()))
    not_plain = {name for name in state.ring.all() if not keys[name].is_plain}
    assert not_plain <= state.special <= set(state.ring.all())
    for name, key in keys.items():
        lanes = [lane for lane in state.lanes.values() if lane.name[0] == name]
        awake = [lane for lane in lanes if lane.parked is None]
        assert key.lane_count == len(lanes) + key.active
        assert key.claimable == len(awake) + key.active
        assert key.in_ring or not key.claimable or state.max_unsettled_per_key
        claimable: list[Lane] = [*awake, key] if key.active else [*awake]
        if key.heap is None:
            assert key.only == (claimable[0].name if claimable else None)
            assert all(lane.listed is None for lane in claimable)
        else:
            assert key.only is None
            assert all(lane.listed == lane.head(state.place_of) for lane in claimable)
    assert state.cold == {lane.name for lane in keys.values() if lane.cold_from} | {
        lane.name for lane in state.lanes.values() if lane.cold_from
    }
    for throttle_key, ring in state.parking.rings.items():
        parked = [*ring.lanes.all(), *ring.holders.all()]
        assert all(state.lanes[name].parked == throttle_key for name in parked)
    assert set(state.parking.holding) == {name for name, lane in state.lanes.items() if lane.held}


def snapshot(scheduler: Scheduler) -> Any:
    return _plain(scheduler._state), scheduler._state.parking.buckets.all()


def content(plan: ClaimPlan) -> Any:
    return list(plan.numbers), dict(plan.needs), dict(plan.buckets), _plain(plan.change)


#: The state that a draft reads, and the draft that its parking belongs to. Buckets also remember orders that
#: they were asked for.
_SHARED = ("_state", "_keys", "_buckets", "_slowest_first")


def _plain(thing: Any) -> Any:
    """The same thing in tuples, lists and dictionaries, so that two of them can be compared."""
    if isinstance(thing, Line | Heap):
        return thing.all()
    if isinstance(thing, SchedulerState):
        # A plan may make an object of a bare number, which means the same.
        keys = dict(zip(thing.keys, thing.all_keys(), strict=True))
        names = [name for name in SchedulerState.__slots__ if name not in (*_SHARED, "keys")]
        return {"keys": _plain(keys)} | {name: _plain(getattr(thing, name)) for name in names}
    if isinstance(thing, dict):
        return {key: _plain(value) for key, value in thing.items()}
    if isinstance(thing, list | deque | tuple):
        return [_plain(item) for item in thing]
    if type(thing).__module__.startswith("fairlead.schedule"):
        names = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
        names += vars(thing) if hasattr(thing, "__dict__") else []
        return {name: _plain(getattr(thing, name)) for name in names if name not in _SHARED}
    return None if callable(thing) else thing
