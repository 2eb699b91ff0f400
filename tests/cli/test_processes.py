"""The command as a process: how it ends, what a shell sees of it, what it does at a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import fairlead
from fairlead import Fail, NewMessage
from tests.cli.conftest import Opener, Orders

COMMAND = [sys.executable, "-m", "fairlead.cli"]
PATIENCE_S = 60


def environment(data: Path, **more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("FAIRLEAD_") and name not in ("NO_COLOR", "FORCE_COLOR")
    }
    return {**kept, "FAIRLEAD_DATA": str(data), "TERM": "xterm", "COLUMNS": "100", **more}


def run(data: Path, *args: str, input: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *args],
        env=environment(data, **more),
        input=input,
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
    )


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, data: Path, *args: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *args],
            env=environment(data),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            close_fds=True,
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen!r}"
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._ours, 65536).decode()
                except OSError:  # the other end is closed
                    assert text in self.seen, self.seen
                    return

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """The exit code, when everything was read."""
        try:
            while chunk := os.read(self._ours, 65536):
                self.seen += chunk.decode()
        except OSError:
            pass
        os.close(self._ours)
        return self.process.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["queue", "list"], 0),
        (["queue", "pause", "nothing"], 4),
        (["queue", "create", "orders"], 5),
        (["queue", "create", "a b"], 3),
        (["queue", "nosuch"], 2),
        (["queue", "delete", "orders"], 2),
        (["--addr", "127.0.0.1:1", "--data", "x", "queue", "list"], 2),
        (["queue", "push", "orders", "--file", "/no/such"], 1),
    ],
)
def test_a_process_ends_with_its_code_and_never_with_a_traceback(
    data: Path, orders: Orders, args: list[str], code: int
) -> None:
    ran = run(data, *args)
    assert ran.returncode == code
    assert b"Traceback" not in ran.stderr
    assert (ran.stderr == b"") == (code == 0)


def test_a_directory_that_is_in_use_points_to_the_server(data: Path, orders: Orders) -> None:
    with fairlead.open(data):
        ran = run(data, "queue", "list")
    assert ran.returncode == 7
    assert b"--addr HOST:PORT" in ran.stderr
    assert b"Traceback" not in ran.stderr


def test_a_directory_that_may_not_be_one_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    ran = run(tmp_path / "file", "queue", "create", "q")
    assert ran.returncode != 0
    assert b"Traceback" not in ran.stderr


def test_without_a_terminal_nothing_is_coloured_wrapped_or_cut(data: Path, orders: Orders) -> None:
    ran = run(data, "queue", "show", "orders", COLUMNS="20")
    assert b"\x1b" not in ran.stdout
    assert b"transport_unavailable: SMTP 421" in ran.stdout
    assert not any(line.endswith(b" ") for line in ran.stdout.splitlines())


def test_without_a_terminal_lists_have_payloads_errors_keys_and_streams_in_full(
    data: Path, broker: Opener
) -> None:
    key, stream, payload, error, who = (letter * 200 for letter in "kspew")
    with broker() as opened:
        opened.create_queue("long", poison_after=1, visibility_timeout="1h")
        opened.enqueue("long", payload.encode(), fairness_key=key, stream=stream)
        opened.settle([Fail(opened.claim("long")[0], error, retry_in="0s")])
        assert len(opened.claim("long", consumer=who)) == 1
    for args in (["queue", "show", "long"], ["queue", "peek", "long", "--where", "leased"]):
        printed = run(data, *args).stdout.decode()
        assert [text for text in (key, stream, payload, error, who) if text not in printed] == []
    assert error in run(data, "failures", "long").stdout.decode()


def test_a_reader_that_goes_away_ends_the_command_quietly(data: Path, broker: Opener) -> None:
    with broker() as opened:
        opened.create_queue("many")
        opened.enqueue_many("many", [NewMessage(b"x" * 500) for _ in range(3000)])
    for args in (
        ["queue", "peek", "many", "-n", "3000", "-o", "json"],
        ["queue", "peek", "many", "-n", "3000"],
    ):
        process = subprocess.Popen(
            [*COMMAND, *args], env=environment(data), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        complaints = process.stderr.read()
        process.stderr.close()
        assert (process.wait(PATIENCE_S), complaints) == (141, b"")


def test_at_a_terminal_a_question_is_asked_and_a_no_changes_nothing(
    data: Path, orders: Orders, broker: Opener
) -> None:
    terminal = Terminal(data, "queue", "delete", "orders")
    terminal.wait_for("Continue? [y/N]")
    assert "This will delete queue 'orders' with 5 messages" in terminal.seen
    terminal.type("n\n")
    assert terminal.end() == 1
    terminal = Terminal(data, "queue", "delete", "orders")
    terminal.wait_for("Continue? [y/N]")
    terminal.type("y\n")
    assert terminal.end() == 0
    with broker() as opened:
        assert opened.queues() == []


def test_at_a_terminal_a_command_says_that_it_waits_for_a_server(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        terminal = Terminal(tmp_path, "--addr", nobody, "--wait", "3s", "queue", "list")
        terminal.wait_for(f"no answer from {nobody} yet; trying for 3s")
        assert terminal.end() == 7


def test_at_a_terminal_a_command_that_tries_for_a_second_says_so_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        terminal = Terminal(tmp_path, "--addr", nobody, "queue", "list")
        terminal.wait_for("tried for 1s")
        assert terminal.end() == 7
        assert "yet" not in terminal.seen


def test_ctrl_c_at_a_question_changes_nothing_and_leaves_no_traceback(
    data: Path, orders: Orders, broker: Opener
) -> None:
    terminal = Terminal(data, "queue", "delete", "orders")
    terminal.wait_for("Continue? [y/N]")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.seen
    with broker() as opened:
        assert len(opened.queues()) == 2


def test_ctrl_c_while_a_redrive_is_watched_leaves_it_running_and_says_so(data: Path, broker: Opener) -> None:
    with broker() as opened:
        opened.create_queue("bulk")
        opened.quarantine("bulk", [NewMessage(b"x") for _ in range(50)], error="e")
    terminal = Terminal(data, "redrive", "bulk", "--rate", "0.1", "--yes")
    terminal.wait_for("1/50")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert "the command ends; the redrive continues whenever the data directory is open" in terminal.seen
    assert "Traceback" not in terminal.seen
    (intent,) = json.loads(run(data, "intent", "list", "-o", "json").stdout)
    assert f"fairlead intent cancel {intent['intent_id']}" in terminal.seen
    assert intent["done"] < 50


def test_json_at_a_terminal_is_indented_and_uncoloured(data: Path, orders: Orders) -> None:
    terminal = Terminal(data, "config", "list", "-o", "json")
    assert terminal.end() == 0
    assert "\x1b" not in terminal.seen
    assert json.loads(terminal.seen) == {}


def complete(data: Path, words: Sequence[str], **more: str) -> list[str]:
    line = " ".join(["fairlead", *words])
    ran = run(data, _FAIRLEAD_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words)), **more)
    assert b"Traceback" not in ran.stderr
    return ran.stdout.decode().split()


def test_a_shell_completes_commands_queues_and_reasons(data: Path, orders: Orders) -> None:
    assert complete(data, ["queue", "ins"]) == ["inspect"]
    assert complete(data, ["queue", "show", "ord"]) == ["orders", "orders.dlq"]
    assert complete(data, ["queue", "retry", "orders", "--reason", "ser"]) == ["serialization_error"]


def test_a_queue_is_completed_from_the_directory_on_the_line(
    data: Path, orders: Orders, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    assert complete(elsewhere, ["--data", str(data), "queue", "show", "ord"]) == ["orders", "orders.dlq"]
    assert complete(elsewhere, ["queue", "show", "--data", str(data), "ord"]) == ["orders", "orders.dlq"]
    assert complete(elsewhere, ["queue", "show", "ord"]) == []
    with fairlead.open(data):
        assert complete(data, ["queue", "show", "ord"]) == [], "in use: nothing, and no error"
