from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.store.kv.port import KeyValueStore
from tests.conformance.kv.backends import BACKENDS, Backend, RocksBackend, make_backend


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, directory: Path) -> Backend:
    return make_backend(request.param, directory)


@pytest.fixture
def store(backend: Backend) -> Iterator[KeyValueStore]:
    store = backend.open()
    yield store
    store.close()


@pytest.fixture
def rocks(directory: Path) -> RocksBackend:
    return RocksBackend(directory)
