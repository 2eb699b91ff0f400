"""A command at a terminal of its own: what it draws can be waited for, and keys can be pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable

from tests.cli_views.conftest import COMMAND

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>]")


class Terminal:
    """`fairlead` with these arguments."""

    def __init__(self, *arguments: object, width: int = 80, height: int = 24) -> None:
        self._master, self._slave = pty.openpty()
        self._set_size(width, height)
        self._before = self.settings
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        environment = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.output = ""

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, text: str, patience_s: float = 60) -> None:
        """Until it has been drawn, from here on."""
        self._read_until(lambda: text in _ESCAPES.sub("", self.output), patience_s, text)
        self.output = ""

    def resize(self, width: int, height: int) -> None:
        self._set_size(width, height)
        os.killpg(self.process.pid, signal.SIGWINCH)

    def _set_size(self, width: int, height: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    @property
    def settings(self) -> list[object]:
        return termios.tcgetattr(self._slave)

    @property
    def as_it_was(self) -> bool:
        return self.settings == self._before

    def end(self) -> int:
        self._read_until(lambda: self.process.poll() is not None, 60, "the end")
        return self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def _read_until(self, condition: Callable[[], bool], patience_s: float, what: str) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            ended = self.process.poll() is not None
            while select.select([self._master], [], [], 0.05)[0]:
                self.output += os.read(self._master, 65536).decode("utf-8", "replace")
            if condition():
                return
            assert not ended, f"ended without {what!r}: {self.output}"
            assert time.monotonic() < deadline, f"no {what!r} in {self.output!r}"
