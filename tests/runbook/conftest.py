from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Commands

_IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """Where opening RocksDB is quick, if the machine has such a place."""
    if not _IN_MEMORY.is_dir() or shutil.disk_usage(_IN_MEMORY).free < 512 * 1024 * 1024:
        yield tmp_path / "data"
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-", dir=_IN_MEMORY) as path:
        yield Path(path) / "data"


@pytest.fixture
def cli(data: Path) -> Commands:
    return Commands(data)
