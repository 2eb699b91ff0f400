"""Workers that are to run on Spark, up to the start of a JVM: the choice of the engine, and what is refused."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
import fairlead.spark
from fairlead.errors import EngineNotInstalled, InvalidRequest, QueueNotFound, RunbookNotFound, WorkerNotFound
from fairlead.runbook.check import check_text
from fairlead.runbook.model import QueueSpec
from fairlead.spark.worker import run_worker as spark_worker
from fairlead.spark.worker.loop import WorkerSummary
from fairlead.testing import ServerProcess, run_server
from tests.docs.pages import ROOT
from tests.worker.scene import QUEUE, push, runbook, step, toml
from tests.worker.steps import read_journal
from tests.worker.test_command_line import NOTED, fairlead_command

ON_SPARK = 'engine = "spark"'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(tmp_path_factory.mktemp("server") / "data", settings={"durability": "os"}) as running:
        with fairlead.connect(running.address) as client:
            client.create_queue(QUEUE)
        yield running


@pytest.fixture(autouse=True)
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError("a session was about to be started")

    monkeypatch.setattr(spark_worker, "_session", refused)


def run_worker(server: ServerProcess, name: str = "worker", **options: Any) -> Any:
    return fairlead.spark.run_worker(name, endpoint=server.address, stop=threading.Event(), **options)


def test_a_data_directory_cannot_serve_spark(tmp_path: Path, journal: str) -> None:
    (tmp_path / "runbook.toml").write_text(toml(NOTED, worker=ON_SPARK))
    with fairlead.open(tmp_path / "data") as broker:
        broker.create_queue(QUEUE)
    failed = fairlead_command(
        "--data", str(tmp_path / "data"), "worker", "run", "--file", str(tmp_path / "runbook.toml")
    )
    assert failed.returncode == 2
    assert "expected a server, with --addr" in failed.stderr


def test_a_worker_on_spark_runs_alone(tmp_path: Path, server: ServerProcess) -> None:
    second = f'[worker.second]\nqueue = "{QUEUE}"\npipeline = "pipeline"\n{ON_SPARK}'
    (tmp_path / "runbook.toml").write_text(toml(NOTED) + second)
    failed = fairlead_command(
        "--addr", server.address, "worker", "run", "--file", str(tmp_path / "runbook.toml")
    )
    assert failed.returncode == 2
    assert "fairlead worker run second" in failed.stderr


def test_the_option_engine_local_overrides_the_runbook(tmp_path: Path, journal: str) -> None:
    (tmp_path / "runbook.toml").write_text(toml(NOTED, worker=ON_SPARK))
    data = str(tmp_path / "data")
    with fairlead.open(data) as broker:
        broker.create_queue(QUEUE)
        push(broker, {"n": 1, "journal": journal})
    done = fairlead_command(
        "--data",
        data,
        "-o",
        "json",
        "worker",
        "run",
        "--burst",
        "--engine",
        "local",
        "--file",
        str(tmp_path / "runbook.toml"),
    )
    assert json.loads(done.stdout)["workers"][0]["completed"] == 1, done.stderr
    assert len(read_journal(journal)) == 2


def test_mistakes_are_reported_before_spark_starts(server: ServerProcess, tmp_path: Path) -> None:
    book = runbook(step("nothing"))
    with pytest.raises(WorkerNotFound, match="it has worker"):
        run_worker(server, "wroker", runbook=book)
    with pytest.raises(QueueNotFound) as missing:
        run_worker(server, runbook=check_text(toml(NOTED), "toml", project="nobody").runbook)
    assert "fairlead apply" in "".join(missing.value.__notes__)
    with pytest.raises(RunbookNotFound):
        run_worker(server, project="nobody")
    with pytest.raises(InvalidRequest, match="max_messages"):
        run_worker(server, runbook=book, max_messages=0)
    with pytest.raises(InvalidRequest, match="slices"):
        run_worker(server, runbook=book, slices=0)
    with pytest.raises(InvalidRequest, match="api_key_env"):
        run_worker(server, runbook=book, api_key="secret")
    with pytest.raises(AssertionError, match="about to be started"):
        run_worker(server, runbook=book)


def test_an_external_queue_needs_the_local_engine(server: ServerProcess) -> None:
    book = runbook(step("nothing"))
    book.queues[QUEUE] = QueueSpec(QUEUE, "external", list=("ls",), take=("cat",))
    with pytest.raises(InvalidRequest, match='"local" for an external queue'):
        run_worker(server, runbook=book)


def test_without_pyspark_the_error_says_what_to_install(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_worker, "found_version", lambda package: None)
    with pytest.raises(EngineNotInstalled, match=r"fairlead\[spark\]"):
        run_worker(server, runbook=runbook(step("nothing")))


def test_consumers_are_named_after_their_worker() -> None:
    assert spark_worker.consumer_name("shop", "clerk") == "worker:shop/clerk"
    assert spark_worker.consumer_name(None, "clerk") == "worker:clerk"


def test_the_reference_names_every_parameter_and_every_count() -> None:
    page = (ROOT / "docs/reference/spark.md").read_text()
    rows = " ".join(
        line.split("|")[1] for line in page.partition("## The worker")[2].splitlines() if line.startswith("|")
    )
    named = set(re.findall(r"`(\w+)`", rows))
    parameters = set(inspect.signature(fairlead.spark.run_worker).parameters) - {"connection"}
    counts = {field.name for field in dataclasses.fields(WorkerSummary)}
    assert named == parameters | counts | set(spark_worker._CONNECTION)
