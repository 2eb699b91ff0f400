from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.scene import Scene


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """In a module that says `BOTH_PROTOCOLS`, each test runs with both clients unless it is `flight_only`."""
    if "scene" in metafunc.fixturenames and getattr(metafunc.module, "BOTH_PROTOCOLS", False):
        is_for_flight = getattr(metafunc.function, "is_flight_only", False)
        metafunc.parametrize("scene", ["flight"] if is_for_flight else ["flight", "resp"], indirect=True)


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(getattr(request, "param", "flight"))
    yield scene
    scene.close()


@pytest.fixture
def client(scene: Scene) -> Any:
    return scene.client()[0]
