"""What a command needs from its connection and its door."""

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

#: The number of consumer names that are remembered for one connection.
_MAX_CONSUMERS = 16


class Shared:
    """State that all connections of a door share."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sent = SentDeliveries()
        #: Queues for which a group is being created.
        self.creating: set[str] = set()


class StreamsSession:
    """State of one connection under its current key. Remembers the consumers as which the connection has
    read.
    """

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
        """The consumer's name as stored in leases."""
        return Rights(self._broker, self.caller).scoped_consumer(consumer)

    def own_name(self, holder: str) -> str:
        """The name of the consumer of a lease, as the caller writes it. Names of consumers of other keys keep
        the id of their key as a prefix.
        """
        return holder.removeprefix(f"{self.caller.key_id}/")

    def remember(self, consumer: str, deliveries: Iterable[Delivery]) -> None:
        """Record deliveries that are about to be sent to the consumer."""
        holder = self._read_as(consumer)
        now_ms, steady_ms = self.now_ms(), self._broker.clock.monotonic_ms()
        for one in deliveries:
            lease_end_ms = steady_ms + one.lease_until - now_ms
            self._sent.remember(holder, one, lease_end_ms=lease_end_ms, now_ms=steady_ms)

    def find_lease(self, queue: str, raw_id: bytes, consumer: str | None = None) -> LeaseRef | None:
        """The last lease that was sent to this consumer or, without `consumer`, to any consumer as which the
        connection has read.
        """
        holders: Iterable[str] = self._consumers if consumer is None else [self.holder(consumer)]
        found = [self._sent.find(holder, queue, raw_id) for holder in holders]
        # A later claim has a higher number.
        return max(
            [lease for lease in found if lease is not None], key=lambda one: one.claim_id, default=None
        )

    @contextmanager
    def creating(self, queue: str) -> Iterator[None]:
        """Prevents that two groups are created for a queue at once."""
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
