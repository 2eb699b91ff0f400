from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead import Client
from tests.client.scene import Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


@pytest.fixture
def client(scene: Scene) -> Client:
    return scene.client()
