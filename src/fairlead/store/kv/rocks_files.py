"""Files of a data directory beside the rows: format, lock and marks, census, checkpoints, names of damaged
files.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from fairlead.errors import FairleadError, StoreCorrupt
from fairlead.store.modes import DIRECTORY_MODE
from fairlead.store.rocks import faults
from fairlead.store.rocks.census import Census, examine, find_bad_checksum
from fairlead.store.rocks.format import (
    FORMAT_FILE,
    check_format,
    is_new,
    make_directory,
    mirror,
    sync_directory,
    write_format,
)
from fairlead.store.rocks.marks import Mark, Marks, read_mark, write_mark
from fairlead.store.rocks.private import find_refused_in

_log = logging.getLogger("fairlead.store")


def hold(path: Path) -> Marks:
    """Lock the directory, creating it if it is new. Nothing in it is changed before it is locked."""
    make_directory(path)
    if (path / FORMAT_FILE).exists():
        check_format(path)
    marks = Marks(path, create=is_new(path))
    try:
        # Checked again under the lock: another process may have created it in between.
        if is_new(path):
            marks.write_first()
            write_format(path)
        check_format(path)
    except BaseException:
        marks.forget()
        raise
    return marks


def take_census(path: Path) -> Census | None:
    """Prove that the files hold everything that was synced, and cut off writes that a crash left unfinished."""
    census = examine(path, read_mark(path))
    for cut in census.cuts if census else ():
        _log.warning(
            "dropped %d bytes at the end of %s: a write that a crash cut short, confirmed by no sync",
            cut.drop_bytes,
            cut.file,
        )
        cut.carry_out()
    return census


def mirror_unchanged(path: Path, into: Path) -> Census | None:
    """Links to all files in another directory, without unfinished writes; `path` is not changed."""
    census = examine(path, read_mark(path))
    mirror(path, into)
    for cut in census.cuts if census else ():
        cut.copy_into(into)
    return census


def make_copy(target: Path, create: Callable[[str], None]) -> None:
    """Let RocksDB create a checkpoint, give it its format and marks, sync it, and rename it last."""
    # RocksDB creates a directory that everybody may enter: nobody can reach it before its mode is set.
    private = target.with_name(f".{target.name}.fairlead-checkpoint")
    unfinished = private / target.name
    shutil.rmtree(private, ignore_errors=True)
    try:
        private.mkdir(mode=DIRECTORY_MODE)
        create(str(unfinished))
        unfinished.chmod(DIRECTORY_MODE)
        write_format(unfinished)
        _mark_copy(unfinished)
        os.replace(unfinished, target)
    finally:
        shutil.rmtree(private, ignore_errors=True)
    sync_directory(target.parent)


def _mark_copy(path: Path) -> None:
    """A checkpoint holds whole records only, and all of them count."""
    census = examine(path, Mark())
    if census is None or census.cuts:
        raise StoreCorrupt(str(path), "RocksDB made a checkpoint that is not whole")
    for name in os.listdir(path):
        with open(path / name, "rb") as file:
            os.fsync(file.fileno())
    write_mark(path, Mark(census.log, census.sequence, census.manifest, census.manifest_bytes))
    sync_directory(path)


def named_fault(trouble: BaseException, path: Path, table: str) -> FairleadError:
    """The error to raise for RocksDB's error. `table`: the place to name if no file can be named."""
    if isinstance(trouble, FairleadError):
        return trouble
    fault = faults.named(trouble, path, table)
    if not isinstance(fault, StoreCorrupt) or fault.where.endswith((".sst", ".log")):
        return fault
    # For some damaged tables RocksDB names no file, or the manifest that lists them.
    for file, why in find_refused_in(path).items():
        return StoreCorrupt(str(file), why)
    return fault


def named_open_fault(trouble: BaseException, path: Path) -> FairleadError:
    """The same for an opening, where a damaged log is possible and RocksDB does not name it."""
    fault = named_fault(trouble, path, str(path))
    if not isinstance(fault, StoreCorrupt) or fault.where != str(path):
        return fault
    if damage := find_bad_checksum(path):
        log, at = damage
        return StoreCorrupt(str(log), f"wrong checksum of the record at byte {at}; {trouble}")
    logs = ", ".join(sorted(log.name for log in path.glob("*.log")))
    return StoreCorrupt(str(path), f"{trouble}, in one of its logs ({logs})")
