"""A directory of the former engine: every command says why it is of no use, and what to do."""

from __future__ import annotations

import subprocess
import zlib
from pathlib import Path

import pytest

import fairlead
from tests.cli_views.conftest import COMMAND, Run

WORDS = ("from before the first release of fairlead", "begin with a new directory")


@pytest.fixture
def old(place: Path) -> Path:
    """Its format file has the number and a checksum, and no word before them."""
    fairlead.open(place / "old").close()
    (place / "old" / "FAIRLEAD_FORMAT").write_bytes(b"1 %08x\n" % zlib.crc32(b"1"))
    return place / "old"


@pytest.mark.parametrize(
    "command",
    [
        ("--data", "{old}", "queue", "list"),
        ("verify", "{old}"),
        ("repair", "{old}", "{new}"),
        ("--data", "{new}", "restore", "{old}"),
        ("--data", "{old}", "backup", "copy"),
    ],
    ids=lambda command: next(word for word in command if word.isalpha()),
)
def test_a_command_refuses_a_directory_of_the_former_engine(
    command: tuple[str, ...], run: Run, old: Path, place: Path
) -> None:
    words = [word.format(old=old, new=place / "new") for word in command]
    found = run(*words, code=6)
    assert all(said in found.stderr for said in WORDS)
    assert not (place / "new").exists()


def test_a_server_does_not_start_on_a_directory_of_the_former_engine(old: Path) -> None:
    doors = [part for door in ("resp", "flight", "grpc", "http") for part in (f"--{door}", "127.0.0.1:0")]
    found = subprocess.run(
        [*COMMAND, "--data", str(old), "serve", *doors], capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 6
    assert all(said in found.stderr for said in WORDS)


def test_the_doctor_finds_a_directory_of_the_former_engine(run: Run, old: Path) -> None:
    found = run("--data", old, "doctor", code=1)
    assert all(said in " ".join(found.stdout.split()) for said in WORDS)
