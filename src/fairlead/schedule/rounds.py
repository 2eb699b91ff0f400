"""A claim in the usual case: all keys of the ring are plain, so each gives one message a turn.

Counts per key take the place of turns: same order as `draft.py` turn by turn, at a tenth of the cost
(`bench/schedule.py`), because whole rounds are slices of the lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import msgspec

from fairlead.records.chunk import LaneName
from fairlead.schedule.lanes import MIN_TRIM, Key
from fairlead.schedule.state import SchedulerState


def plan_rounds(state: SchedulerState, limit: int) -> Rounds:
    if limit == 1:
        return _one(state)
    rounds = Rounds()
    if limit <= len(state.ring.items):
        rounds._part_of_a_round(state, limit)
    else:
        rounds._whole_rounds(state, limit)
    return rounds


def _one(state: SchedulerState) -> Rounds:
    """`Rounds._part_of_a_round` for one message, without its lists."""
    name = state.ring.items[0]
    key = state.keys[name]
    if type(key) is int:
        return Rounds([key], lone=(name,), leaving=1)
    assert isinstance(key, Key)
    at = key.at + 1
    if state.cold and key.cold_from and at >= len(key.numbers):
        return Rounds(needs={key.name: at + 1 - len(key.numbers)})
    joining = [name] if at < len(key.numbers) else []
    return Rounds([key.numbers[at - 1]], takes=[(key, at)], leaving=1, joining=joining)


class Rounds(msgspec.Struct, eq=False, gc=False):
    numbers: list[int] = []
    needs: dict[LaneName, int] = {}
    #: (key, the new `at` of its lane).
    takes: list[tuple[Key, int]] = []
    #: Keys that were bare numbers: they give their only message.
    lone: Sequence[str] = ()
    #: How many keys leave the ring at its front, and which of them join it again at its end.
    leaving: int = 0
    joining: list[str] = []

    def _part_of_a_round(self, state: SchedulerState, limit: int) -> None:
        if self._all_lone(state, limit):
            return
        keys = [state.key(name) for name in islice(state.ring.items, limit)]
        if state.cold:
            self.needs = {
                key.name: key.at + 2 - len(key.numbers) for key in keys if self._runs_dry(key, key.at + 1)
            }
            if self.needs:
                return
        self.numbers = [key.numbers[key.at] for key in keys]
        self.takes = [(key, key.at + 1) for key in keys]
        self.leaving = limit
        self.joining = [key.name[0] for key in keys if key.at + 1 < len(key.numbers)]

    def _all_lone(self, state: SchedulerState, limit: int) -> bool:
        """The next keys up to `limit`, if each of them is a bare number."""
        names = list(islice(state.ring.items, limit))
        found: Any = list(map(state.keys.__getitem__, names))
        if set(map(type, found)) != {int}:
            return False
        self.numbers = found
        self.lone = names
        self.leaving = len(names)
        return True

    def _whole_rounds(self, state: SchedulerState, limit: int) -> None:
        if self._all_lone(state, limit):
            return
        #: Keys of the ring, in order, and the next position in the lane of each.
        keys = [state.key(name) for name in state.ring.items]
        positions = [key.at for key in keys]
        self.leaving = len(keys)
        left = limit
        while keys and left >= len(keys):
            if state.cold and self._lacks_messages(keys, positions, left):
                return
            available = min([len(key.numbers) - at for key, at in zip(keys, positions, strict=True)])
            rounds = min(available, left // len(keys))
            turns = [key.numbers[at : at + rounds] for key, at in zip(keys, positions, strict=True)]
            self.numbers += chain.from_iterable(zip(*turns, strict=True))
            positions = [at + rounds for at in positions]
            left -= rounds * len(keys)
            if rounds == available:
                keys, positions = self._let_go(keys, positions)
        if state.cold and self._lacks_messages(keys, positions, left):
            return
        for index in range(min(left, len(keys))):
            self.numbers.append(keys[index].numbers[positions[index]])
            positions[index] += 1
        # The next turn is that of the first key which had none in the last round.
        keys, positions = keys[left:] + keys[:left], positions[left:] + positions[:left]
        keys, positions = self._let_go(keys, positions)
        self.takes += zip(keys, positions, strict=True)
        self.joining = [key.name[0] for key in keys]

    def _let_go(self, keys: list[Key], positions: list[int]) -> tuple[list[Key], list[int]]:
        """Keys without a message left leave the ring; the others are returned."""
        staying: list[Key] = []
        at: list[int] = []
        for key, position in zip(keys, positions, strict=True):
            if position == len(key.numbers) and not key.cold_from:
                self.takes.append((key, position))
            else:
                staying.append(key)
                at.append(position)
        return staying, at

    def _runs_dry(self, key: Key, at: int) -> bool:
        """Whether only the disk knows if a key has a message at that position."""
        return key.cold_from > 0 and at >= len(key.numbers)

    def _lacks_messages(self, keys: list[Key], positions: list[int], left: int) -> bool:
        """Whether a key may have more on disk, and in memory no more than its part of those left."""
        for index, (key, at) in enumerate(zip(keys, positions, strict=True)):
            if key.cold_from:
                wanted = left // len(keys) + (index < left % len(keys))
                # One more, which tells whether the key stays in the ring.
                missing = wanted + 1 - (len(key.numbers) - at)
                if missing > 0:
                    self.needs[key.name] = missing
        return bool(self.needs)

    def apply(self, state: SchedulerState) -> None:
        keys = state.keys
        for name in self.lone:
            del keys[name]
        if self.lone:
            state.left_over = ("", 0)
        for key, at in self.takes:
            key.at = at
            if at == len(key.numbers) and not key.cold_from:
                del keys[key.name[0]]
                state.left_over = ("", 0)
            elif at > MIN_TRIM:
                key.trim()
        ring = state.ring.items
        if self.leaving == len(self.joining) < len(ring):
            ring.rotate(-self.leaving)
        elif self.leaving == len(ring):
            ring.clear()
            ring.extend(self.joining)
        else:
            for _ in range(self.leaving):
                ring.popleft()
            ring.extend(self.joining)
        state.held -= len(self.numbers)
