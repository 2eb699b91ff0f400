"""Copy a backup to a data directory that gets its name only when the copy is complete and checked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from fairlead.cli.lock_holder import refuse_if_open
from fairlead.engine.verify import VerifyReport, verify
from fairlead.errors import InvalidRequest, StoreCorrupt, StoreFull
from fairlead.salvage.unfinished import UnfinishedDirectory, copy_file
from fairlead.store.rocks.format import sync_directory

#: RocksDB writes these files anew; they hold nothing about messages.
_LEFT_OUT = ("LOCK", "LOG")


def restore(
    backup: Path, into: Path, *, began: Callable[[str, int], None], copied: Callable[[int], None]
) -> VerifyReport:
    """Check the backup, copy it to a directory beside `into`, sync and check the copy, then rename it.

    When the process is killed, `into` is unchanged or complete; an incomplete copy stays beside it under a
    name that begins with a dot, and the next restore removes it. `began` receives each step with its number
    of bytes (0: unknown), `copied` the size of each further piece. Raises `InvalidRequest`, `StoreCorrupt`,
    `StoreFull`, `StoreLocked`.
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
    unfinished = UnfinishedDirectory(into, "restore", "--data")
    with unfinished.work_directory() as copy:
        began("copying", size)
        for file in files:
            copy_file(file, copy / file.name, file.stat().st_size, copied)
        if into.exists():
            # Keep the mode that the owner gave to the empty directory.
            shutil.copymode(into, copy)
        sync_directory(copy)
        began("checking the copy", 0)
        report = _check(copy)
        unfinished.finish(copy)
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
