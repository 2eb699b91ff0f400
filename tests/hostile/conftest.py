from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import fairlead
from fairlead.testing.server import ServerProcess, run_server

#: What a server logs when it met something that it should have refused in so many words.
UNFORESEEN = ("a way it should not", "unforeseen", "nobody foresaw", "could not be made", "Traceback")


@pytest.fixture(scope="package")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(
        tmp_path_factory.mktemp("hostile") / "data",
        grpc=True,
        http=True,
        settings={"durability": "os"},
    ) as server:
        with fairlead.connect(server.address) as client:
            client.create_queue("q")
        yield server


@pytest.fixture
def server(shared_server: ServerProcess) -> Iterator[ServerProcess]:
    """One for all tests, each of which must leave it well, with nothing stored and nothing in its log that
    nobody foresaw.
    """
    logged = len(shared_server.log)
    yield shared_server
    with urlopen(f"http://{shared_server.addresses['http']}/readyz", timeout=60) as ready:
        assert json.load(ready) == {"ready": True}
    with fairlead.connect(shared_server.address) as client:
        stats = client.stats("q")
        assert (stats.ready, stats.waiting, stats.leased, stats.dead) == (0, 0, 0, 0)
    complaints = [
        line for line in shared_server.log[logged:].splitlines() if any(words in line for words in UNFORESEEN)
    ]
    assert complaints == []


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """For a test that ends, pauses or fills it."""
    with run_server(tmp_path / "data", grpc=True, http=True, settings={"durability": "os"}) as server:
        with fairlead.connect(server.address) as client:
            client.create_queue("q")
        yield server


def usage(pid: int) -> dict[str, Any]:
    """What a process takes of the machine; `rss` and `peak` in MiB."""
    told = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return {
        "rss": int(told["VmRSS"].split()[0]) // 1024,
        "peak": int(told["VmHWM"].split()[0]) // 1024,
        "threads": int(told["Threads"]),
        "files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }
