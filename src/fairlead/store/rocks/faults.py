"""Translates RocksDB's errors, which are one exception type with a text, into fairlead's errors."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from fairlead.errors import FairleadError, StoreCorrupt, StoreFailed, StoreFull, StoreLocked
from fairlead.store.rocks.private import find_refused_in
from fairlead.store.rocks.reserve import REOPEN_BYTES

_FILE = re.compile(r"\d{6,}\.(?:sst|log|blob)|MANIFEST-\d+|CURRENT|OPTIONS-\d+|rocksdict-config\.json")
#: How RocksDB names a table that is another file than its manifest describes.
_OTHER_TABLE = re.compile(r"unique ID on table file (\d+)")
#: The messages for damaged or missing files, beside "Corruption". A damaged CURRENT is reported as an invalid
#: argument.
_CORRUPT = (
    "Corruption",
    "checksum mismatch",
    "No such file",
    "does not exist",
    "bad record",
    "Invalid argument",
)


def is_full(trouble: BaseException) -> bool:
    return (
        "No space left" in str(trouble)
        or "Space limit reached" in str(trouble)
        or "Disk quota exceeded" in str(trouble)
    )


def is_refused_after_full(trouble: BaseException) -> bool:
    """Whether RocksDB refuses to sync a log whose last append failed. A sync that itself failed has another
    message.
    """
    return "Writer has previous error" in str(trouble) or "While appending" in str(trouble)


def named(trouble: BaseException, path: Path, family: str = "") -> FairleadError:
    """The error to raise for RocksDB's error. `family` is the table that was read if the text names no file."""
    # Words in the directory's own name prove nothing.
    text = str(trouble).replace(str(path), "")
    if is_full(trouble):
        return StoreFull(str(path), free_bytes(path), logs=log_bytes(path), request=REOPEN_BYTES)
    if "LOCK" in text and (
        "lock hold" in text
        or "lock file" in text
        or "No locks available" in text
        or "Resource temporarily" in text
    ):
        return StoreLocked(str(path))
    if any(word in text for word in _CORRUPT):
        return _corrupt(text, path, family)
    return StoreFailed(str(trouble))


def _corrupt(text: str, path: Path, family: str) -> StoreCorrupt:
    # RocksDB appends a remark about the manifest to its message about a table that it opens at its start.
    said, _, _ = text.partition("  The file ")
    if other := _OTHER_TABLE.search(said):
        return StoreCorrupt(str(path / f"{int(other[1]):06}.sst"), said)
    if file := _FILE.search(said):
        return StoreCorrupt(str(path / file[0]), said)
    if refused := find_refused_in(path):
        first, *others = sorted(refused)
        also = "".join(f"; also {other.name}: {refused[other]}" for other in others)
        return StoreCorrupt(str(first), refused[first] + also)
    if file := _FILE.search(text):
        return StoreCorrupt(str(path / file[0]), text)
    return StoreCorrupt(family or str(path), text)


def free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def log_bytes(path: Path) -> int:
    """The size of the logs: opening writes at most as much again, because it turns logs into tables."""
    size = 0
    for log in path.glob("*.log"):
        # RocksDB deletes logs in the background.
        with contextlib.suppress(FileNotFoundError):
            size += log.stat().st_size
    return size
