"""The directory's format number, in a small text file that is read before RocksDB touches anything."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path

from fairlead.errors import FormatTooNew, FormatTooOld, InvalidRequest, StoreCorrupt
from fairlead.store.modes import DIRECTORY_MODE, open_private
from fairlead.store.rocks.marks import MARKS_FILE

FORMAT = 1
FORMAT_FILE = "FAIRLEAD_FORMAT"
#: Begins the file. Files from before the first release have no word before the number.
_WORD = b"fairlead "
_UNFINISHED = FORMAT_FILE + ".tmp"


def make_directory(path: Path) -> None:
    """Make the directory unless it exists."""
    try:
        if path.exists() and not path.is_dir():
            raise InvalidRequest("path", "a directory", str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    except OSError as trouble:
        raise InvalidRequest(
            "path", f"a directory that is there or can be made ({trouble.strerror})", str(path)
        ) from trouble


def is_new(path: Path) -> bool:
    """Whether a data directory can be created here. A directory that contains one, whole or damaged, or
    anything else, is not new.
    """
    present = set(os.listdir(path))
    if FORMAT_FILE in present:
        return False
    if present <= {_UNFINISHED, MARKS_FILE}:
        return True
    if MARKS_FILE in present:
        raise StoreCorrupt(str(path / FORMAT_FILE), "the file is missing")
    raise InvalidRequest("path", f"a new or empty directory, or one with a {FORMAT_FILE} file", str(path))


def check_format(path: Path) -> None:
    """Raises `InvalidRequest` for a directory that is not fairlead's, `FormatTooNew`, `FormatTooOld`,
    `StoreCorrupt`.
    """
    if not (path / FORMAT_FILE).exists() and (not path.is_dir() or is_new(path)):
        raise InvalidRequest("path", f"a data directory with a {FORMAT_FILE} file", str(path))
    found = read_format(path)
    if found > FORMAT:
        raise FormatTooNew(str(path), found, FORMAT)
    present = os.listdir(path)
    # RocksDB would take a directory without CURRENT for a new one, and start empty.
    if "CURRENT" not in present and any(map(_holds_data, present)):
        raise StoreCorrupt(str(path / "CURRENT"), "the file is missing")


def read_format(path: Path) -> int:
    """Raises `FormatTooOld`, `StoreCorrupt`."""
    file = path / FORMAT_FILE
    content = file.read_bytes()[:64]
    number = content.removeprefix(_WORD).partition(b" ")[0]
    if number.isdigit() and content == _content(b"", int(number)):
        raise FormatTooOld(str(path), FORMAT)
    if not number.isdigit() or content != _content(_WORD, int(number)):
        raise StoreCorrupt(str(file), f"expected a format number and its checksum, got {content!r}")
    return int(number)


def _content(word: bytes, number: int) -> bytes:
    """The checksum distinguishes a damaged number from a newer one."""
    told = b"%s%d" % (word, number)
    return b"%s %08x\n" % (told, zlib.crc32(told))


def _holds_data(name: str) -> bool:
    """The first manifest alone does not: a database is made in the order manifest, CURRENT, first log."""
    return name.endswith((".sst", ".log")) or (name.startswith("MANIFEST-") and name != "MANIFEST-000001")


def mirror(path: Path, into: Path) -> None:
    """Links to every file. Opened read-only, rocksdict still rewrites its own small file, which must not
    happen in `path`.
    """
    for name in os.listdir(path):
        if name == "rocksdict-config.json":
            shutil.copyfile(path / name, into / name)
        elif not name.startswith("LOG"):
            os.symlink(path / name, into / name)


def write_format(path: Path) -> None:
    unfinished = path / _UNFINISHED
    with open(unfinished, "wb", opener=open_private) as file:
        file.write(_content(_WORD, FORMAT))
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
