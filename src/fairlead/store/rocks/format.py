"""The directory's format number, in a small text file that is read before RocksDB touches anything."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fairlead.errors import FormatTooNew, InvalidRequest, StoreCorrupt
from fairlead.store.modes import DIRECTORY_MODE, open_private

FORMAT = 1
FORMAT_FILE = "FAIRLEAD_FORMAT"
_UNFINISHED = FORMAT_FILE + ".tmp"


def prepare_directory(path: Path) -> None:
    """Make a new data directory, or check that an existing one is ours and readable by this version."""
    try:
        if path.exists() and not path.is_dir():
            raise InvalidRequest("path", "a directory", str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    except OSError as trouble:
        raise InvalidRequest("path", f"a directory that is there or can be made ({trouble.strerror})", str(path)) from trouble
    if (path / FORMAT_FILE).exists():
        check_format(path)
    elif set(os.listdir(path)) <= {_UNFINISHED}:
        write_format(path)
    else:
        raise InvalidRequest("path", f"a new or empty directory, or one with a {FORMAT_FILE} file", str(path))


def check_format(path: Path) -> None:
    file = path / FORMAT_FILE
    if not file.exists():
        raise InvalidRequest("path", f"a data directory with a {FORMAT_FILE} file", str(path))
    text = file.read_bytes()[:64].strip()
    if not text.isdigit() or int(text) == 0:
        raise StoreCorrupt(str(file), f"expected a format number, got {text!r}")
    if int(text) > FORMAT:
        raise FormatTooNew(str(path), int(text), FORMAT)
    present = os.listdir(path)
    # RocksDB would take a directory without CURRENT for a new one, and start empty.
    if "CURRENT" not in present and any(map(_holds_data, present)):
        raise StoreCorrupt(str(path / "CURRENT"), "the file is missing")


def _holds_data(name: str) -> bool:
    """The first manifest alone does not: a database is made in the order manifest, CURRENT, first log."""
    return name.endswith((".sst", ".log")) or (name.startswith("MANIFEST-") and name != "MANIFEST-000001")


def mirror(path: Path, into: Path) -> None:
    """Links to every file. Opened read-only, rocksdict still rewrites its own small file, which must not happen in `path`."""
    for name in os.listdir(path):
        if name == "rocksdict-config.json":
            shutil.copyfile(path / name, into / name)
        elif not name.startswith("LOG"):
            os.symlink(path / name, into / name)


def write_format(path: Path) -> None:
    unfinished = path / _UNFINISHED
    with open(unfinished, "wb", opener=open_private) as file:
        file.write(f"{FORMAT}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path / FORMAT_FILE)
    sync_directory(path)


def sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
