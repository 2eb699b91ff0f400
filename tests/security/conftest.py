from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from fairlead.testing import ServerProcess, run_server
from tests.cli.conftest import broker, cli, data  # noqa: F401 - fixtures for all here
from tests.security.certificates import EXPIRED, Files
from tests.security.scene import Scene, opened
from tests.security.servers import run_unchecked


class Park(NamedTuple):
    """One server of each kind, each with a queue `q`, and what clients may know of them."""

    ours: Files
    theirs: Files
    plain: ServerProcess
    tls: ServerProcess
    mutual: ServerProcess
    expired: ServerProcess


@pytest.fixture(scope="session")
def park(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Park]:
    root: Path = tmp_path_factory.mktemp("park")
    ours, theirs = Files(root / "ours"), Files(root / "theirs", "somebody else's authority")
    for files in (ours, theirs):
        files.server()
        files.client()
    ours.server("expired", **EXPIRED)
    ours.client("old", **EXPIRED)
    with ExitStack() as stack:

        def serve(name: str, **settings: object) -> ServerProcess:
            given = {"durability": "os", **settings}
            return stack.enter_context(run_server(root / name, grpc=True, http=True, settings=given))

        yield Park(
            ours,
            theirs,
            serve("plain"),
            serve("tls", **ours.settings()),
            serve("mutual", **ours.settings(mutual=True)),
            # A server refuses to start with it; time makes any certificate one.
            stack.enter_context(
                run_unchecked(root / "expired", ours.settings("expired") | {"durability": "os"})
            ),
        )


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Keys and rights with no door in between."""
    with opened() as made:
        yield made
