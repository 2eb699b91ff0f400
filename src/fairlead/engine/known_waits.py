"""Queues of which memory knows all waiting messages, so that checking for due ones reads no row.

A queue is known from a time at which nothing waited in it, until too many messages wait. None of this is
stored: a reopened engine knows only the queues in which nothing waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from fairlead.records.state import OwnState

#: Waiting messages in all known queues together. With more of them, a queue is no longer known.
MAX_KNOWN_WAITS = 10_000
#: Times of messages that no longer wait stay until they pass, or until there are this many more than others.
_MAX_STALE = 100


class _Waits:
    __slots__ = ("states", "times")

    def __init__(self) -> None:
        self.states: dict[int, OwnState] = {}
        #: A heap of (due time, number). An entry that its state does not confirm is stale.
        self.times: list[tuple[int, int]] = []


class KnownWaits:
    def __init__(self) -> None:
        self._queues: dict[int, _Waits] = {}
        self._count = 0

    def began(self, queue_id: int, states: Mapping[int, OwnState], waiting: int) -> None:
        """Messages began to wait in a queue that now has this many waiting messages."""
        known = self._queues.get(queue_id)
        if known is None:
            if waiting > len(states):
                # Other messages wait there already.
                return
            known = self._queues[queue_id] = _Waits()
        known.states.update(states)
        self._count += len(states)
        for number, state in states.items():
            heappush(known.times, (state.due_ms, number))
        if self._count > MAX_KNOWN_WAITS:
            self.forget(queue_id)
        elif len(known.times) > 2 * len(known.states) + _MAX_STALE:
            known.times = [(state.due_ms, number) for number, state in known.states.items()]
            heapify(known.times)

    def ended(self, queue_id: int, numbers: Iterable[int]) -> None:
        """Messages no longer wait."""
        known = self._queues.get(queue_id)
        if known is None:
            return
        before = len(known.states)
        for number in numbers:
            known.states.pop(number, None)
        self._count -= before - len(known.states)
        if not known.states:
            del self._queues[queue_id]

    def restated(self, queue_id: int, number: int, state: OwnState) -> None:
        known = self._queues.get(queue_id)
        if known is not None and number in known.states:
            known.states[number] = state

    def forget(self, queue_id: int) -> None:
        known = self._queues.pop(queue_id, None)
        self._count -= 0 if known is None else len(known.states)

    def find_state(self, queue_id: int, number: int) -> OwnState | None:
        known = self._queues.get(queue_id)
        return None if known is None else known.states.get(number)

    def states(self, queue_id: int) -> Mapping[int, OwnState] | None:
        """All waiting messages of the queue; None if they are not known."""
        known = self._queues.get(queue_id)
        return None if known is None else known.states

    def first(self, queue_id: int, limit: int) -> list[tuple[int, int]] | None:
        """(due time, number) of the messages that are due first, in order; None if they are not known."""
        known = self._queues.get(queue_id)
        if known is None:
            return None
        states, times, found = known.states, known.times, list[tuple[int, int]]()
        while times and len(found) < limit:
            entry = heappop(times)
            state = states.get(entry[1])
            if state is not None and state.due_ms == entry[0] and found[-1:] != [entry]:
                found.append(entry)
        # Reading changes nothing but stale entries.
        for entry in found:
            heappush(times, entry)
        return found
