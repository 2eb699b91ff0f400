"""A server for all tests of the Spark worker, and a project for each, with a runbook file beside its steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.testing import ServerProcess, run_server

_numbers = count(1)

_STEPS = """
import json, os, time
from pathlib import Path


def note(item, word, step):
    line = json.dumps({"n": item["n"], "stream": item.get("stream"), "word": word, "step": step.name, "attempts": step.attempts, "pid": os.getpid()})
    out = os.open(Path(__file__).parent / "journal.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(out, line.encode() + b"\\n")
    os.close(out)


def noted(item, step):
    note(item, "begin", step)
    gate = item.get("gate")
    while gate and not os.path.exists(gate):
        time.sleep(0.01)
    note(item, "end", step)
    return item["n"]


def fails(item, step):
    note(item, "begin", step)
    if step.attempts < item.get("failures", 0):
        raise ConnectionError("not yet")
    if item.get("kills") and step.attempts == 0:
        os._exit(9)
    note(item, "end", step)
"""


class Project:
    """Worker `clerk` processes queue `orders`. Its steps record their calls in the folder that they were
    loaded from.
    """

    def __init__(self, folder: Path, server: ServerProcess, client: fairlead.Client) -> None:
        self.folder = folder
        self.server = server
        self.client = client
        self.name = f"shop{next(_numbers)}"
        self.queue = f"{self.name}/orders"
        self.file = folder / "runbook.toml"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "desk.py").write_text(_STEPS)

    def write(
        self, *steps: str, worker: str = "", retry: str = '{ policy = "immediate", attempts = 5 }'
    ) -> Path:
        """Steps as `name:function` of the module beside the runbook."""
        listed = ", ".join('{{ name = "{}", run = "desk:{}" }}'.format(*step.split(":")) for step in steps)
        self.file.write_text(
            f'project = "{self.name}"\n[queue.orders]\ntype = "persisted"\nvars = ["n"]\nretry = {retry}\nretry_in_stream = {retry}\n'
            f'[pipeline.work]\nsteps = [{listed}]\n[worker.clerk]\nqueue = "orders"\npipeline = "work"\nengine = "spark"\n{worker}\n'
        )
        if self.queue not in [queue.name for queue in self.client.queues()]:
            again = {"policy": "immediate", "attempts": 5}
            self.client.create_queue(self.queue, retry=again, retry_in_stream=again)
        return self.file

    def push(self, *items: dict[str, Any]) -> None:
        messages = [
            fairlead.NewMessage(json.dumps(item).encode(), stream=item.get("stream")) for item in items
        ]
        for at in range(0, len(messages), 5000):
            self.client.enqueue_many(self.queue, messages[at : at + 5000])

    @property
    def journal(self) -> list[dict[str, Any]]:
        file = self.folder / "journal.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def begun(self, n: int) -> int:
        return sum(line["n"] == n and line["word"] == "begin" for line in self.journal)

    @property
    def left(self) -> tuple[int, int, int, int]:
        """Counts of ready, waiting, leased and dead messages."""
        stats = self.client.stats(self.queue)
        return stats.ready, stats.waiting, stats.leased, stats.dead


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(tmp_path_factory.mktemp("server") / "data", settings={"durability": "os"}) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[fairlead.Client]:
    with fairlead.connect(server.address) as connected:
        yield connected


@pytest.fixture
def project(server: ServerProcess, client: fairlead.Client, tmp_path: Path) -> Project:
    return Project(tmp_path / "project", server, client)
