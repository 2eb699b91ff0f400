"""Turn a backup into a data directory: whole and checked under its name, or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.cli.lock_holder import refuse_if_open
from fairlead.engine.verify import VerifyReport, verify
from fairlead.errors import InvalidRequest, StoreCorrupt, StoreFull
from fairlead.store.modes import DIRECTORY_MODE, open_private
from fairlead.store.rocks.format import sync_directory

_CHUNK = 1024 * 1024
#: RocksDB makes these anew; they say nothing about messages.
_LEFT_OUT = ("LOCK", "LOG")


def restore(
    backup: Path, into: Path, *, began: Callable[[str, int], None], copied: Callable[[int], None]
) -> VerifyReport:
    """Check the backup, copy it beside `into`, sync and check the copy, then give it its name in one step.

    Killed at any moment, `into` is as it was, or complete; what the copy had come to lies beside it under a
    name with a dot, and the next restore clears it away. `began` is told what is done now and how many bytes
    that is (0: not known), `copied` each further piece. Raises `InvalidRequest`, `StoreCorrupt`, `StoreFull`,
    `StoreLocked`.
    """
    backup, into = backup.resolve(), into.resolve()
    _check_place(backup, into)
    refuse_if_open(backup)
    began("checking the backup", 0)
    _check(backup)
    files = [
        file for file in sorted(backup.iterdir()) if file.is_file() and not file.name.startswith(_LEFT_OUT)
    ]
    size = sum(file.stat().st_size for file in files)
    into.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(into.parent).free
    if free < size:
        raise StoreFull(str(into.parent), free, size)
    with _copy_beside(into) as copy:
        began("copying", size)
        for file in files:
            _copy(file, copy / file.name, copied)
        if into.exists():
            # Whoever made it decided who may enter.
            shutil.copymode(into, copy)
        sync_directory(copy)
        began("checking the copy", 0)
        report = _check(copy)
        try:
            # Takes the place of an empty directory too, and refuses one that is not empty any more.
            os.rename(copy, into)
        except OSError as trouble:
            raise InvalidRequest(
                "--data",
                "a directory that stays empty while it is restored to",
                f"{into} ({trouble.strerror})",
            ) from trouble
        sync_directory(into.parent)
    return report


def _check_place(backup: Path, into: Path) -> None:
    if into.exists() and not into.is_dir():
        raise InvalidRequest("--data", "a directory", str(into))
    if into.is_dir() and any(into.iterdir()):
        raise InvalidRequest("--data", "a new or empty directory", str(into))
    if os.path.ismount(into):
        raise InvalidRequest(
            "--data", "a directory that can be renamed, such as one below this mount point", str(into)
        )
    if into.is_relative_to(backup):
        raise InvalidRequest("--data", "a directory outside the backup", str(into))


def _check(directory: Path) -> VerifyReport:
    report = verify(directory)
    if not report.ok:
        more = f", and {len(report.problems) - 1} more problems" if len(report.problems) > 1 else ""
        raise StoreCorrupt(str(directory), report.problems[0] + more)
    return report


@contextmanager
def _copy_beside(into: Path) -> Iterator[Path]:
    """An empty directory for the copy, ours alone; gone afterwards unless it was renamed."""
    copy = into.with_name(f".{into.name}.fairlead-restore")
    copy.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    handle = os.open(copy, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(handle, copy, into)
        for left_over in copy.iterdir():
            left_over.unlink()
        try:
            yield copy
        finally:
            shutil.rmtree(copy, ignore_errors=True)
    finally:
        os.close(handle)


def _lock(handle: int, copy: Path, into: Path) -> None:
    """The lock goes with the process, so that what a killed one left behind can be taken over."""
    busy = InvalidRequest("--data", "a directory that no other restore is writing", str(into))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise busy from None
    if not copy.is_dir() or not os.path.samestat(os.fstat(handle), os.stat(copy)):
        raise busy


def _copy(source: Path, target: Path, copied: Callable[[int], None]) -> None:
    with open(source, "rb") as reading, open(target, "xb", opener=open_private) as writing:
        while chunk := reading.read(_CHUNK):
            writing.write(chunk)
            copied(len(chunk))
        writing.flush()
        os.fsync(writing.fileno())
