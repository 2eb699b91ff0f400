"""The messages of one slice of a numbered claim: which of them are ready, which are in flight, and what was
recorded.

It has no clock, I/O or threads. Its owner holds a lock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from fairlead.model.delivery import Delivery
from fairlead.model.failure import read_reason
from fairlead.model.settle import Complete, Fail, Handle, Release, Settlement

#: At least as many single messages as a worker loop has in flight. Messages behind them were not delivered
#: when a process crashed.
_MIN_SUSPECTS = 6000


class ClaimSlice(NamedTuple):
    """Names a slice of a claim. `generation` fences: registering the consumer again ends all slices of older
    generations.

    `crashes` counts how often this run knows that the slice was given up before.
    """

    consumer: str
    queue: str
    generation: int
    number: int
    slice: int
    slices: int
    crashes: int = 0


@dataclass
class SliceTally:
    """Outcomes recorded for a slice. `failed` counts failed tries; the close decides which of them are
    retried.
    """

    completed: int = 0
    failed: int = 0
    released: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    #: Streams whose later messages may pass one that failed.
    streams_to_release: set[str] = field(default_factory=set)

    def count_failures(self, count: int, reason: str) -> None:
        if count:
            self.failed += count
            self.reasons[reason] += count

    def count(self, item: Complete | Fail | Release) -> None:
        match item:
            case Complete():
                self.completed += 1
            case Fail():
                self.count_failures(1, read_reason(item.reason).word)
            case Release():
                self.released += 1


class SliceQueue:
    """Delivers each message once, and of a stream one run at a time: the next run is ready when every message
    of the one before is completed.
    """

    def __init__(self, deliveries: Iterable[Delivery] = ()) -> None:
        #: A message without a stream, or the name of a stream with no message in flight.
        self._ready: deque[Delivery | str] = deque()
        #: Messages of each stream that are not delivered yet.
        self._streams: dict[str, deque[Delivery]] = {}
        #: The stream of each message in flight; "" for a message without one.
        self._in_flight: dict[bytes, str] = {}
        self._in_flight_of_stream: Counter[str] = Counter()
        for delivery in deliveries:
            self._add(delivery)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def is_done(self) -> bool:
        """Nothing is ready or in flight. Messages behind a failed one in their stream may remain."""
        return not (self._ready or self._in_flight)

    def deliver(self, limit: int, max_per_stream: int) -> list[Delivery]:
        found: list[Delivery] = []
        while self._ready and len(found) < limit:
            first = self._ready.popleft()
            if isinstance(first, Delivery):
                self._in_flight[first.raw_id] = ""
                found.append(first)
                continue
            waiting = self._streams[first]
            count = min(len(waiting), max_per_stream, limit - len(found))
            run = [waiting.popleft() for _ in range(count)]
            self._in_flight_of_stream[first] = count
            self._in_flight.update((delivery.raw_id, first) for delivery in run)
            found += run
        return found

    def stop_delivering(self) -> None:
        """Deliver no more messages. Messages that are not in flight stay without an outcome."""
        self._ready.clear()

    def in_flight_of(self, items: Sequence[Settlement]) -> list[Settlement]:
        """The items for messages in flight."""
        return [item for item in items if raw_id_of(item.delivery) in self._in_flight]

    def stream_of(self, item: Settlement) -> str:
        """The stream of a message in flight; "" without one."""
        return self._in_flight[raw_id_of(item.delivery)]

    def behind_failures(self, items: Sequence[Settlement]) -> list[Delivery]:
        """Messages not yet delivered in the streams of those `items` that fail."""
        streams = {self.stream_of(item) for item in items if isinstance(item, Fail)}
        return [delivery for stream in streams for delivery in self._streams.get(stream, ())]

    def settle(self, item: Complete | Fail | Release) -> None:
        """Take a message out of flight. Unless it completed, later messages of its stream are not delivered.
        They stay without an outcome, so the close returns them in order.
        """
        stream = self._in_flight.pop(raw_id_of(item.delivery))
        if not stream:
            return
        if not isinstance(item, Complete):
            self._streams.pop(stream, None)
        self._in_flight_of_stream[stream] -= 1
        if self._in_flight_of_stream[stream]:
            return
        del self._in_flight_of_stream[stream]
        if self._streams.get(stream):
            # Goes first: the slice takes as long as its longest stream.
            self._ready.appendleft(stream)

    def _add(self, delivery: Delivery) -> None:
        stream = delivery.message.stream if delivery.seq else ""
        if not stream:
            self._ready.append(delivery)
        elif stream in self._streams:
            self._streams[stream].append(delivery)
        else:
            self._streams[stream] = deque([delivery])
            self._ready.append(stream)


def mark_suspects(deliveries: Sequence[Delivery], crashes: int, max_in_flight: int) -> list[Delivery]:
    """Raise `deliveries` of the messages that may have killed the process which worked on this slice before.

    A worker loop sends `Start` before it works on a message that was delivered before without an outcome, so
    the next crash names its message. After the first crash that this run knows of, such a message shares a
    batch with few others; after more, it is alone in its batch. A run that knows of no crash and finds the
    slice begun follows a process that did not live to count, so its messages are alone too.
    """
    more = 1 if crashes == 1 else 2
    count = max(max_in_flight, _MIN_SUSPECTS)
    suspects = [
        msgspec.structs.replace(delivery, deliveries=delivery.deliveries + more)
        for delivery in deliveries[:count]
    ]
    return [*suspects, *deliveries[count:]]


def raw_id_of(delivery: Handle) -> bytes:
    raw_id: bytes = delivery.raw_id  # type: ignore[attr-defined]  # every delivery of a slice is a `Delivery`
    return raw_id
