"""A private database of some of a directory's tables: to find out which of them RocksDB refuses, and to read
around the damage.

RocksDB opens 16 tables at its start and the others at their first read, and does not always name the table
that it refuses. A private database opens all of its tables at its start. Nothing is written into the
directory that the tables belong to.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from fairlead.errors import StoreCorrupt
from fairlead.store.rocks.census import current_manifest
from fairlead.store.rocks.manifest import Manifest, packed_manifest, read_manifest
from fairlead.store.rocks.marks import Mark

_MANIFEST_NAME = "MANIFEST-000001"


def open_private(
    scratch: Path, manifest: Manifest, tables: Mapping[int, Path], logs: Iterable[Path] = ()
) -> Rdict:
    """Open these tables and logs for reading, in a new directory in `scratch`, with the column families that the
    manifest names. Raises what RocksDB raises.
    """
    folder = Path(tempfile.mkdtemp(dir=scratch))
    sizes = {table: file.stat().st_size for table, file in tables.items()}
    for table, file in tables.items():
        os.symlink(file, folder / f"{table:06}.sst")
    for log in logs:
        os.symlink(log, folder / log.name)
    with open(folder / _MANIFEST_NAME, "wb") as packed:
        packed.writelines(packed_manifest(manifest, sizes))
    (folder / "CURRENT").write_text(_MANIFEST_NAME + "\n")
    (folder / "rocksdict-config.json").write_text('{"raw_mode":true,"prefix_extractors":{}}')
    # These options open all tables at once, as RocksDB does by default.
    options = Options(raw_mode=True)
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(folder), options)}
    access = AccessType.read_only(False)
    return Rdict(str(folder), options=options, column_families=families, access_type=access)


def find_refused(scratch: Path, manifest: Manifest, tables: Mapping[int, Path]) -> dict[int, str]:
    """Tables that RocksDB refuses to open, and why."""
    if not tables:
        return {}
    try:
        open_private(scratch, manifest, tables).close()
    except Exception as trouble:
        if len(tables) == 1:
            return dict.fromkeys(tables, _reason(trouble))
    else:
        return {}
    numbers = list(tables)
    middle = len(numbers) // 2
    refused: dict[int, str] = {}
    for half in (numbers[:middle], numbers[middle:]):
        refused |= find_refused(scratch, manifest, {table: tables[table] for table in half})
    return refused


def find_refused_in(directory: Path) -> dict[Path, str]:
    """The damaged ones among the tables that a directory needs. A broker may have it open: it may delete
    tables meanwhile, and the process may have no file handles left.
    """
    try:
        manifest, _ = read_manifest(current_manifest(directory, Mark())[0].read_bytes())
    except (OSError, StoreCorrupt):
        return {}
    files = {table: directory / f"{table:06}.sst" for table in manifest.tables}
    with tempfile.TemporaryDirectory(prefix="fairlead-") as scratch:
        present = {table: file for table, file in files.items() if file.exists()}
        refused = find_refused(Path(scratch), manifest, present)
    return {
        files[table]: why
        for table, why in refused.items()
        if why.startswith("Corruption") and files[table].exists()
    }


def _reason(trouble: Exception) -> str:
    """Without the names of files: they are links in the scratch directory."""
    return str(trouble).partition(" in /")[0].partition("  The file ")[0]
