"""The same commands against a server in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import fairlead
from fairlead import Complete, NewMessage
from tests.cli_views.conftest import COMMAND, Run
from tests.cli_views.terminal import Terminal


class Serving(NamedTuple):
    process: subprocess.Popen[str]
    resp: str
    flight: str
    grpc: str
    http: str


@pytest.fixture
def serving(data: Path) -> Iterator[Serving]:
    command = [*COMMAND, "serve", "--data", str(data), "-o", "json"]
    doors = [part for door in ("resp", "flight", "grpc", "http") for part in (f"--{door}", "127.0.0.1:0")]
    with subprocess.Popen(
        [*command, *doors], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield Serving(process, **json.loads(process.stdout.readline())["addresses"])
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(60)


def test_every_view_works_through_a_server(run: Run, serving: Serving, place: Path) -> None:
    at = ("--addr", serving.resp)
    emails, orders = json.loads(run(*at, "stats", "--keys", "-o", "json").stdout)["queues"]
    assert (emails["ready"], emails["waiting"], emails["dead"], len(emails["shares"])) == (32, 4, 1, 2)
    assert json.loads(run(*at, "failures", "emails", "-o", "json").stdout)["by_reason"] == {
        "transport_unavailable": 4
    }
    assert orders["queue"] == "orders"
    found = json.loads(run(*at, "top", "--once", "--interval", "10ms", "-o", "json").stdout)
    assert (found["selected"], found["failures"]["scheduled"]) == ("emails", 4)
    run(*at, "stats", "emials", code=4)


def test_a_server_writes_a_backup_that_can_be_verified_and_restored(
    run: Run, serving: Serving, data: Path, place: Path
) -> None:
    kept = data.with_name(f"{data.name}.checkpoints")
    said = run("--addr", serving.resp, "backup", kept / "first").stdout
    assert f"on the machine of the server at {serving.resp}" in said
    assert (
        json.loads(run("--addr", serving.resp, "backup", kept / "second", "-o", "json").stdout)["where"]
        == "server"
    )
    assert "42 messages" in run("verify", kept / "first").stdout
    run("restore", kept / "first", "--data", place / "new")
    assert fairlead.verify(place / "new").ok
    refused = run("--addr", serving.resp, "backup", place / "elsewhere", code=3).stderr
    assert "store.checkpoint_dir" in refused
    assert not (place / "elsewhere").exists()


def test_the_doctor_finds_every_door_open_and_who_has_the_directory(
    run: Run, serving: Serving, data: Path
) -> None:
    found = json.loads(
        run(
            "doctor",
            "--addr",
            serving.resp,
            "--flight",
            serving.flight,
            "--grpc",
            serving.grpc,
            "--http",
            serving.http,
            "--data",
            data,
            "-o",
            "json",
        ).stdout
    )
    levels = {check["name"]: check["level"] for check in found["checks"] if check["area"] == "server"}
    assert levels == {
        "resp": "ok",
        "flight": "ok",
        "grpc": "ok",
        "http": "ok",
        "version": "ok",
        "clock": "ok",
    }
    (holder,) = [check["found"] for check in found["checks"] if check["name"] == "open in"]
    assert holder.startswith(f"process {serving.process.pid} ")


def test_the_doctor_tells_doors_of_another_kind_from_those_that_it_looks_for(
    run: Run, serving: Serving
) -> None:
    found = json.loads(
        run(
            "doctor",
            "--addr",
            serving.http,
            "--flight",
            serving.grpc,
            "--grpc",
            serving.flight,
            "--http",
            serving.resp,
            "-o",
            "json",
            code=1,
        ).stdout
    )
    levels = {check["name"]: check["level"] for check in found["checks"] if check["area"] == "server"}
    assert levels == {"resp": "bad", "flight": "bad", "grpc": "bad", "http": "bad"}


def test_watching_shows_what_others_do(run: Run, serving: Serving) -> None:
    with (
        fairlead.connect(serving.resp) as client,
        subprocess.Popen(
            [
                *COMMAND,
                "--addr",
                serving.resp,
                "stats",
                "orders",
                "--watch",
                "--interval",
                "10ms",
                "-o",
                "json",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as watching,
    ):
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert json.loads(watching.stdout.readline())["queues"][0]["rates"] is None
        client.enqueue_many("orders", [NewMessage(b"") for _ in range(100)])
        seen = []
        while not seen or seen[-1]["ready"] != 102:
            seen.append(json.loads(watching.stdout.readline())["queues"][0])
        assert any(queue["rates"]["ready_change"] > 0 for queue in seen)
        client.settle([Complete(delivery) for delivery in client.claim("orders", limit=100)])
        watching.send_signal(signal.SIGINT)
        _, complaints = watching.communicate()
        assert (watching.returncode, complaints) == (0, "")


def test_the_live_view_hears_keys_while_the_server_is_silent_and_goes_on_when_it_is_back(
    serving: Serving,
) -> None:
    top = Terminal("--addr", serving.resp, "top", "--interval", "50ms", width=120)
    try:
        top.wait_for("▸ emails")
        os.kill(serving.process.pid, signal.SIGSTOP)
        top.wait_for(f"no answer from {serving.resp}")
        top.press(b"j")
        top.wait_for("▸ orders")
        os.kill(serving.process.pid, signal.SIGCONT)
        top.wait_for("order-7 2 behind")
        os.kill(serving.process.pid, signal.SIGSTOP)
        top.wait_for(f"no answer from {serving.resp}")
        top.press(b"q")
        assert top.end() == 0
        assert top.as_it_was
    finally:
        top.close()
