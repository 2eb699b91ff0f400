"""Settings files and data directories that are none: refused in words before anything is started."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import fairlead
from fairlead.config.load import load_settings
from fairlead.errors import InvalidRequest, SettingInvalid, StoreFailed


def _looped(path: Path) -> Path:
    path.symlink_to(path.name)
    return path


def _written(content: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(content)
        return path

    return write


FILES: dict[str, Callable[[Path], Path]] = {
    "a directory": lambda path: path.parent,
    "nothing": lambda path: path,
    "a link to itself": _looped,
    "a device without end": lambda path: Path("/dev/zero"),
    "no text": _written(b"\xff\xfe\0"),
    "no TOML": _written(b"data data data"),
    "lists in lists": _written(b"data = " + b"[" * 5000 + b"]" * 5000),
    "too much": _written(b"# " + b"x" * 2_000_000),
    "a number beyond all": _written(b'data = "x"\n[limits]\nmax_calls = ' + b"9" * 100),
    "a name that fools": _written(b'data = "x"\n"\\u202ex\\u001b[2J" = 1\n'),
    "a table for a value": _written(b"[data]\nx = 1\n"),
}


@pytest.mark.parametrize("made", FILES.values(), ids=FILES.keys())
def test_a_settings_file_that_is_none_is_refused(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    with pytest.raises(SettingInvalid):
        load_settings(made(tmp_path / "fairlead.toml"), {}, {})


DIRECTORIES: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.touch(),
    "a link to nothing": lambda path: path.symlink_to("/nowhere/at/all"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "someone else's": lambda path: (path.mkdir(), (path / "notes").touch()),
    "a fake": lambda path: (path.mkdir(), (path / "CURRENT").write_bytes(b"\xff" * 100)),
}


@pytest.mark.parametrize("make", DIRECTORIES.values(), ids=DIRECTORIES.keys())
def test_a_data_directory_that_is_none_is_refused_and_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    path = tmp_path / "data"
    make(path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidRequest, match="path"):
        fairlead.open(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_data_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="can be made"):
        fairlead.open(tmp_path / "file" / "data")


def test_a_read_only_file_system_is_told_as_what_it_is(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "tmpfs", str(there)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("needs the right to mount")
    try:
        with fairlead.open(there / "data") as broker:
            broker.create_queue("q")
        subprocess.run(["mount", "-o", "remount,ro", str(there)], check=True)
        with pytest.raises(StoreFailed, match="Read-only file system"):
            fairlead.open(there / "data")
        with pytest.raises(InvalidRequest, match="Read-only file system"):
            fairlead.open(there / "new")
        assert fairlead.verify(there / "data").problems == []
    finally:
        subprocess.run(["umount", "-l", str(there)], check=True)
