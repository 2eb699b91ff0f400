from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.server.event_loop import EventLoop
from fairlead.server.http import HttpDoor
from fairlead.server.metrics import Metrics
from tests.integration.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A broker in memory, on a manual clock, with a queue `q`."""
    world = World("memory", tmp_path)
    world.broker.create_queue("q")
    yield world
    world.close()


@pytest.fixture
def metrics(world: World) -> Metrics:
    return Metrics(world.broker, clock=world.clock)


@pytest.fixture
def event_loop() -> Iterator[EventLoop]:
    event_loop = EventLoop()
    yield event_loop
    event_loop.stop()


@pytest.fixture
def door(world: World, metrics: Metrics, event_loop: EventLoop) -> Iterator[HttpDoor]:
    door = HttpDoor(world.broker, "127.0.0.1:0", metrics, event_loop)
    door.start()
    yield door
    door.stop()
