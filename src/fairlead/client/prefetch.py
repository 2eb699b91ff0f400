"""What a loop was sent ahead, and its subscription, without I/O: which delivery is the next, and when to ask for more.

Deliveries in the buffer are not started: if this process dies, they count as not delivered. Before one is handed out its
start is confirmed. The start of the next one travels with the settle of one that was handed out, so a loop that settles
one message at a time needs one request for each. A loop that holds nothing is sent its next delivery as started.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from fairlead.client.calls import Tokens
from fairlead.client.commands import number_of
from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_BATCH_MESSAGES, MAX_CLAIM
from fairlead.model.settle import Release, SettleResult, Start
from fairlead.wire.settlement_rows import EXTEND, SettlementRow
from fairlead.wire.subscriptions import Cancel, Consume, Credit, read_push

#: A connection of a loop that waits, and that has said nothing for so long, is asked whether it is there.
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
        #: Of connections that are lost: the server gave it back, or does so when it notices.
        self._stale: list[Delivery] = []
        #: How many more the server may send.
        self._credit = 0

    @property
    def has_some(self) -> bool:
        return bool(self._buffer or self._started)

    @property
    def expects_some(self) -> bool:
        """Whether the server may send more."""
        return self._credit > 0

    def take_credit(self) -> int:
        """How many more the server may send from now on; 0 while half of the buffer is full or on its way."""
        count = len(self._buffer) + self._credit
        more = self._prefetch - count if count <= self._prefetch // 2 else 0
        self._credit += more
        return more

    def add(self, deliveries: Sequence[Delivery], started: Sequence[Delivery] = ()) -> None:
        self._credit -= len(deliveries) + len(started)
        self._started.extend(started)
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

    def lose(self) -> None:
        """The subscription is over. What was started stays."""
        self._credit = 0
        self._stale.extend(self._buffer)
        self._buffer.clear()

    @property
    def stale(self) -> list[Release]:
        """What must be let go of before the next subscription; then `forget_stale`."""
        return _releases(self._stale)

    def forget_stale(self) -> None:
        self._stale.clear()

    def take_all(self) -> list[Release]:
        """What to give back, in order."""
        left = [*self._stale, *self._started, *self._buffer]
        self._stale.clear()
        self._started.clear()
        self._buffer.clear()
        return _releases(left)


def _releases(deliveries: Sequence[Delivery]) -> list[Release]:
    return [Release(delivery, keep_order=True) for delivery in deliveries]


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

    def starts_for(self, rows: Sequence[SettlementRow]) -> list[tuple[Loop, Delivery]]:
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


class LoopSubscription:
    """The subscription of one loop, on one connection after the other."""

    def __init__(
        self,
        queue: str | Sequence[str],
        prefetched: Prefetched,
        *,
        max_per_stream: int,
        consumer: str,
        tokens: Tokens,
    ) -> None:
        queues = queue if isinstance(queue, str) else list(queue)
        self.request = Consume(queues, 1, consumer, max_per_stream, tokens.next())
        self._prefetched = prefetched
        #: On the connection, once it has begun.
        self._number: int | None = None
        #: The last delivery that the server started: after a connection was lost, it sends this again.
        self._last_started: tuple[bytes, int] | None = None

    def begin(self) -> Consume:
        """The request that begins it on a new connection, behind the release of what is stale."""
        self._prefetched.lose()
        self._number = None
        return replace(self.request, credit=self._prefetched.take_credit())

    def begun(self, reply: object) -> None:
        """Raises what the server raised."""
        self._number = number_of(self.request, reply)
        self._prefetched.forget_stale()

    def lose(self) -> None:
        """Its connection is lost, or it has ended."""
        self._number = None
        self._prefetched.lose()

    def hear(self, push: Sequence[Any]) -> tuple[Sequence[Delivery], int]:
        """What has come and is to be kept alive, with the clock of the server. Raises what ended the subscription."""
        pushed = read_push(push)
        if pushed.error is not None:
            raise pushed.error
        started = [one for one in pushed.deliveries[: pushed.started] if not self._is_known(one)]
        others = pushed.deliveries[pushed.started :]
        self._prefetched.add(others, started)
        return [*started, *others], pushed.now_ms

    def more(self) -> Credit | None:
        """What to ask for, if there is room."""
        if self._number is None:
            return None
        count = self._prefetched.take_credit()
        return Credit(self._number, count) if count else None

    def end(self) -> Cancel | None:
        return None if self._number is None else Cancel(self._number)

    def _is_known(self, delivery: Delivery) -> bool:
        key = delivery.raw_id, delivery.claim_id
        was_known, self._last_started = key == self._last_started, key
        return was_known
