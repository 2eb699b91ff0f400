"""One fixture for all: a world on each store, and its laws checked when the test is over."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.world import World

_IN_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 512 * 1024 * 1024


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A directory that costs no disk, where the machine has one with room: opening RocksDB there is ten times
    faster.
    """
    if not _IN_MEMORY.is_dir() or shutil.disk_usage(_IN_MEMORY).free < _ROOM_BYTES:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-", dir=_IN_MEMORY) as path:
        yield Path(path)


@pytest.fixture(params=["memory", "rocks"])
def world(request: pytest.FixtureRequest, quick_path: Path) -> Iterator[World]:
    """With a queue `q`, retried at once and for ever, leases of 30 seconds."""
    world = World(request.param, quick_path)
    world.broker.create_queue("q")
    yield world
    world.close()


@pytest.fixture
def memory_world(tmp_path: Path) -> Iterator[World]:
    """For long runs, where the store makes no difference."""
    world = World("memory", tmp_path)
    world.broker.create_queue("q")
    yield world
    world.close()


@pytest.fixture
def disk_world(quick_path: Path) -> Iterator[World]:
    """For what only a directory has."""
    world = World("rocks", quick_path)
    world.broker.create_queue("q")
    yield world
    world.close()
