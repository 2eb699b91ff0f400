"""The last delivery of each message to each receiver, whose lease token the protocol does not carry.

A receiver is a connection of fila.v1, or a consumer of the Redis Streams commands.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from fairlead.model.delivery import Delivery
from fairlead.model.settle import LeaseRef

#: Deliveries that are remembered, and for how long after the end of their lease.
MAX_REMEMBERED = 100_000
KEEP_AFTER_LEASE_MS = 3_600_000


class _SentDelivery(NamedTuple):
    claim_id: int
    queue: str
    until_ms: int


class SentDeliveries:
    """Thread-safe, and bounded in number and age: the oldest entry is forgotten first.

    A delivery is remembered past its lease, because that is when the token is needed: to distinguish a late
    former holder from the current one. A forgotten delivery is settled by id alone.
    """

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._sent: OrderedDict[tuple[str, bytes], _SentDelivery] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return len(self._sent)

    def remember(self, receiver: str, delivery: Delivery, *, lease_end_ms: int, now_ms: int) -> None:
        """Both times are steady: a step of the wall clock makes nothing forgotten."""
        key = receiver, delivery.raw_id
        sent = _SentDelivery(delivery.claim_id, delivery.queue, lease_end_ms + KEEP_AFTER_LEASE_MS)
        with self._lock:
            self._sent[key] = sent
            self._sent.move_to_end(key)
            while self._sent and (
                len(self._sent) > self._most or next(iter(self._sent.values())).until_ms < now_ms
            ):
                self._sent.popitem(last=False)

    def find(self, receiver: str, queue: str, raw_id: bytes) -> LeaseRef | None:
        with self._lock:
            sent = self._sent.get((receiver, raw_id))
        return LeaseRef(raw_id, sent.claim_id) if sent is not None and sent.queue == queue else None

    def forget(self, receiver: str, raw_id: bytes) -> None:
        with self._lock:
            self._sent.pop((receiver, raw_id), None)
