"""Which message is next: deficit round robin between keys, oldest head first between the lanes of a key,
tokens before delivery.

One `Scheduler` per queue, for its ready messages, which are numbers here. A claim is a plan and its
application:

    plan = scheduler.plan(limit, now_ms)
    while plan.needs:                       # messages that are only on disk
        for lane, count in plan.needs.items():
            scheduler.promote(lane, *read(lane, count))
        plan = scheduler.plan(limit, now_ms)
    ...                                     # write the lease and plan.buckets
    scheduler.apply(plan)

A key that gets its first message joins the ring at its end. Its latest message sets its weight from its next
turn on, unless the configuration sets it (`weight_of`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from fairlead.records.chunk import LaneName
from fairlead.schedule.draft import Draft, Followers, Run
from fairlead.schedule.lanes import Key, Lane, PlaceOf, ThrottledLane
from fairlead.schedule.plan import ClaimPlan
from fairlead.schedule.rounds import plan_rounds
from fairlead.schedule.state import SchedulerState, enter, list_lane, lone_key
from fairlead.schedule.throttle import Buckets

Container: TypeAlias = dict[Any, Any] | set[Any] | deque[Any]


class LaneNames(NamedTuple):
    keys: list[str]
    throttled: list[LaneName]

    def of(self, key: str | None) -> Iterator[LaneName]:
        """The names of all lanes, or of those of a key."""
        plain = self.keys if key is None else [key]
        yield from ((name,) for name in plain)
        yield from (name for name in self.throttled if key is None or name[0] == key)


class Scheduler:
    def __init__(
        self,
        place_of: PlaceOf,
        buckets: Buckets,
        *,
        quantum: int = 1,
        max_unsettled_per_key: int = 0,
        weight_of: Callable[[str], int | None] = lambda key: None,
    ) -> None:
        """`place_of` is called during planning and must not change the scheduler."""
        self._weight_of = weight_of
        self._state = SchedulerState(
            place_of, buckets, quantum=quantum, max_unsettled_per_key=max_unsettled_per_key
        )
        #: The last plan that lacks messages, with its limit: the same plan is asked for again once they are
        #: read.
        self._last: tuple[int, ClaimPlan] | None = None

    # The decision

    def plan(
        self,
        limit: int,
        now_ms: int,
        *,
        followers: Followers | None = None,
        up_to: int | None = None,
        run: Run = (),
    ) -> ClaimPlan:
        """Choose up to `limit` messages. Changes nothing, even if it raises.

        `followers(head, room)` names messages that may go out behind a head of a stream; they stand in no
        lane. They pay tokens and turns as other messages do; the first that lacks a token stays, with those
        behind it. Messages behind the place `up_to` stay. `run`: what is left of a run that an earlier plan of
        the same claim broke off; it goes first, and needs `followers`.
        """
        state = self._state
        if followers is None and up_to is None and _is_usual(state, now_ms):
            last = self._last
            if last is not None and last[0] == limit and last[1].version == state.version:
                return last[1]
            rounds = plan_rounds(state, limit)
            plan = ClaimPlan(rounds.numbers, rounds.needs, {}, rounds, state.version)
            self._last = (limit, plan) if state.cold else None
            return plan
        draft = Draft(state, now_ms)
        if followers is None:
            draft.take(limit, up_to)
        else:
            draft.take_runs(limit, followers, up_to, run)
        return ClaimPlan(draft.numbers, draft.needs, draft.buckets, draft, state.version)

    def apply(self, plan: ClaimPlan) -> None:
        """Carry out a plan without needs, made since the last change: its messages leave, and its buckets
        have paid.
        """
        assert not plan.needs, "expected a plan without needs"
        assert plan.version == self._state.version, "expected a plan of the present state"
        self._state.version += 1
        plan.change.apply(self._state)

    # Ready messages

    def add(self, name: LaneName, weight: int, numbers: Sequence[int]) -> None:
        """New messages at the tail of the lane, in order. The lane must have nothing on disk."""
        state = self._state
        state.version += 1
        if len(name) == 1 and numbers and name[0] not in state.keys:
            self._add_key(name[0], weight, numbers)
            return
        lane = self._begin(name, weight)
        assert not lane.cold_from, f"expected lane {name} to be in memory"
        was_empty = lane.is_empty
        lane.numbers.extend(numbers)
        state.held += len(numbers)
        if was_empty:
            self._head_changed(lane)

    def add_lone(self, lanes: Sequence[LaneName], numbers: Sequence[int]) -> bool:
        """`add` for many lanes with one message and the weight 1 each, all at once. False: some of them are not new
        or not plain, and nothing was added.
        """
        state, keys = self._state, [lane[0] for lane in lanes]
        if state.debts or not state.keys.keys().isdisjoint(keys) or any(map(self._weight_of, keys)):
            return False
        if set(map(len, lanes)) != {1}:
            return False
        state.version += 1
        state.keys.update(zip(keys, numbers, strict=True))
        state.ring.items.extend(keys)
        state.held += len(numbers)
        return True

    def insert(self, name: LaneName, weight: int, number: int, *, is_latest: bool = False) -> None:
        """Add a returned message at its place; or, as the latest message, one that got a new place.

        The weight of a returned message counts only if its lane has no other message.
        """
        state = self._state
        state.version += 1
        lane = None if is_latest else state.find_lane(name)
        if lane is None:
            lane = self._begin(name, weight)
        lane.insert(number, state.place_of(number), state.place_of)
        state.held += 1
        self._head_changed(lane)

    def remove(self, name: LaneName, number: int) -> None:
        """Remove a ready message in memory that left other than by a claim."""
        state = self._state
        state.version += 1
        lane = self._lane(name)
        lane.remove(number, state.place_of(number), state.place_of)
        state.held -= 1
        self._tidy(lane)

    def join(self, name: LaneName, weight: int) -> None:
        """Begin the lane, and let its key join the ring; its messages follow, in memory or on disk."""
        self._state.version += 1
        self._begin(name, weight)

    def order_ring(self) -> None:
        """After a restart: order the turns by the first places of the keys."""
        state = self._state
        state.version += 1
        firsts: dict[str, int] = {}
        for lane in self._all_lanes():
            if not lane.is_empty:
                head = lane.head(state.place_of)
                firsts[lane.name[0]] = min(head, firsts.get(lane.name[0], head))
        ordered = sorted((key for key in state.ring.items if key in firsts), key=firsts.__getitem__)
        for key in set(state.ring.items) - firsts.keys():
            state.key(key).in_ring = False
        state.ring.items.clear()
        state.ring.items.extend(ordered)

    # Keys

    def set_quantum(self, quantum: int) -> None:
        """Set the quantum from the next turn of each key on. The order of the keys stays."""
        self._state.version += 1
        self._state.quantum = quantum

    def reweigh(self, key: str, weight: int) -> None:
        """Set the weight of a key by configuration; it counts from the key's next turn on."""
        state = self._state
        state.version += 1
        found = state.find_key(key)
        if found is not None:
            found.weight = weight
            state.note_special(found)

    def limit_unsettled(self, limit: int, unsettled: Mapping[str, int]) -> None:
        """Set the queue's limit. `unsettled` has the number of unsettled messages of each key; other keys
        have none, and none of those is at its limit.
        """
        state = self._state
        state.version += 1
        state.max_unsettled_per_key = limit
        for name, count in unsettled.items():
            if not limit and name not in state.keys:
                continue
            key = self._known_key(name) if limit else state.key(name)
            key.unsettled = count if limit else 0
            if key.lane_count:
                self._join_ring(key)

    def note_unsettled(self, key: str) -> None:
        """Count a lease found at open. For queues that limit unsettled messages, like `settled`."""
        self._state.version += 1
        self._known_key(key).unsettled += 1

    def settled(self, key: str) -> None:
        """A consumer settled a message of the key."""
        state = self._state
        state.version += 1
        found = state.find_key(key)
        if found is None:
            return
        found.unsettled -= 1
        if found.lane_count:
            self._join_ring(found)
        elif found.unsettled <= 0 and not found.in_ring:
            # A key that is still in the ring is deleted at its next turn.
            del state.keys[key]
            state.inactive -= 1

    def drop_empty_keys(self, limit: int) -> bool:
        """Keys at the front of the ring that have no messages leave it, as they would at their turns, up to `limit`.
        False: the first one has messages, perhaps on disk.
        """
        state = self._state
        state.version += 1
        for dropped in range(limit):
            name = state.ring.find_first()
            key = None if name is None else state.keys[name]
            # A bare number is a key's only message.
            if name is None or not isinstance(key, Key) or key.lane_count:
                return dropped > 0
            state.ring.popleft()
            state.special.discard(name)
            key.in_ring = key.in_turn = False
            key.deficit = 0
            if key.unsettled <= 0:
                del state.keys[name]
                state.inactive -= 1
        return limit > 0

    # Messages on disk

    def add_cold(self, name: LaneName, weight: int, place: int) -> None:
        """The lane continues on disk from that place on, unless it did so before; its last message has that
        weight.
        """
        state = self._state
        state.version += 1
        lane = self._begin(name, weight)
        if lane.cold_from:
            return
        was_empty = lane.is_empty
        lane.cold_from = place
        state.cold.add(name)
        if was_empty:
            self._head_changed(lane)

    def add_cold_ones(self, names: Iterable[LaneName], weights: Iterable[int], places: Iterable[int]) -> None:
        """`add_cold` for one message after the other. Nearly always its lane goes on on disk already."""
        keys = self._state.keys
        self._state.version += 1
        for name, weight, place in zip(names, weights, places, strict=True):
            key: Any = keys.get(name[0])
            if len(name) == 1 and type(key) is Key and key.active and key.cold_from and key.weight == weight:
                continue
            self.add_cold(name, weight, place)

    def promote(self, name: LaneName, numbers: Sequence[int], next_place: int) -> None:
        """Add the next messages of a lane, read from disk, where it continues at that place; 0: it does not."""
        state = self._state
        state.version += 1
        lane = self._lane(name)
        lane.numbers.extend(numbers)
        state.held += len(numbers)
        lane.cold_from = next_place
        if not next_place:
            state.cold.discard(name)
        self._tidy(lane)

    def demote(self, name: LaneName, place: int) -> list[int]:
        """Move messages of the lane from that place on to disk, where the messages after them may be already.
        Returns the messages that leave memory. The lane keeps its turn, its tokens and its debt.
        """
        state = self._state
        state.version += 1
        lane = self._lane(name)
        place = min(place, lane.cold_from or place)
        numbers = lane.cut(place, state.place_of)
        lane.cold_from = place
        state.cold.add(name)
        state.held -= len(numbers)
        self._head_changed(lane)
        return numbers

    def end_cold(self, name: LaneName) -> None:
        """The lane has nothing on disk any more."""
        if name in self._state.cold:
            self.promote(name, (), 0)

    def cold_from(self, name: LaneName) -> int:
        """The place at which the lane continues on disk; 0: it does not."""
        lane = self._state.find_lane(name)
        return 0 if lane is None else lane.cold_from

    def ran_dry(self, name: LaneName) -> bool:
        """Whether the lane continues on disk, perhaps with nothing, and has no message in memory before that."""
        lane = self._state.find_lane(name)
        return lane is not None and lane.ran_dry

    def has_cold(self) -> bool:
        """Whether a lane goes on on disk."""
        return bool(self._state.cold)

    @property
    def cold_lanes(self) -> int:
        return len(self._state.cold)

    # Tokens

    def bucket_changed(self, throttle_key: str, now_ms: int) -> None:
        """React to a bucket that was set, removed or changed, or to a key that was closed or opened."""
        state = self._state
        state.version += 1
        # A throttle concerns few of the queues, but all of them are notified.
        if not state.parking.holding and throttle_key not in state.parking.rings:
            return
        draft = Draft(state, now_ms)
        draft.parking.bucket_changed(throttle_key)
        draft.apply(state)

    def look_again(self, throttle_key: str) -> None:
        """A closed key may let more messages pass: the next plan tries the lanes that wait for it."""
        parking = self._state.parking
        ring = parking.rings.get(throttle_key)
        if ring is not None and len(ring) and not ring.scheduled:
            self._state.version += 1
            ring.scheduled = True
            parking.wakes.push((0, throttle_key))

    def parked(self, limit: int) -> list[tuple[str, int]]:
        """(throttle key, lanes that wait for its bucket), for some of them."""
        rings = self._state.parking.rings
        return [(key, len(ring)) for key, ring in islice(rings.items(), limit) if len(ring)]

    @property
    def parked_lanes(self) -> int:
        return sum(len(ring) for ring in self._state.parking.rings.values())

    @property
    def times_parked(self) -> int:
        """How often a lane began to wait for tokens."""
        return self._state.parking.parked

    def next_wake_ms(self) -> int | None:
        """When a parked lane may get a token; None: no lane waits for one."""
        wakes = self._state.parking.wakes
        return wakes.first()[0] if len(wakes) else None

    def containers(self) -> list[Container]:
        """Containers with as many items as there are keys or lanes. Emptying them makes the scheduler
        useless.
        """
        state = self._state
        return [state.keys, state.lanes, state.ring.items, state.special, state.cold, state.debts]

    # For laws and people

    @property
    def held(self) -> int:
        """How many messages are in memory."""
        return self._state.held

    @property
    def active_keys(self) -> int:
        return len(self._state.ring)

    def has_lane(self, name: LaneName) -> bool:
        return name in self._state.lanes if len(name) > 1 else self._state.is_active(name[0])

    @property
    def has_throttled(self) -> bool:
        """Whether a lane needs tokens."""
        return bool(self._state.lanes)

    @property
    def lane_count(self) -> int:
        """How many lanes have messages."""
        return len(self._state.keys) - self._state.inactive + len(self._state.lanes)

    def heads(self, max_lanes: int) -> list[int]:
        """The next message of each lane, where it is in memory; none when there are more lanes than `max_lanes`."""
        if len(self._state.keys) + len(self._state.lanes) > max_lanes:
            return []
        place_of = self._state.place_of
        return [number for lane in self._all_lanes() for number in lane.after(0, 1, place_of)]

    def numbers(self) -> list[int]:
        return [number for lane in self._all_lanes() for number in lane.all()]

    def lanes(self) -> dict[LaneName, list[int]]:
        """The messages in memory of each lane, in order."""
        place_of = self._state.place_of
        return {lane.name: sorted(lane.all(), key=place_of) for lane in self._all_lanes()}

    def lane_names(self) -> LaneNames:
        """The lanes that have messages, and some that have none. Copies two lists, which is quick even for a
        million lanes.
        """
        return LaneNames(list(self._state.keys), list(self._state.lanes))

    def messages_after(self, name: LaneName, place: int, limit: int) -> list[int]:
        """The messages of a lane that are in memory, behind a place and in order."""
        lane = self._state.find_lane(name)
        return [] if lane is None else lane.after(place, limit, self._state.place_of)

    def has(self, name: LaneName, number: int, place: int) -> bool:
        """Whether a message with that place stands in the lane, in memory."""
        return self.messages_after(name, place - 1, 1) == [number]

    def last_place(self, name: LaneName) -> int:
        """The last place among the messages of a lane in memory; 0 if it has none."""
        lane = self._state.find_lane(name)
        return 0 if lane is None else lane.last_place(self._state.place_of)

    def latest(self, name: LaneName) -> Iterator[int]:
        """The messages of a lane in memory that were added in order, the last one first."""
        lane = self._state.find_lane(name)
        return (
            iter(())
            if lane is None
            else (lane.numbers[at] for at in range(len(lane.numbers) - 1, lane.at - 1, -1))
        )

    def count_ready(self, name: LaneName) -> int:
        """How many messages of a lane are in memory."""
        lane = self._state.find_lane(name)
        return 0 if lane is None else lane.in_memory

    def shares(self, limit: int) -> list[tuple[str, int, int]]:
        """(key, weight, deficit) of the first keys."""
        keys = islice(self._state.all_keys(), limit)
        return [(key.name[0], key.weight, key.deficit) for key in keys]

    def keys_ahead(self, key: str, limit: int) -> int | None:
        """How many keys have their turn before this one, counted up to `limit`; None: it is not in the ring."""
        found = self._state.find_key(key)
        if found is None or not found.in_ring:
            return None
        ring = islice(self._state.ring.items, limit)
        return next((ahead for ahead, name in enumerate(ring) if name == key), limit)

    def parked_on(self, name: LaneName) -> str | None:
        """The throttle key whose tokens a lane waits for; None: it waits for none."""
        lane = self._state.lanes.get(name)
        return None if lane is None else lane.parked

    def unsettled(self, key: str) -> int:
        """Messages of the key with consumers; counted only in a queue that limits them."""
        found = self._state.find_key(key)
        return 0 if found is None else found.unsettled

    def ring(self) -> list[str]:
        """The keys in the order of their turns."""
        return self._state.ring.all()

    def _all_lanes(self) -> list[Lane]:
        plain = [key for key in self._state.all_keys() if key.active]
        return [*plain, *self._state.lanes.values()]

    # Keys and lanes

    def _lane(self, name: LaneName) -> Lane:
        lane = self._state.find_lane(name)
        assert lane is not None, f"expected lane {name}"
        return lane

    def _key(self, name: str, weight: int) -> Key:
        """The key; its latest message has that weight."""
        key = self._state.find_key(name)
        if key is None:
            key = self._state.keys[name] = Key((name,), weight=self._weight_of(name) or weight)
            self._state.inactive += 1
        elif key.weight != weight:
            key.weight = self._weight_of(name) or weight
            self._state.note_special(key)
        return key

    def _known_key(self, name: str) -> Key:
        """The key, which may have no message."""
        return self._state.find_key(name) or self._key(name, 1)

    def _add_key(self, name: str, weight: int, numbers: Sequence[int]) -> None:
        """The same as `_begin` and adding the messages."""
        state, weight_of = self._state, self._weight_of
        weight = weight_of(name) or weight
        state.ring.items.append(name)
        state.held += len(numbers)
        if len(numbers) == 1 and weight == 1 and not state.debts:
            state.keys[name] = numbers[0]
            return
        key = state.keys[name] = lone_key(name, numbers[0], weight)
        key.numbers += numbers[1:]
        if state.debts:
            key.deficit -= state.debts.pop(name, 0)
        if key.weight != 1 or key.deficit:
            state.special.add(name)

    def _begin(self, name: LaneName, weight: int) -> Lane:
        """The lane, which is about to get messages."""
        state = self._state
        key = self._key(name[0], weight)
        lane = state.find_lane(name)
        if lane is not None:
            return lane
        if len(name) > 1:
            lane = state.lanes[name] = ThrottledLane(name)
        else:
            lane = key
            key.active = True
            state.inactive -= 1
            # What is left of its former messages is nothing.
            key.numbers, key.at, key.back, key.back_at = [], 0, (), 0
        if state.debts and not key.lane_count:
            key.deficit -= state.debts.pop(name[0], 0)
        key.lane_count += 1
        only = None if key.only is None else state.find_lane(key.only)
        enter(lane, key, only, state.place_of)
        self._join_ring(key)
        return lane

    def _join_ring(self, key: Key) -> None:
        state = self._state
        is_at_limit = 0 < state.max_unsettled_per_key <= key.unsettled
        if key.claimable and not key.in_ring and not is_at_limit:
            key.in_ring = True
            state.ring.append(key.name[0])
        state.note_special(key)

    def _head_changed(self, lane: Lane) -> None:
        state = self._state
        key = state.key(lane.name[0])
        if lane.listed is not None and lane.listed != lane.head(state.place_of):
            list_lane(lane, key, state.place_of)
        state.note_special(key)

    def _tidy(self, lane: Lane) -> None:
        """After messages came or went: a lane without any is dropped."""
        if not lane.is_empty:
            self._head_changed(lane)
            return
        state = self._state
        if isinstance(lane, ThrottledLane) and lane.parked is not None:
            state.parking.rings[lane.parked].remove(lane)
        draft = Draft(state, now_ms=0)
        draft.drop(lane.name)
        draft.apply(state)


def _is_usual(state: SchedulerState, now_ms: int) -> bool:
    """Whether all turns are alike, and no parked lane may enter."""
    if state.special or state.quantum != 1 or state.max_unsettled_per_key or not state.ring.items:
        return False
    return not (state.parking.wakes.items and state.parking.has_wakes(now_ms))
