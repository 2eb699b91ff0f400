"""A durable consumer of queue `q`, and the few sentences the tests say to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead import Complete, Extend, Fail, Release, Start
from fairlead.model.consumer import CloseResult, NumberedClaim
from fairlead.model.delivery import Delivery
from tests.integration.world import World

What = tuple[str, bytes, str | None, int, int, str]


class Reader:
    """`etl`, as a program would use it: it remembers its generation and asks for one claim after the other."""

    def __init__(self, world: World, name: str = "etl", queue: str = "q", **options: Any) -> None:
        self.world = world
        self.name = name
        self.queue = queue
        self.options = options
        self.register()

    def register(self) -> int:
        self.generation = self.world.broker.consumers.register(
            self.name, self.queue, **self.options
        ).generation
        return self.generation

    def claim(self, number: int, **options: Any) -> NumberedClaim:
        return self.world.broker.consumers.claim(self.name, self.queue, self.generation, number, **options)

    def read(self, number: int, **options: Any) -> list[Delivery]:
        return list(
            self.world.broker.consumers.read(self.name, self.queue, self.generation, number, **options)
        )

    def record(
        self,
        number: int,
        items: Sequence[Complete | Fail | Release | Extend | Start],
        part: str = "",
        **options: Any,
    ) -> None:
        self.world.broker.consumers.record(
            self.name, self.queue, self.generation, number, items, part=part, **options
        )

    def begin_slice(self, number: int, **options: Any) -> tuple[bool, int]:
        begun = self.world.broker.consumers.begin_slice(
            self.name, self.queue, self.generation, number, **options
        )
        return begun.again, begun.failed

    def turn_of(self, number: int, **options: Any) -> int:
        return self.world.broker.consumers.begin_slice(
            self.name, self.queue, self.generation, number, **options
        ).turn

    def choose(self, number: int, parts: Sequence[str], **options: Any) -> None:
        self.world.broker.consumers.choose(self.name, self.queue, self.generation, number, parts, **options)

    def close(self, number: int) -> CloseResult:
        return self.world.broker.consumers.close(self.name, self.queue, self.generation, number)

    def take(self, number: int, **options: Any) -> list[Delivery]:
        """Claim it and read all of it."""
        self.claim(number, **options)
        return self.read(number)


def shown(deliveries: Sequence[Delivery]) -> list[What]:
    """What a reader can tell of them."""
    return [(d.id, d.payload, d.stream, d.seq, d.deliveries, d.lease) for d in deliveries]


def payloads(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.payload for delivery in deliveries]
