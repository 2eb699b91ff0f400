"""The parent of a worker that is killed: it has a server and a runbook, sends messages, starts one life after
the other, and settles the account.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fairlead
from fairlead.runbook.apply import apply_plan, plan_for
from fairlead.runbook.check import read_runbook
from fairlead.testing import run_server
from fairlead.testing.server import ServerProcess
from tests.crash.journal import read_journal
from tests.crash.pipeline.lives import PATIENCE_S, Command, Lives
from tests.crash.pipeline.switch import kill_marked

from .audit import check, look_inside
from .fates import QUEUE, WORKER, Sent, draw, write_runbook

_FAIRLEAD = (sys.executable, "-c", "from fairlead.cli import main; main()")


class Trial(Lives):
    """Made by `run_trial`. The steps write the ledger."""

    def __init__(
        self, home: Path, server: ServerProcess, command: Command, rng: random.Random, *, retain: bool
    ) -> None:
        super().__init__(home, server, command, home / "ledger.jsonl")
        self.sent: list[Sent] = []
        self.ids: dict[str, str] = {}
        self.retain = retain
        self._rng = rng
        self.ledger.touch()
        self.client = fairlead.connect(server.address, retry_for="60s")
        apply(self.client, runbook_of(home))

    def feed(self, count: int) -> None:
        """As many more, of all fates."""
        self.send(list(draw(self._rng, count, self.sent)))

    def send(self, messages: list[Sent]) -> None:
        ids = self.client.enqueue_many(QUEUE, [one.message(self.ledger) for one in messages])
        self.ids |= {one.tag: message_id for one, message_id in zip(messages, ids, strict=True)}
        self.sent += messages

    def end(self) -> int:
        """When nothing is left to do, the last life is told to stop, as an operator would."""
        self.wait_until_empty()
        assert self.driver is not None
        self.driver.send_signal(signal.SIGTERM)
        return self.wait()

    def wait_until_empty(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            stats = self.client.stats(QUEUE)
            if stats.ready + stats.waiting + stats.leased == 0:
                return
            assert self.driver is not None
            assert self.driver.poll() is None, (
                f"life {self.lives} ended with {self.driver.returncode} before its time:\n{self.said()}"
            )
            assert time.monotonic() < deadline, (
                f"life {self.lives} does not come to an end: {stats}\n{self.said()}"
            )
            time.sleep(0.05)

    def audit(self, *, kills: int = 0) -> list[str]:
        """Every breach of a rule. The server is stopped for it."""
        self.client.close()
        code = self.server.stop()
        lines = list(read_journal(self.ledger))
        problems = check(
            self.sent, lines, look_inside(self.server.data, self.ids), retained=self.retain, kills=kills
        )
        return (
            problems
            if code == 0
            else [f"the server stopped with {code}:\n{self.server.log[-3000:]}", *problems]
        )


def apply(client: fairlead.Client, file: Path) -> None:
    for _ in apply_plan(plan_for(client, read_runbook([file]).runbook), client):
        pass


def runbook_of(home: Path) -> Path:
    return home / "book" / "runbook.toml"


def local_worker(home: Path, address: str) -> list[str]:
    """`fairlead worker run`."""
    return [*_FAIRLEAD, "worker", "run", WORKER, "--addr", address, "--file", str(runbook_of(home))]


@contextmanager
def run_trial(home: Path, command: Command, *, seed: int = 0, retain: bool = True) -> Iterator[Trial]:
    """Whatever happens, neither server nor worker outlives it. What is completed is kept, or is gone, as
    `retain` says.
    """
    write_runbook(runbook_of(home).parent, retain=retain)
    trial = None
    with run_server(home / "data", settings={"durability": "os"}) as server:
        try:
            trial = Trial(home, server, command, random.Random(seed), retain=retain)
            yield trial
        finally:
            kill_marked(home)
            if trial is not None:
                trial.client.close()
                if trial.driver is not None:
                    trial.driver.wait()
