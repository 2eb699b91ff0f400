"""The working directory of a repair: beside the final name, locked, and deleted afterwards unless it was
renamed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.errors import InvalidRequest
from fairlead.store.modes import DIRECTORY_MODE, open_private
from fairlead.store.rocks.format import sync_directory

_CHUNK = 1024 * 1024


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """An empty directory. Files that a killed repair left in it are deleted first."""
    folder = target.with_name(f".{target.name}.fairlead-repair")
    folder.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(handle, folder, target)
        for left_over in folder.iterdir():
            shutil.rmtree(left_over)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


def give_name(finished: Path, target: Path) -> None:
    """Rename the directory to its final name. It replaces an empty directory, and refuses one that is not
    empty any more.
    """
    try:
        os.rename(finished, target)
    except OSError as trouble:
        raise InvalidRequest(
            "new", "a directory that stays empty during the repair", f"{target} ({trouble.strerror})"
        ) from trouble
    sync_directory(target.parent)


def copy_file(source: Path, target: Path, size: int, copied: Callable[[int], None]) -> None:
    """Copy the first `size` bytes, and sync them."""
    with open(source, "rb") as reading, open(target, "xb", opener=open_private) as writing:
        while size and (chunk := reading.read(min(_CHUNK, size))):
            writing.write(chunk)
            size -= len(chunk)
            copied(len(chunk))
        writing.flush()
        os.fsync(writing.fileno())


def _lock(handle: int, folder: Path, target: Path) -> None:
    """Lock the directory. The lock ends with the process, so that the next repair can replace what a killed
    one left.
    """
    busy = InvalidRequest("new", "a directory that no other repair is writing", str(target))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise busy from None
    if not folder.is_dir() or not os.path.samestat(os.fstat(handle), os.stat(folder)):
        raise busy
