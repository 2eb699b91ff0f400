"""An external queue at a server with API keys: after `fairlead apply`, a worker needs no admin right."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead.testing import run_server
from fairlead.testing.server import ServerProcess
from tests.worker.test_command_line import fairlead_command

RUNBOOK = """
project = "shop"
[queue.issues]
type = "external"
list = ["cat", "open.json"]
take = ["mkdir", "taken-{id}"]
[pipeline.close]
steps = [{ name = "close", command = ["mkdir", "closed-{id}"] }]
[worker.closing]
queue = "issues"
pipeline = "close"
"""
GRANTS = ["consume:shop/*", "produce:shop/*"]


class Tracker:
    """Three issues, the second of which somebody else has taken, and a worker's API key."""

    def __init__(self, folder: Path, server: ServerProcess, data: Path) -> None:
        self.folder, self.data = folder, data
        self.client = fairlead.connect(server.address, api_key=(data / "bootstrap.key").read_text().strip())
        self.address = server.address
        (folder / "runbook.toml").write_text(RUNBOOK)
        (folder / "open.json").write_text(json.dumps([{"id": 1}, {"id": 2}, {"id": 3}]))
        (folder / "taken-2").mkdir()
        self.key = folder / "worker.key"
        with open(self.key, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(self.client.keys.create("worker", GRANTS).secret)

    def apply(self) -> object:
        root, file = str(self.data / "bootstrap.key"), str(self.folder / "runbook.toml")
        done = fairlead_command(
            "--addr", self.address, "--api-key-file", root, "-o", "json", "apply", "--yes", file
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def work(self) -> tuple[int, str, str]:
        file = str(self.folder / "runbook.toml")
        done = fairlead_command(
            "--addr",
            self.address,
            "--api-key-file",
            str(self.key),
            "-o",
            "json",
            "worker",
            "run",
            "--burst",
            "--file",
            file,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Tracker]:
    data = tmp_path / "data"
    (tmp_path / "issues").mkdir()
    with run_server(data, settings={"durability": "os", "auth.mode": "keys"}) as server:
        made = Tracker(tmp_path / "issues", server, data)
        yield made
        made.client.close()


def test_a_worker_without_admin_works_on_the_items_that_it_can_take(tracker: Tracker) -> None:
    tracker.apply()
    code, out, err = tracker.work()
    assert code == 0, err
    assert json.loads(out)["workers"][0]["completed"] == 2
    assert sorted(path.name for path in tracker.folder.glob("closed-*")) == ["closed-1", "closed-3"]
    stats = tracker.client.stats("shop/issues.taken")
    assert (stats.ready, stats.leased, stats.dead) == (0, 0, 0)


def test_without_an_apply_a_worker_without_admin_names_the_command_that_creates_the_queue(
    tracker: Tracker,
) -> None:
    code, _, err = tracker.work()
    assert code != 0
    assert "fairlead apply" in err
    assert list(tracker.folder.glob("closed-*")) == []
