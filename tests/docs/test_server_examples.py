from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead import FailureReason
from fairlead.testing import ServerProcess, run_server
from tests.docs.pages import ROOT

PATIENCE_S = 90

MAILS = [
    b'{"to": "ann@example.org"}',
    b'{"to": "somewhere"}',
    b"not json",
    b'["no mail"]',
    b'{"to": "bob@example.org"}',
]

#: A worker whose work is to say what it has in hand, and to finish when told.
SLOW_WORKER = """
import sys
from examples.worker import run

def work(delivery):
    print(delivery.payload.decode(), flush=True)
    sys.stdin.readline()

run(sys.argv[1], "mails", work)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with run_server(tmp_path / "data", settings={"durability": "os"}) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[fairlead.Client]:
    with fairlead.connect(server.address) as connected:
        connected.create_queue("mails", retry={"policy": "none"})
        yield connected


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_producer_sends_each_line_once_and_the_worker_settles_each_by_how_it_went(
    server: ServerProcess, client: fairlead.Client
) -> None:
    for expected in ("5 sent\n", "5 sent\n"):
        producer = start("examples/producer.py", "mails", "--addr", server.address)
        assert producer.communicate(b"\n".join(MAILS).decode(), PATIENCE_S) == (expected, "")
    assert client.stats("mails").ready == 5

    worker = start("examples/worker.py", "mails", "--addr", server.address)
    try:
        assert worker.stdout is not None
        assert {worker.stdout.readline(), worker.stdout.readline()} == {
            "sent to ann@example.org\n",
            "sent to bob@example.org\n",
        }
        dead = [client.claim("mails.dlq", wait="60s") for _ in range(3)]
        worker.send_signal(signal.SIGTERM)
        assert worker.communicate(timeout=PATIENCE_S) == ("", "")
    finally:
        worker.kill()
    assert worker.returncode == 0
    assert {letter.payload: FailureReason(letter.failures[-1].reason).word for (letter,) in dead} == {
        b'{"to": "somewhere"}': "validation_failure",
        b"not json": "serialization_error",
        b'["no mail"]': "handler_exception",
    }
    assert client.stats("mails").ready == client.stats("mails").leased == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_told_to_stop_finishes_what_it_has_in_hand_and_gives_the_rest_back(
    server: ServerProcess, client: fairlead.Client, number: signal.Signals
) -> None:
    for payload in (b"first", b"second", b"third"):
        client.enqueue("mails", payload)
    worker = start("-c", SLOW_WORKER, server.address)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "first\n"
        worker.send_signal(number)
        # What it had fetched ahead is ready again while it is still at work.
        assert [delivery.payload for delivery in client.claim("mails", limit=2, wait="60s")] == [
            b"second",
            b"third",
        ]
        assert worker.poll() is None
        assert worker.communicate("\n", PATIENCE_S) == ("", "")
    finally:
        worker.kill()
    assert worker.returncode == 0
    left = client.stats("mails")
    assert (left.ready, left.leased, left.dead) == (0, 2, 0)


def test_the_second_signal_ends_a_worker_at_once(server: ServerProcess, client: fairlead.Client) -> None:
    client.enqueue("mails", json.dumps({"to": "ann"}).encode())
    client.enqueue("mails", b"behind")
    worker = start("-c", SLOW_WORKER, server.address)
    try:
        assert worker.stdout is not None
        worker.stdout.readline()
        worker.send_signal(signal.SIGTERM)
        client.claim("mails", wait="60s")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == -signal.SIGTERM
    finally:
        worker.kill()
        worker.communicate()
    assert client.stats("mails").leased == 2
