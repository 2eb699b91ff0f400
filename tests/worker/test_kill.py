"""Kill -9 of the worker in each step, of the broker between step and settle, and of both. The steps' journal
decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.runbook.apply import apply_plan, plan_for
from fairlead.runbook.check import read_runbook
from fairlead.testing import ServerProcess, run_server
from tests.worker.scene import QUEUE, push, toml, until, worker_process
from tests.worker.steps import read_journal

STEPS = ("first", "second", "third")
ITEMS = 6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with run_server(tmp_path / "data") as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "runbook.toml"
    file.write_text(
        toml(
            *(f'{{ name = "{name}", run = "tests.worker.steps:noted" }}' for name in STEPS),
            worker="concurrency = 1\nprefetch = 10",
        )
    )
    return file


class Story:
    """Items of which the third hangs in one step until a gate is opened."""

    def __init__(self, server: ServerProcess, file: Path, tmp_path: Path, holds: str) -> None:
        self.journal, self.gate = str(tmp_path / "journal.jsonl"), tmp_path / "gate"
        self.holds = holds
        with fairlead.connect(server.address) as client:
            for _ in apply_plan(plan_for(client, read_runbook([file]).runbook), client):
                pass
            hold = {"step": holds, "gate": str(self.gate)}
            push(
                client,
                *({"n": n, "journal": self.journal, "hold": hold if n == 2 else None} for n in range(ITEMS)),
            )

    def lines(self) -> list[dict[str, Any]]:
        return read_journal(self.journal)

    def wait_for_hold(self) -> None:
        until(
            lambda: any(
                (line["n"], line["step"], line["word"]) == (2, self.holds, "begin") for line in self.lines()
            ),
            "the step to begin",
        )

    def check(self, server: ServerProcess) -> None:
        """Every step ran at least once, no step ran again after the next one had begun, and no message is
        lost.
        """
        with fairlead.connect(server.address) as client:
            stats = client.stats(QUEUE)
            assert (stats.ready, stats.waiting, stats.leased, stats.dead) == (0, 0, 0, 0)
        for n in range(ITEMS):
            own = [(line["step"], line["word"]) for line in self.lines() if line["n"] == n]
            assert {name for name, word in own if word == "end"} == set(STEPS), f"item {n}: {own}"
            begun = [STEPS.index(name) for name, word in own if word == "begin"]
            assert begun == sorted(begun), f"item {n}: a confirmed step was run again: {own}"

    def punished(self) -> set[int]:
        return {line["n"] for line in self.lines() if line["attempts"]}


@pytest.mark.parametrize("holds", STEPS)
def test_a_killed_worker_loses_nothing_and_only_its_running_messages_lose_an_attempt(
    server: ServerProcess, file: Path, tmp_path: Path, holds: str
) -> None:
    story = Story(server, file, tmp_path, holds)
    with worker_process(server.address, file) as worker:
        story.wait_for_hold()
        with fairlead.connect(server.address) as client:
            until(lambda: client.stats(QUEUE).leased == ITEMS - 2, "the others to be fetched ahead")
        (line,) = [line for line in story.lines() if (line["n"], line["step"]) == (2, holds)]
        worker.kill()
        until(lambda: not Path(f"/proc/{line['pid']}").exists(), "the step's process to die with its worker")
    story.gate.touch()
    with fairlead.connect(server.address) as client:
        until(lambda: client.stats(QUEUE).leased == 0, "the leases to run out")
    with worker_process(server.address, file, "--burst") as worker:
        code, summary = worker.wait()
    assert code == 0
    assert summary["workers"][0]["completed"] == ITEMS - 2
    story.check(server)
    assert story.punished() <= {2}


@pytest.mark.parametrize("both", [False, True], ids=["broker", "broker and worker"])
def test_a_broker_killed_between_a_step_and_its_settle_loses_nothing(
    server: ServerProcess, file: Path, tmp_path: Path, both: bool
) -> None:
    story = Story(server, file, tmp_path, "second")
    with worker_process(server.address, file, "--concurrency", "2") as worker:
        story.wait_for_hold()
        until(
            lambda: (
                len([line for line in story.lines() if (line["step"], line["word"]) == ("third", "end")]) >= 2
            ),
            "the first two",
        )
        server.pause()
        story.gate.touch()
        until(
            lambda: any(
                (line["n"], line["step"], line["word"]) == (2, "second", "end") for line in story.lines()
            ),
            "the step to end",
        )
        server.kill()
        if both:
            worker.kill()
        server.restart()
        if not both:
            with fairlead.connect(server.address) as client:
                until(
                    lambda: client.stats(QUEUE).ready + client.stats(QUEUE).leased == 0,
                    "the worker to come back and finish",
                )
            code, _ = worker.stop()
            assert code == 0
    if both:
        with fairlead.connect(server.address) as client:
            until(lambda: client.stats(QUEUE).leased == 0, "the leases to run out")
        with worker_process(server.address, file, "--burst") as worker:
            assert worker.wait()[0] == 0
    story.check(server)


def test_a_stop_by_signal_finishes_running_steps_and_reports_the_counts(
    server: ServerProcess, file: Path, tmp_path: Path
) -> None:
    story = Story(server, file, tmp_path, "second")
    with worker_process(server.address, file) as worker:
        story.wait_for_hold()
        worker.process.terminate()
        with fairlead.connect(server.address) as client:
            until(lambda: client.stats(QUEUE).ready == ITEMS - 3, "those not begun to be given back")
        story.gate.touch()
        code, summary = worker.wait()
    assert code == 0
    assert json.dumps(summary)
    assert summary["workers"][0]["completed"] == 3
    assert summary["workers"][0]["released"] == ITEMS - 3
    with worker_process(server.address, file, "--burst") as worker:
        assert worker.wait()[1]["workers"][0]["completed"] == ITEMS - 3
    story.check(server)
    assert story.punished() == set()
