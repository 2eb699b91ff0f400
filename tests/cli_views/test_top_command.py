"""`fairlead top`: one frame for pipes, and the live view at a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cli.top import read_keys
from tests.cli_views.conftest import Run

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>]")


class Terminal:
    """A process at a terminal of its own."""

    def __init__(self, *command: str, width: int = 80, height: int = 24) -> None:
        self._master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        environment = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command, stdin=self.slave, stdout=self.slave, stderr=self.slave, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.output = ""

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, text: str, patience_s: float = 60) -> None:
        """Until it has been drawn, from here on."""
        self._read_until(lambda: text in _ESCAPES.sub("", self.output), patience_s, text)
        self.output = ""

    def wait_for_raw(self, text: str, patience_s: float = 60) -> None:
        self._read_until(lambda: text in self.output, patience_s, text)

    def end(self) -> int:
        self._read_until(lambda: self.process.poll() is not None, 60, "the end")
        return self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self.slave)

    def _read_until(self, condition: object, patience_s: float, what: str) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            ended = self.process.poll() is not None
            while select.select([self._master], [], [], 0.05)[0]:
                self.output += os.read(self._master, 65536).decode("utf-8", "replace")
            if condition():  # type: ignore[operator]
                return
            assert not ended, f"ended without {what!r}: {self.output}"
            assert time.monotonic() < deadline, f"no {what!r} in {self.output!r}"


@pytest.fixture
def top(data: Path) -> Iterator[Terminal]:
    terminal = Terminal(sys.executable, "-c", "from fairlead.cli import main; main()", "--data", str(data), "top", "--interval", "50ms")
    terminal.wait_for("▸ emails")
    yield terminal
    terminal.close()


def test_keys_choose_a_queue_and_q_leaves_a_terminal_as_it_was(top: Terminal) -> None:
    top.press(b"j")
    top.wait_for("▸ orders")
    top.wait_for("order-7 2 behind")
    top.press(b"\x1b[A")
    top.wait_for("▸ emails")
    top.press(b"\t")
    top.wait_for("▸ orders")
    assert termios.tcgetattr(top.slave)[3] & termios.ICANON == 0
    top.press(b"q")
    assert top.end() == 0
    assert "\x1b[?1049l" in top.output, "the screen from before is back"
    assert "\x1b[?25h" in top.output, "and so is the cursor"
    assert termios.tcgetattr(top.slave) == top.before


def test_an_interrupt_leaves_quietly(top: Terminal) -> None:
    top.press(b"\x03")
    assert top.end() == 0
    assert "\x1b[?1049l" in top.output
    assert "Traceback" not in top.output
    assert termios.tcgetattr(top.slave) == top.before


def test_a_new_size_of_the_terminal_is_used(top: Terminal) -> None:
    fcntl.ioctl(top.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
    os.killpg(top.process.pid, signal.SIGWINCH)
    top.wait_for("╭─ queues " + "─" * 138 + "─╮")


def test_without_a_terminal_there_is_one_plain_sentence(run: Run, data: Path) -> None:
    complaint = run("--data", data, "top", code=2).stderr
    assert "fairlead stats --watch" in complaint
    assert "fairlead top --once" in complaint
    assert "--once" in run("--data", data, "top", "-o", "json", code=2).stderr


def test_once_prints_one_frame_of_the_usual_size(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = run("--data", data, "top", "--once", "--interval", "10ms", "orders").stdout.splitlines()
    assert len(lines) == 24
    assert max(map(len, lines)) == 80
    assert any("▸ orders" in line for line in lines)
    assert any("order-7 2 behind" in line for line in lines)
    assert any("1 poison:" in line or "poison: " in line for line in lines)


def test_once_follows_the_size_it_is_told(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("LINES", "40")
    lines = run("--data", data, "top", "--once", "--interval", "10ms").stdout.splitlines()
    assert (len(lines), max(map(len, lines))) == (40, 140)


def test_once_as_json_has_the_details_of_the_selected_queue(run: Run, data: Path) -> None:
    found = json.loads(run("--data", data, "top", "emails", "--once", "--interval", "10ms", "-o", "json").stdout)
    assert [queue["queue"] for queue in found["queues"]] == ["emails", "orders"]
    assert found["selected"] == found["failures"]["queue"] == "emails"
    assert {share["key"] for share in found["shares"]} == {"acme", "globex"}
    assert found["queues"][0]["rates"]["ready_change"] == 0


def test_a_queue_that_does_not_exist_cannot_be_chosen(run: Run, data: Path) -> None:
    run("--data", data, "top", "nothing", "--once", code=4)


@pytest.mark.parametrize(
    ("raw", "pressed"),
    [
        (b"jk", ["down", "up"]), (b"\x1b[A\x1b[B", ["up", "down"]), (b"\x1bOA\x1bOB", ["up", "down"]), (b"\t\x1b[Z", ["down", "up"]),
        (b"q", ["leave"]), (b"\x03", ["leave"]), (b"xyz", []), (b"\x1b[5~j", ["down"]), (b"\x1b[1;5Cq", ["leave"]),
        (b"\x1b", []), (b"\x1b[", []), (b"\x1bq", ["leave"]),
    ],
)  # fmt: skip
def test_keys_are_told_apart_and_others_passed_over(raw: bytes, pressed: list[str]) -> None:
    assert read_keys(raw) == pressed
