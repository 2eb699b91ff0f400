from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import Client
from tests.client.clients import KINDS
from tests.client.scene import Scene
from tests.client.two_clients import Site


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


@pytest.fixture
def client(scene: Scene) -> Client:
    return scene.client()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture
def socket_site(tmp_path: Path) -> Iterator[Site]:
    site = Site(socket_path=str(tmp_path / "door.sock"))
    yield site
    site.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found
