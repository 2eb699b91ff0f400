"""One door for the tests of a process, and a fresh queue for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead import Broker
from fairlead.config import LimitSettings
from fairlead.server.limits import Limits
from fairlead.server.resp.door import RespDoor
from fairlead.testing import open_in_memory
from fairlead.testing.faulty import FaultyStore, faulty_in_memory
from tests.doors.resp.wire import Wire

_numbers = itertools.count(1)


@contextmanager
def opened(broker: Broker, limits: LimitSettings | None = None, **options: Any) -> Iterator[RespDoor]:
    door = RespDoor(broker, "127.0.0.1:0", Limits(limits), **options)
    door.start()
    try:
        yield door
    finally:
        door.drain()
        broker.interrupt_waits()
        door.stop()
        broker.close()


@pytest.fixture(scope="session")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resp") / "fairlead.sock"


@pytest.fixture(scope="session")
def store() -> FaultyStore:
    return faulty_in_memory()


@pytest.fixture(scope="session")
def broker(store: FaultyStore) -> Broker:
    return Broker(store)


@pytest.fixture(scope="session")
def door(broker: Broker, socket_path: Path) -> Iterator[RespDoor]:
    with opened(broker, socket_path=str(socket_path)) as running:
        yield running


@pytest.fixture
def queue(broker: Broker) -> str:
    name = f"q{next(_numbers)}"
    broker.create_queue(name, visibility_timeout="1m")
    return name


@pytest.fixture
def wire(door: RespDoor) -> Iterator[Wire]:
    made = Wire(door.address)
    yield made
    made.close()


@contextmanager
def door_with(limits: LimitSettings) -> Iterator[tuple[Broker, RespDoor]]:
    """For tests of limits, which need a server of their own."""
    broker = open_in_memory()
    broker.create_queue("q")
    with opened(broker, limits) as running:
        yield broker, running
