from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


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
