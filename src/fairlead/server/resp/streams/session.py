"""What a command knows of its connection and its door."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fairlead.engine.broker import Broker
from fairlead.errors import Unavailable
from fairlead.middleware.rights import Rights
from fairlead.model.delivery import Delivery
from fairlead.model.settle import LeaseRef
from fairlead.request import Caller
from fairlead.server.sent_deliveries import SentDeliveries

#: Names of consumers that are remembered for one connection.
_MAX_CONSUMERS = 16


class Shared:
    """What all connections of a door have in common."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sent = SentDeliveries()
        #: Queues into which a group comes right now.
        self.creating: set[str] = set()


class StreamsSession:
    """Of one connection, with the key that it has shown. It remembers as which consumers the connection has read."""

    def __init__(self, shared: Shared, caller: Caller) -> None:
        self.protocol = 2
        self.caller = caller
        self._shared = shared
        self._broker = shared.broker
        self._sent = shared.sent
        self._consumers: dict[str, None] = {}

    def now_ms(self) -> int:
        return self._broker.now_ms()

    def holder(self, consumer: str) -> str:
        """The name of the consumer as leases have it."""
        return Rights(self._broker, self.caller).scoped_consumer(consumer)

    def own_name(self, holder: str) -> str:
        """The consumer of a lease as the caller names it; consumers of other keys have the id of their key before it."""
        return holder.removeprefix(f"{self.caller.key_id}/")

    def remember(self, consumer: str, deliveries: Iterable[Delivery]) -> None:
        """These are about to be sent to the consumer."""
        holder = self._read_as(consumer)
        now_ms, steady_ms = self.now_ms(), self._broker.clock.monotonic_ms()
        for one in deliveries:
            lease_end_ms = steady_ms + one.lease_until - now_ms
            self._sent.remember(holder, one, lease_end_ms=lease_end_ms, now_ms=steady_ms)

    def find_lease(self, queue: str, raw_id: bytes, consumer: str | None = None) -> LeaseRef | None:
        """The last lease that was sent to this consumer, or to those as which the connection has read."""
        holders: Iterable[str] = self._consumers if consumer is None else [self.holder(consumer)]
        found = [self._sent.find(holder, queue, raw_id) for holder in holders]
        # Claims are numbered in their order.
        return max(
            [lease for lease in found if lease is not None], key=lambda one: one.claim_id, default=None
        )

    @contextmanager
    def creating(self, queue: str) -> Iterator[None]:
        """Two groups must not come into a queue at once."""
        names = self._shared.creating
        if queue in names:
            raise Unavailable(f"another XGROUP CREATE of queue {queue!r} is under way; send this one again")
        names.add(queue)
        try:
            yield
        finally:
            names.discard(queue)

    def _read_as(self, consumer: str) -> str:
        holder = self.holder(consumer)
        self._consumers.pop(holder, None)
        self._consumers[holder] = None
        if len(self._consumers) > _MAX_CONSUMERS:
            del self._consumers[next(iter(self._consumers))]
        return holder
