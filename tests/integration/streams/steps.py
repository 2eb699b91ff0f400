"""The steps that tests of streams are made of."""

from __future__ import annotations

from typing import Any

from fairlead import NewMessage
from fairlead.model.delivery import Delivery
from tests.integration.world import World


def fill(world: World, *names: str, stream: str | None = "s", **options: Any) -> list[str]:
    """One message per name, in one call; the name is its payload."""
    return world.broker.enqueue_many(
        "q", [NewMessage(name.encode(), stream=stream, **options) for name in names]
    )


def claim(world: World, limit: int = 100, per_stream: int = 1, **options: Any) -> dict[str, Delivery]:
    """What one claim hands out now, by name and in the order it came."""
    return {
        delivery.payload.decode(): delivery
        for delivery in world.broker.claim("q", limit=limit, max_per_stream=per_stream, **options)
    }


def run(world: World, *names: str) -> list[Delivery]:
    """Enqueue these and claim them as one run."""
    fill(world, *names)
    held = claim(world, limit=len(names), per_stream=len(names))
    assert list(held) == list(names)
    return list(held.values())


def settle(world: World, *items: Any) -> list[tuple[str, str]]:
    return [(result.outcome, result.rule) for result in world.broker.settle(items)]
