"""Files of a data directory besides the rows: format, lock and marks, census, checkpoints, names of damage."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from fairlead.errors import FairleadError, FormatTooNew, InvalidRequest, StoreCorrupt
from fairlead.store.modes import DIRECTORY_MODE, open_private
from fairlead.store.rocks import faults
from fairlead.store.rocks.census import Census, current_manifest, examine, find_bad_checksum
from fairlead.store.rocks.format import (
    FORMAT_FILE,
    is_new,
    make_directory,
    mirror,
    read_format,
    sync_directory,
)
from fairlead.store.rocks.manifest import Manifest, packed_manifest, read_manifest
from fairlead.store.rocks.marks import Mark, Marks, read_mark, write_mark

#: The number in the format file. 1 is the layout of the engine before the key-value port: that engine refuses
#: this number as too new, and this store refuses that one.
FORMAT = 2

_log = logging.getLogger("fairlead.store")


def hold(path: Path) -> Marks:
    """Lock the directory, after making it if it is new. Nothing in it is changed before it is locked."""
    make_directory(path)
    if (path / FORMAT_FILE).exists():
        check_format(path)
    marks = Marks(path, create=is_new(path))
    try:
        # Asked again under the lock: another process may have made it in between.
        if is_new(path):
            marks.write_first()
            write_format(path)
        check_format(path)
    except BaseException:
        marks.forget()
        raise
    return marks


def check_format(path: Path) -> None:
    """Raises `InvalidRequest` for a directory that is none of ours, `FormatTooNew`, `StoreCorrupt`."""
    file = path / FORMAT_FILE
    if not file.exists() and (not path.is_dir() or is_new(path)):
        raise InvalidRequest("path", f"a data directory with a {FORMAT_FILE} file", str(path))
    found = read_format(path)
    if found > FORMAT:
        raise FormatTooNew(str(path), found, FORMAT)
    if found < FORMAT:
        raise InvalidRequest(
            "path",
            f"a data directory of format {FORMAT}: this one has format {found}, which an earlier engine wrote, and"
            " there is no converter; open it with the version that wrote it, or begin with a new directory",
            str(file),
        )
    present = os.listdir(path)
    # RocksDB would take a directory without CURRENT for a new one, and start empty.
    if "CURRENT" not in present and any(map(_holds_data, present)):
        raise StoreCorrupt(str(path / "CURRENT"), "the file is missing")


def write_format(path: Path) -> None:
    unfinished = path / (FORMAT_FILE + ".tmp")
    with open(unfinished, "wb", opener=open_private) as file:
        file.write(b"%d %08x\n" % (FORMAT, zlib.crc32(b"%d" % FORMAT)))
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path / FORMAT_FILE)
    sync_directory(path)


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
    """Let RocksDB create a checkpoint, give it its format and marks, sync it, and only then its name."""
    # RocksDB makes a directory that everybody may enter: nobody can reach it before its mode is set.
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
    """The error to raise for what RocksDB said. `table`: the place to name when no file can be named."""
    if isinstance(trouble, FairleadError):
        return trouble
    fault = faults.named(trouble, path, table)
    if not isinstance(fault, StoreCorrupt) or fault.where.endswith((".sst", ".log")):
        return fault
    # Of some damaged tables RocksDB says nothing, or names the manifest that lists them.
    for file, why in find_damaged_tables(path).items():
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


def find_damaged_tables(path: Path) -> dict[Path, str]:
    """Table files that RocksDB refuses to open, and why. It does not always name them itself.

    Halves of the tables are opened as private databases of links, until each refused one is found. A store
    may have the directory open and may delete tables meanwhile.
    """
    try:
        manifest, _ = read_manifest(current_manifest(path, Mark())[0].read_bytes())
    except (OSError, StoreCorrupt):
        return {}
    files = {table: path / f"{table:06}.sst" for table in manifest.tables}
    present = {table: file for table, file in files.items() if file.exists()}
    with tempfile.TemporaryDirectory(prefix="fairlead-") as scratch:
        refused = _find_refused(Path(scratch), manifest, present)
    return {
        files[table]: why
        for table, why in sorted(refused.items())
        if why.startswith("Corruption") and files[table].exists()
    }


def _find_refused(scratch: Path, manifest: Manifest, tables: dict[int, Path]) -> dict[int, str]:
    if not tables:
        return {}
    try:
        _open_links(scratch, manifest, tables)
    except Exception as trouble:
        if len(tables) == 1:
            # Without the names of files: they are links in the scratch directory.
            why = str(trouble).partition(" in /")[0].partition("  The file ")[0]
            return dict.fromkeys(tables, why)
    else:
        return {}
    numbers = list(tables)
    middle = len(numbers) // 2
    refused: dict[int, str] = {}
    for half in (numbers[:middle], numbers[middle:]):
        refused |= _find_refused(scratch, manifest, {table: tables[table] for table in half})
    return refused


def _open_links(scratch: Path, manifest: Manifest, tables: dict[int, Path]) -> None:
    """Open and close these tables as a database of their own. Raises whatever RocksDB raises."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    for table, file in tables.items():
        os.symlink(file, folder / f"{table:06}.sst")
    sizes = {table: file.stat().st_size for table, file in tables.items()}
    (folder / "MANIFEST-000001").write_bytes(b"".join(packed_manifest(manifest, sizes)))
    (folder / "CURRENT").write_text("MANIFEST-000001\n")
    (folder / "rocksdict-config.json").write_text('{"raw_mode":true,"prefix_extractors":{}}')
    options = Options(raw_mode=True)
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(folder), options)}
    access = AccessType.read_only(False)
    Rdict(str(folder), options=options, column_families=families, access_type=access).close()


def _holds_data(name: str) -> bool:
    """The first manifest alone does not: a database is made in the order manifest, CURRENT, first log."""
    return name.endswith((".sst", ".log")) or (name.startswith("MANIFEST-") and name != "MANIFEST-000001")
