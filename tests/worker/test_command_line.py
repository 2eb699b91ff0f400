"""`fairlead worker run` as a user of the shell sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead
from fairlead.testing import run_server
from tests.docs.pages import ROOT
from tests.worker.scene import PATIENCE_S, QUEUE, push, toml, until, worker_process
from tests.worker.steps import read_journal

NOTED = '{ name = "noted", run = "tests.worker.steps:noted" }'


def fairlead_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    return subprocess.run(
        [sys.executable, "-c", "from fairlead.cli import main; main()", *arguments],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "runbook.toml"
    file.write_text(toml(NOTED))
    return file


def test_a_burst_works_on_all_ready_messages_of_a_directory_and_reports_the_rest(
    file: Path, tmp_path: Path, journal: str
) -> None:
    data = str(tmp_path / "data")
    assert fairlead_command("--data", data, "apply", "--yes", str(file)).returncode == 0
    with fairlead.open(data) as broker:
        push(broker, {"n": 1, "journal": journal}, {"n": 2, "journal": journal})
        push(broker, {"n": 3, "journal": journal}, delay="1h")
    done = fairlead_command("--data", data, "worker", "run", "--burst")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "worker  queue  completed  failed  dead  released  lost",
        "worker  work           2       0     0         0     0",
        "left in work: 1 waiting",
    ]
    again = json.loads(
        fairlead_command("--data", data, "-o", "json", "worker", "run", "--burst", "worker").stdout
    )
    assert again["workers"][0]["completed"] == 0
    assert again["workers"][0]["left"] == {"ready": 0, "waiting": 1, "leased": 0}
    assert sorted(line["n"] for line in read_journal(journal) if line["word"] == "end") == [1, 2]


@pytest.mark.parametrize(
    ("runbook", "arguments", "code", "says"),
    [
        (toml(NOTED), ("wroker",), "worker_not_found", "it has worker"),
        (toml('{ name = "a", run = "tests.worker.steps:missing" }'), (), "step_not_loaded", "missing"),
    ],
)
def test_a_worker_that_cannot_run_reports_why_and_changes_no_message(
    runbook: str, arguments: tuple[str, ...], code: str, says: str, tmp_path: Path, journal: str
) -> None:
    (tmp_path / "runbook.toml").write_text(runbook)
    data = str(tmp_path / "data")
    with fairlead.open(data) as broker:
        broker.create_queue(QUEUE)
        push(broker, {"n": 1, "journal": journal})
    failed = fairlead_command(
        "--data", data, "-o", "json", "worker", "run", "--file", str(tmp_path / "runbook.toml"), *arguments
    )
    error = json.loads(failed.stdout.splitlines()[-1] if failed.stdout else failed.stderr.splitlines()[-1])[
        "error"
    ]
    assert error["code"] == code
    assert says in error["message"]
    assert failed.returncode > 2
    with fairlead.open(data) as broker:
        assert [message.attempts for message in broker.peek(QUEUE)] == [0]


def test_without_a_runbook_in_force_the_error_says_how_to_name_one(tmp_path: Path) -> None:
    with fairlead.open(tmp_path / "data"):
        pass
    failed = fairlead_command("--data", str(tmp_path / "data"), "worker", "run")
    assert failed.returncode == 4
    assert "--file" in failed.stderr


def test_watch_applies_the_file_and_its_changes_while_working(
    file: Path, tmp_path: Path, journal: str
) -> None:
    with (
        run_server(tmp_path / "data") as server,
        worker_process(server.address, file, "--watch") as worker,
        fairlead.connect(server.address) as client,
    ):
        until(lambda: any(queue.name == QUEUE for queue in client.queues(QUEUE)), "the queue to be made")
        push(client, {"n": 1, "journal": journal})
        until(lambda: len(read_journal(journal)) == 2, "the first item")
        file.write_text("this is no runbook")
        push(client, {"n": 2, "journal": journal})
        until(lambda: len(read_journal(journal)) == 4, "work to go on with the old runbook")
        changed = toml(NOTED, NOTED.replace("noted", "again", 1)).replace(
            'visibility_timeout = "1s"', 'visibility_timeout = "7s"'
        )
        file.write_text(changed)
        (info,) = until(
            lambda: [queue for queue in client.queues(QUEUE) if queue.config.visibility_timeout_ms == 7000],
            "the queue to change",
        )
        assert info.name == QUEUE
        worker_sees = iter(range(3, 1000))

        def both_steps() -> bool:
            push(client, {"n": next(worker_sees), "journal": journal})
            return any(line["step"] == "again" for line in read_journal(journal))

        until(both_steps, "the new step")
        worker.process.send_signal(signal.SIGINT)
        code, summary = worker.wait()
        assert code == 0
        assert summary["workers"][0]["completed"] >= 3


def test_watch_survives_a_file_that_is_empty_while_being_saved(
    file: Path, tmp_path: Path, journal: str
) -> None:
    whole = file.read_text()
    with (
        run_server(tmp_path / "data") as server,
        worker_process(server.address, file, "--watch") as worker,
        fairlead.connect(server.address) as client,
    ):
        until(lambda: "noted" in client.runbooks.list().get("", ""), "the file to be applied")
        file.write_text("")
        until(lambda: "noted" not in client.runbooks.list().get("", ""), "the empty file to be applied")
        file.write_text(whole)
        push(client, {"n": 1, "journal": journal})
        until(lambda: len(read_journal(journal)) == 2 or worker.process.poll() is not None, "the item")
        assert worker.stop()[0] == 0
    assert len(read_journal(journal)) == 2
