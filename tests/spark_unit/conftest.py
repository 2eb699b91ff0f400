"""A server for each module, for readers and writers without a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

import fairlead
from fairlead.spark.connection import forget_clients
from fairlead.testing import ServerProcess, run_server

_queues = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(tmp_path_factory.mktemp("server") / "data", settings={"durability": "os"}) as running:
        yield running
        forget_clients()


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[fairlead.Client]:
    with fairlead.connect(server.address) as connected:
        yield connected


@pytest.fixture
def queue(client: fairlead.Client) -> str:
    name = f"orders-{next(_queues)}"
    client.create_queue(name)
    return name
