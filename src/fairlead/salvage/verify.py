"""Verify a data directory of whichever engine wrote it."""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.engine.verify import verify as verify_rows
from fairlead.errors import StoreCorrupt
from fairlead.store.kv.rocks_files import FORMAT
from fairlead.store.rocks.format import read_format
from fairlead.store.verify import VerifyReport
from fairlead.store.verify import verify as verify_old
from fairlead.which_engine import is_new_engine


def verify(path: str | os.PathLike[str]) -> VerifyReport:
    """Read all of a data directory that no broker has open, also one left by a crash: every checksum, every row,
    every law. Nothing in it is changed.

    Damage is reported, not raised. Raises `InvalidRequest` for a directory that is not ours, `FormatTooNew` and
    `FormatTooOld`.
    """
    if is_new_engine() or is_rows(Path(path)):
        return verify_rows(path)
    return verify_old(path)


def is_rows(path: Path) -> bool:
    """Whether the key-value store wrote the directory. Without a sound format file, the names of its column
    families tell, which stand in each manifest and option file.
    """
    try:
        return read_format(path) == FORMAT
    except (OSError, StoreCorrupt):
        named = [file.read_bytes() for file in [*path.glob("MANIFEST-*"), *path.glob("OPTIONS-*")]]
        return any(b"chunks" in content and b"stream_rows" not in content for content in named)
