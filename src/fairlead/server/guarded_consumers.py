"""`consumers.*` as one caller may use them.

A durable consumer belongs to its queue, not to the key that made it, because it outlives keys: if its name
were the key's own, a new key would not find what an old one holds. The rights on the queue are checked before
anything is looked up, so no answer depends on the consumers of queues that the caller does not see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from fairlead.broker.broker import Broker
from fairlead.model.access import Right
from fairlead.model.consumer import CloseResult, ConsumerInfo, NumberedClaim, TakenUp, Unspoken
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.limits import MAX_CLAIM
from fairlead.model.settle import Complete, Extend, Fail, Release, Start

if TYPE_CHECKING:
    from fairlead.server.guard import GuardedBroker


class GuardedConsumers:
    def __init__(self, guard: GuardedBroker, broker: Broker) -> None:
        self._guard = guard
        self._consumers = broker.consumers

    def register(
        self, name: str, queue: str, *, ttl: Duration = "7d", unspoken: Unspoken = "complete"
    ) -> ConsumerInfo:
        self._guard.need(Right.CONSUME, queue)
        return self._consumers.register(name, queue, ttl=ttl, unspoken=unspoken)

    def claim(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        limit: int = 10_000,
        max_bytes: int = 64 * 1024 * 1024,
        wait: Duration | None = None,
        up_to: int | None = None,
        max_per_stream: int = MAX_CLAIM,
    ) -> NumberedClaim:
        """A caller that lost its right meanwhile is not told what there is; the claim stays with its
        consumer, for whoever goes on.
        """
        self._guard.need(Right.CONSUME, queue)
        claimed = self._consumers.claim(
            name,
            queue,
            generation,
            number,
            limit=limit,
            max_bytes=max_bytes,
            wait=wait,
            up_to=up_to,
            max_per_stream=max_per_stream,
        )
        self._guard.need(Right.CONSUME, queue)
        return claimed

    def read(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        slice: int = 0,
        slices: int = 1,
        unsettled: bool = False,
    ) -> Iterator[Delivery]:
        return chain.from_iterable(
            self.read_pages(name, queue, generation, number, slice=slice, slices=slices, unsettled=unsettled)
        )

    def read_pages(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        slice: int = 0,
        slices: int = 1,
        unsettled: bool = False,
        after: bytes = b"",
    ) -> Iterator[Sequence[Delivery]]:
        """Before each page the right is asked for anew."""
        self._guard.need(Right.CONSUME, queue)
        pages = self._consumers.read_pages(
            name, queue, generation, number, slice=slice, slices=slices, unsettled=unsettled, after=after
        )
        return self._still_allowed(queue, pages)

    def record(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        items: Sequence[Complete | Fail | Release | Start | Extend],
        *,
        part: str = "",
    ) -> None:
        self._guard.need(Right.CONSUME, queue)
        self._consumers.record(name, queue, generation, number, items, part=part)

    def take_up(
        self, name: str, queue: str, generation: int, number: int, *, slice: int = 0, slices: int = 1
    ) -> TakenUp:
        self._guard.need(Right.CONSUME, queue)
        return self._consumers.take_up(name, queue, generation, number, slice=slice, slices=slices)

    def choose(
        self, name: str, queue: str, generation: int, number: int, parts: Sequence[str], *, add: bool = False
    ) -> None:
        self._guard.need(Right.CONSUME, queue)
        self._consumers.choose(name, queue, generation, number, parts, add=add)

    def close(self, name: str, queue: str, generation: int, up_to: int) -> CloseResult:
        self._guard.need(Right.CONSUME, queue)
        return self._consumers.close(name, queue, generation, up_to)

    def heartbeat(self, name: str, queue: str, generation: int) -> ConsumerInfo:
        self._guard.need(Right.CONSUME, queue)
        return self._consumers.heartbeat(name, queue, generation)

    def ceiling(self, name: str, queue: str, generation: int) -> int:
        self._guard.need(Right.CONSUME, queue)
        return self._consumers.ceiling(name, queue, generation)

    def release(self, name: str, queue: str) -> int:
        self._guard.need(Right.ADMIN, queue)
        with self._guard.writes_down("consumers.release", queue, consumer=name) as entry:
            entry.count = self._consumers.release(name, queue)
        return entry.count

    def drop(self, name: str, queue: str) -> None:
        self._guard.need(Right.ADMIN, queue)
        with self._guard.writes_down("consumers.drop", queue, consumer=name):
            self._consumers.drop(name, queue)

    def list(self) -> list[ConsumerInfo]:
        self._guard.grants()
        return [info for info in self._consumers.list() if self._guard.sees(info.queue)]

    def show(self, name: str, queue: str) -> ConsumerInfo:
        self._guard.need_some(queue)
        return self._consumers.show(name, queue)

    def _still_allowed(self, queue: str, pages: Iterator[Sequence[Delivery]]) -> Iterator[Sequence[Delivery]]:
        for page in pages:
            self._guard.need(Right.CONSUME, queue)
            yield page
