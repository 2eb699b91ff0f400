"""The deliveries that a loop received ahead, and its subscription, without I/O: which delivery is next, and
when to ask for more.

Deliveries in the buffer are not started: if this process dies, they count as not delivered. A delivery is
handed out only after its start is confirmed. The start of the next delivery travels with the settle of one
that was handed out, so a loop that settles one message at a time needs one request per message. A loop that
holds nothing receives its next delivery as started.
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

#: How long a waiting loop's connection may be silent before the client checks that it is alive.
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
        #: From lost connections: the server took them back, or does so when it notices the loss.
        self._stale: list[Delivery] = []
        #: How many more deliveries the server may send.
        self._credit = 0

    @property
    def has_some(self) -> bool:
        return bool(self._buffer or self._started)

    @property
    def expects_some(self) -> bool:
        """Whether the server may send more."""
        return self._credit > 0

    def take_credit(self) -> int:
        """How many more deliveries the server may send from now on; 0 while half of the buffer is full or on
        its way.
        """
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
        """A delivery to start ahead of demand; None while a started one is there."""
        return None if self._started else self.next_to_start()

    def was_started(self, delivery: Delivery, result: SettleResult) -> None:
        if result.ok:
            self._started.append(delivery)

    def put_back(self, delivery: Delivery) -> None:
        self._buffer.appendleft(delivery)

    def lose(self) -> None:
        """The subscription has ended. Started deliveries stay."""
        self._credit = 0
        self._stale.extend(self._buffer)
        self._buffer.clear()

    @property
    def stale(self) -> list[Release]:
        """The releases to send before the next subscription; then call `forget_stale`."""
        return _releases(self._stale)

    def forget_stale(self) -> None:
        self._stale.clear()

    def take_all(self) -> list[Release]:
        """The releases of all deliveries, in order."""
        left = [*self._stale, *self._started, *self._buffer]
        self._stale.clear()
        self._started.clear()
        self._buffer.clear()
        return _releases(left)


def _releases(deliveries: Sequence[Delivery]) -> list[Release]:
    return [Release(delivery, keep_order=True) for delivery in deliveries]


class Loop(Protocol):
    """The part of a loop, blocking or asyncio, that a settle needs."""

    def take_ahead(self) -> Delivery | None: ...

    def was_started(self, delivery: Delivery, result: SettleResult) -> None: ...

    def put_back(self, delivery: Delivery) -> None: ...


class HandedOut:
    """Remembers which loop handed out a delivery, so that the next start can travel with its settle."""

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
    """Put the deliveries back. They may have been started; starting one again is harmless."""
    for loop, delivery in reversed(starts):
        loop.put_back(delivery)


class LoopSubscription:
    """The subscription of one loop, on one connection after another."""

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
        #: The subscription's number on its connection, once it has begun.
        self._number: int | None = None
        #: The last delivery that the server started. The server sends it again after a lost connection.
        self._last_started: tuple[bytes, int] | None = None

    def begin(self) -> Consume:
        """The request that begins the subscription on a new connection. It follows the release of stale
        deliveries.
        """
        self._prefetched.lose()
        self._number = None
        return replace(self.request, credit=self._prefetched.take_credit())

    def begun(self, reply: object) -> None:
        """Take the reply. Raises the server's error."""
        self._number = number_of(self.request, reply)
        self._prefetched.forget_stale()

    def lose(self) -> None:
        """The connection is lost, or the subscription has ended."""
        self._number = None
        self._prefetched.lose()

    def hear(self, push: Sequence[Any]) -> tuple[Sequence[Delivery], int]:
        """The new deliveries, whose leases must be extended, and the server's clock. Raises the error that
        ended the subscription.
        """
        pushed = read_push(push)
        if pushed.error is not None:
            raise pushed.error
        started = [one for one in pushed.deliveries[: pushed.started] if not self._is_known(one)]
        others = pushed.deliveries[pushed.started :]
        self._prefetched.add(others, started)
        return [*started, *others], pushed.now_ms

    def more(self) -> Credit | None:
        """The credit to send, if there is room."""
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
