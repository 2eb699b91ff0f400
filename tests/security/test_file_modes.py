"""What is on disk is its owner's alone, whatever the umask; and what was there before keeps the modes that
its owner gave it.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead import NewMessage
from fairlead.testing.server import run_server

HOOK = "function on_enqueue(msg) return { fairness_key = msg.headers.who } end"


@pytest.fixture(autouse=True)
def _anything_goes() -> Iterator[None]:
    """The worst umask there is; processes that are started have it too."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(directory: Path) -> list[str]:
    """What in it others may read, write or enter, by its own mode alone."""
    return [
        f"{path.name} {mode(path):04o}"
        for path in sorted(directory.rglob("*"))
        if not path.is_symlink() and mode(path) & 0o077
    ]


def command(*arguments: object) -> None:
    subprocess.run(
        [sys.executable, "-m", "fairlead.cli", *map(str, arguments)],
        check=True,
        capture_output=True,
        timeout=120,
    )


def fill(data: Path) -> None:
    with fairlead.open(data, durability="os") as broker:
        broker.create_queue("q")
        broker.enqueue_many("q", [NewMessage(b"secret" * 100)] * 100)


def test_a_broker_makes_a_directory_that_only_its_owner_can_enter(tmp_path: Path) -> None:
    data = tmp_path / "above" / "data"
    fill(data)
    assert mode(data) == 0o700
    assert mode(data / "FAIRLEAD_FORMAT") == 0o600


def test_a_server_leaves_no_file_that_others_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    data, backup = tmp_path / "data", tmp_path / "data.checkpoints" / "monday"
    with run_server(data, settings={"durability": "os", "auth.mode": "keys"}) as server:
        key = (data / "bootstrap.key").read_text().strip()
        with fairlead.connect(server.address, api_key=key) as client:
            client.create_queue("q", on_enqueue=HOOK)
            client.enqueue_many("q", [NewMessage(b"secret" * 100, headers={"who": "me"})] * 1000)
            client.checkpoint(backup)
            assert open_to_others(scratch) == []
        assert (mode(data), mode(data / "bootstrap.key")) == (0o700, 0o600)
        assert open_to_others(data) == []
        assert mode(backup) == 0o700
        assert open_to_others(backup) == []
        assert not (backup / "bootstrap.key").exists()
        assert "can read messages" not in server.log


def test_a_backup_is_its_owners_alone_also_when_it_is_made_in_process(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    with fairlead.open(tmp_path / "data") as broker:
        broker.checkpoint(tmp_path / "backup")
    assert mode(tmp_path / "backup") == 0o700
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "data"]
    assert fairlead.verify(tmp_path / "backup").ok


def test_a_restored_directory_is_its_owners_alone_whatever_became_of_the_backup(tmp_path: Path) -> None:
    fill(tmp_path / "backup")
    (tmp_path / "backup").chmod(0o755)
    command("--data", tmp_path / "restored", "restore", tmp_path / "backup")
    assert mode(tmp_path / "restored") == 0o700
    assert open_to_others(tmp_path / "restored") == []


def test_a_directory_that_was_there_keeps_its_mode_when_it_is_restored_to(tmp_path: Path) -> None:
    fill(tmp_path / "backup")
    (tmp_path / "restored").mkdir(mode=0o750)
    command("--data", tmp_path / "restored", "restore", tmp_path / "backup")
    assert mode(tmp_path / "restored") == 0o750


def test_a_server_warns_of_a_directory_that_others_can_read_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    with run_server(data, settings={"durability": "os"}) as server:
        assert server.stop() == 0
        assert "others on this machine can read messages" in server.log
    assert mode(data) == 0o755
    assert open_to_others(data) == []


def test_drained_messages_are_written_to_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    command("--data", tmp_path / "data", "queue", "drain", "q", "--to", tmp_path / "drained", "--yes")
    assert mode(tmp_path / "drained") == 0o600
