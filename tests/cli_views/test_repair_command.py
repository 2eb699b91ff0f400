"""`fairlead repair` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fairlead
from fairlead.errors import MessageNotFound
from tests.cli_views.conftest import Run


def damage(data: Path) -> None:
    """A wrong byte in the middle of the largest table of a closed directory."""
    table = max(data.glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)


def fill(data: Path) -> None:
    with fairlead.open(data, durability="os") as broker:
        broker.create_queue("bodies")
        for n in range(100):
            broker.enqueue("bodies", bytes([n]) * 4000)


def test_repair_lists_what_is_gone_and_says_so_by_its_exit_code(run: Run, data: Path, place: Path) -> None:
    fill(data)
    damage(data)
    found = run("repair", data, place / "new", code=13)
    assert "data lost" in found.stdout
    assert "a block has a wrong checksum" in found.stdout
    again = run("-o", "json", "repair", data, place / "other", code=13)
    report = json.loads(again.stdout)
    assert not report["ok"]
    with fairlead.open(place / "other", durability="os") as broker:
        ready = broker.stats("bodies").ready
        for gone in report["gone"]:
            with pytest.raises(MessageNotFound):
                broker.find(gone["id"])
    assert ready < 100
    counts = {queue["queue"]: (queue["counted"], queue["saved"]) for queue in report["queues"]}
    assert counts["bodies"] == (100, ready)
    # A small message is stored in one row with its id, so nothing is left to name it by.
    assert report["gone"] == []


def test_a_repair_that_fails_has_another_exit_code_and_leaves_no_directory(
    run: Run, data: Path, place: Path
) -> None:
    fill(data)
    damage(data)
    found = run("repair", data, place / "new", "--cut-unsynced", code=10)
    assert "corrupt" in found.stderr
    assert not (place / "new").exists()


def test_repair_of_a_sound_directory_says_that_all_is_there(run: Run, data: Path, place: Path) -> None:
    fill(data)
    assert "nothing lost" in run("repair", data, place / "new").stdout
    assert run("verify", place / "new").stdout.startswith("ok")


def test_repair_refuses_a_target_with_content(run: Run, data: Path, place: Path) -> None:
    fill(data)
    before = sorted(file.name for file in data.parent.iterdir())
    assert str(data.parent) in run("repair", data, data.parent, code=3).stderr
    assert sorted(file.name for file in data.parent.iterdir()) == before
