"""`fairlead worker run` with a Spark worker, in a separate process: on this machine and on a cluster, stopped
by signals.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.processes import PATIENCE_S, Family, wait_until

if TYPE_CHECKING:
    from tests.spark.cluster import Cluster
    from tests.spark.worker.conftest import Project


class Command:
    def __init__(self, family: Family, name: str, project: Project, *options: str) -> None:
        self.family = family
        self.name = name
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
        self.process: subprocess.Popen[bytes] = family.start(
            name,
            [
                sys.executable,
                "-c",
                "from fairlead.cli import main; main()",
                "-o",
                "json",
                "--addr",
                project.server.address,
                "worker",
                "run",
                "clerk",
                "--file",
                str(project.file),
                *options,
            ],
            environment,
            cwd=project.folder.parent,
        )

    def end(self) -> dict[str, Any]:
        """The output of a command that must succeed, and leave no process."""
        code = self.process.wait(PATIENCE_S)
        assert code == 0, self.family.report()
        wait_until(
            lambda: not self.family.pids(),
            "everything that it started to be gone",
            explain=self.family.report,
        )
        (worker,) = json.loads((self.family.logs / f"{self.name}.out").read_text())["workers"]
        found: dict[str, Any] = worker
        return found

    @property
    def log(self) -> list[dict[str, Any]]:
        lines = (self.family.logs / f"{self.name}.err").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(tmp_path / "logs")
    yield made
    made.end()


def test_a_burst_on_this_machine_shows_what_it_did(project: Project, family: Family) -> None:
    project.write("check:noted", "book:fails")
    project.push(*({"n": n, "failures": 9 if n == 7 else n % 2} for n in range(40)))
    command = Command(family, "burst", project, "--burst", "--master", "local[2]")
    done = command.end()
    assert [done[name] for name in ("worker", "queue", "completed", "failed", "dead", "lost")] == [
        "clerk",
        project.queue,
        39,
        19 + 4,
        1,
        0,
    ]
    assert done["reasons"] == {"transport_unavailable": 19 + 5}
    assert done["left"] == {"ready": 0, "waiting": 0, "leased": 0}
    assert [line["count"] for line in command.log if line["event"] == "new dead letters"] == [1]
    # Spark itself prints nothing.
    assert [
        line for line in (family.logs / "burst.err").read_text().splitlines() if not line.startswith("{")
    ] == []


def test_a_signal_ends_it_when_the_job_is_done_and_the_next_run_goes_on(
    project: Project, family: Family
) -> None:
    gate = project.folder / "gate"
    project.write("book:noted")
    project.push({"n": 0, "gate": str(gate)}, *({"n": n} for n in range(1, 30)))
    command = Command(family, "first", project, "--master", "local[1]", "--max-messages", "10")
    wait_until(lambda: project.begun(0), "the first to begin", explain=family.report)
    command.process.send_signal(signal.SIGTERM)
    gate.touch()
    assert command.end()["completed"] == 10
    assert project.left == (20, 0, 0, 0)
    assert Command(family, "second", project, "--master", "local[1]", "--burst").end()["completed"] == 20
    assert [project.begun(n) for n in range(30)] == [1] * 30


def test_a_second_signal_gives_back_what_is_under_way(project: Project, family: Family) -> None:
    project.write("book:noted")
    project.push({"n": 0, "gate": str(project.folder / "never")})
    command = Command(family, "hurried", project, "--master", "local[1]")
    wait_until(lambda: project.begun(0), "the first to begin", explain=family.report)
    command.process.send_signal(signal.SIGINT)
    command.process.send_signal(signal.SIGTERM)
    done = command.end()
    assert (done["completed"], done["failed"], done["released"]) == (0, 0, 1)
    assert project.left == (1, 0, 0, 0)


def test_a_driver_that_is_killed_leaves_its_claim_to_the_next(project: Project, family: Family) -> None:
    project.write("check:noted", "book:noted")
    gate = project.folder / "gate"
    project.push(*({"n": n} for n in range(20)), {"n": 99, "gate": str(gate)})
    Command(family, "killed", project, "--master", "local[1]", "--concurrency", "2")
    wait_until(
        lambda: project.begun(99) and len(project.journal) == 81,
        "all but the held one to be done",
        explain=family.report,
    )
    family.kill()
    wait_until(lambda: not family.pids(), "everything to be gone")
    gate.touch()
    assert project.left == (0, 0, 21, 0)
    done = Command(family, "next", project, "--master", "local[1]", "--burst").end()
    assert (done["completed"], done["failed"]) == (21, 1)
    # Completed steps stay completed: only the step that was running begins again.
    assert [project.begun(n) for n in (*range(20), 99)] == [2] * 20 + [3]


def test_with_watch_a_changed_runbook_is_taken_up_between_claims(project: Project, family: Family) -> None:
    project.write("book:noted")
    project.push({"n": 0})
    command = Command(family, "watching", project, "--master", "local[1]", "--watch")
    wait_until(lambda: project.begun(0), "the first to begin", explain=family.report)
    project.file.write_text("this is no runbook")
    wait_until(
        lambda: any(line["level"] == "error" for line in command.log),
        "the mistake to be told",
        explain=family.report,
    )
    project.write("book:noted", "ship:noted")
    wait_until(
        lambda: "change" in [line.get("action") for line in command.log],
        "the change to be applied",
        explain=family.report,
    )
    numbers = iter(range(1, 10_000))

    def is_shipped() -> bool:
        project.push({"n": next(numbers)})
        return any(line["step"] == "ship" for line in project.journal)

    wait_until(is_shipped, "the new step to be run", explain=family.report)
    command.process.send_signal(signal.SIGTERM)
    command.end()


def test_on_a_cluster_the_steps_travel_with_the_worker(
    project: Project, family: Family, cluster: Cluster
) -> None:
    project.write("check:noted", "book:fails")
    project.push(*({"n": n, "failures": n % 3 == 0} for n in range(60)))
    done = Command(family, "far", project, "--master", cluster.url, "--burst").end()
    assert (done["completed"], done["failed"]) == (60, 20)
    # The steps wrote to the unpacked folder, not to their original one.
    assert project.journal == []
    lines = [
        line
        for file in cluster.family.logs.glob("worker-*/app-*/*/fairlead-steps-*/journal.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert sum(json.loads(line)["word"] == "begin" for line in lines) in (
        0,
        60 + 60 + 20,
    )  # 0: the cluster has removed the folder already
