"""What a loop has claimed ahead, without I/O: which delivery is the next, and when to claim more.

Deliveries in the buffer are not started: if this process dies, they count as not delivered. Before one is handed out its
start is confirmed. The start of the next one travels with the settle of one that was handed out, so a loop that settles
one message at a time needs one request for each.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from fairlead.client.resp.calls import Tokens
from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_BATCH_MESSAGES, MAX_CLAIM
from fairlead.model.settle import Release, SettleResult, Start
from fairlead.verbs.claim import Claim
from fairlead.wire.settlement_rows import EXTEND, Row

LOOP_WAIT_MS = 10_000


def check_prefetch(prefetch: object) -> int:
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 1 <= prefetch <= MAX_CLAIM:
        raise InvalidRequest("prefetch", f"a whole number from 1 to {MAX_CLAIM}", prefetch)
    return prefetch


class Prefetched:
    """The deliveries of one loop. Its owner locks it."""

    def __init__(self, prefetch: int) -> None:
        self._prefetch = check_prefetch(prefetch)
        self._buffer: deque[Delivery] = deque()
        #: Started, and not handed out yet.
        self._started: deque[Delivery] = deque()

    @property
    def room(self) -> int:
        """How many to claim now; 0 while half of the buffer is full."""
        count = len(self._buffer)
        return self._prefetch - count if count <= self._prefetch // 2 else 0

    @property
    def has_some(self) -> bool:
        return bool(self._buffer or self._started)

    def add(self, deliveries: Sequence[Delivery]) -> None:
        self._buffer.extend(deliveries)

    def next_started(self) -> Delivery | None:
        return self._started.popleft() if self._started else None

    def next_to_start(self) -> Delivery | None:
        return self._buffer.popleft() if self._buffer else None

    def take_ahead(self) -> Delivery | None:
        """One to start before anybody asks for it; none while such a one is there."""
        return None if self._started else self.next_to_start()

    def was_started(self, delivery: Delivery, result: SettleResult) -> None:
        if result.ok:
            self._started.append(delivery)

    def put_back(self, delivery: Delivery) -> None:
        self._buffer.appendleft(delivery)

    def take_all(self) -> list[Release]:
        """What to give back, in order."""
        left = [*self._started, *self._buffer]
        self._started.clear()
        self._buffer.clear()
        return [Release(delivery, keep_order=True) for delivery in left]


class Loop(Protocol):
    """What a settle needs of a loop: the blocking one or that on asyncio."""

    def take_ahead(self) -> Delivery | None: ...

    def was_started(self, delivery: Delivery, result: SettleResult) -> None: ...

    def put_back(self, delivery: Delivery) -> None: ...


class HandedOut:
    """Which loop handed out a delivery, so that its settle can take along the start of the next."""

    def __init__(self) -> None:
        self._loops: dict[tuple[bytes, int], weakref.ref[Loop]] = {}

    def add(self, delivery: Delivery, loop: Loop) -> None:
        self._loops[delivery.raw_id, delivery.claim_id] = weakref.ref(loop)

    def starts_for(self, rows: Sequence[Row]) -> list[tuple[Loop, Delivery]]:
        """A delivery to start for each settled one that a loop handed out."""
        if not self._loops:
            return []
        starts: list[tuple[Loop, Delivery]] = []
        for row in rows:
            found = self._loops.pop((row.id, row.lease), None) if row.action < EXTEND else None
            loop = found() if found is not None else None
            if loop is None or len(rows) + len(starts) >= MAX_BATCH_MESSAGES:
                continue
            delivery = loop.take_ahead()
            if delivery is not None:
                starts.append((loop, delivery))
        return starts


def items_of(starts: Sequence[tuple[Loop, Delivery]]) -> list[Start]:
    return [Start(delivery) for _, delivery in starts]


def finish_starts(starts: Sequence[tuple[Loop, Delivery]], results: Sequence[SettleResult]) -> None:
    for (loop, delivery), result in zip(starts, results, strict=True):
        loop.was_started(delivery, result)


def undo_starts(starts: Sequence[tuple[Loop, Delivery]]) -> None:
    """Nobody knows whether they were started: to start one again does no harm."""
    for loop, delivery in reversed(starts):
        loop.put_back(delivery)


class LoopClaims:
    """The claims of one loop."""

    def __init__(
        self, queue: str | Sequence[str], max_per_stream: int, consumer: str, tokens: Tokens
    ) -> None:
        self._queue = queue if isinstance(queue, str) else list(queue)
        self._max_per_stream = max_per_stream
        self._consumer = consumer
        self._tokens = tokens

    def make(self, limit: int) -> Claim:
        return Claim(
            self._queue,
            limit,
            f"{LOOP_WAIT_MS}ms",
            self._consumer,
            self._max_per_stream,
            self._tokens.next(),
            started=False,
        )
