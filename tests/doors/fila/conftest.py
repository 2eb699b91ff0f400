from __future__ import annotations

import itertools
from collections.abc import Iterator

import fila
import pytest

from tests.doors.fila.servers import Admin, Server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One process for all tests that do not end it; each test has queues of its own."""
    running = Server(tmp_path_factory.mktemp("fila"))
    yield running
    assert running.stop() == 0


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    admin = Admin(server.address)
    yield admin
    admin.channel.close()


@pytest.fixture
def client(server: Server) -> Iterator[fila.Client]:
    with fila.Client(server.address) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A queue name that no other test has."""
    return f"queue-{next(_numbers)}"
