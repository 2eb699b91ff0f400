from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.store.laws import check_laws
from tests.conformance.scene import Factory, MemoryFactory, RocksFactory, Scene


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where the machine offers that: opening and closing sync a dozen files, hundreds of times
    over.
    """
    shared_memory = Path("/dev/shm")
    if not os.access(shared_memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-test-", dir=shared_memory) as made:
        yield Path(made)


@pytest.fixture(params=["memory", "rocks"])
def factory(request: pytest.FixtureRequest, directory: Path) -> Factory:
    return MemoryFactory() if request.param == "memory" else RocksFactory(directory)


@pytest.fixture
def rocks(directory: Path) -> RocksFactory:
    return RocksFactory(directory)


@pytest.fixture
def scene(factory: Factory) -> Iterator[Scene]:
    """A fresh store with its queues. Whatever a test does to it, the laws hold at the end."""
    scene = Scene(factory)
    scene.make_queues()
    yield scene
    try:
        assert check_laws(scene.store) == []
    finally:
        scene.store.close()


@pytest.fixture
def rocks_scene(rocks: RocksFactory) -> Iterator[Scene]:
    """For what only a store on disk can show."""
    scene = Scene(rocks)
    scene.make_queues()
    yield scene
    scene.store.close()
