from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead import Client
from fairlead.testing import ServerProcess, run_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with run_server(tmp_path / "data", settings={"durability": "os"}) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Of the test itself: puts messages in and looks at what became of them."""
    with fairlead.connect(server.address, retry_for="90s") as client:
        yield client
