"""The demo's folder and the processes in it. When it is left, no process is, and no folder unless it was to
be kept.

Spark's Python workers and the processes of steps are in process groups of their own, and their parents may be
gone before them. What tells all of them is the environment: each has inherited the folder as the place for
temporary files.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_PATIENCE_S = 20.0


class Scratch:
    """`columns` is how wide the output of commands may be."""

    def __init__(self, *, keep: bool, columns: int) -> None:
        self._keep = keep
        self._children: list[subprocess.Popen[str]] = []
        self._ended = False
        self.path = Path(tempfile.gettempdir(), f"fairlead-demo-{secrets.token_hex(4)}").resolve()
        # Before there is anything to remove, so that there is no moment in which an end leaves something
        # behind.
        atexit.register(self.end)
        self.path.mkdir(mode=0o700)
        self.logs = self.path / "logs"
        self._temporary = self.path / "temporary"
        for folder in (self.logs, self._temporary):
            folder.mkdir()
        #: For every child; `FAIRLEAD_ADDR` comes in when there is a server.
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")
        } | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "COLUMNS": str(columns),
            "TMPDIR": str(self._temporary),
            "XDG_CACHE_HOME": str(self._temporary),
            "SPARK_LOCAL_DIRS": str(self._temporary),
            # Short jobs: the slow compiler would not pay for itself.
            "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={self._temporary} -XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Doing it twice is fine. Ctrl-C does not stop it: this is what a second one asks for, too."""
        if self._ended:
            return
        before = {
            number: signal.signal(number, signal.SIG_IGN)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        self._end_all()
        shutil.rmtree(self._temporary if self._keep else self.path, ignore_errors=True)
        self._ended = True
        for number, handler in before.items():
            signal.signal(number, handler)

    def start(self, name: str, command: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
        """In a session of its own, so that Ctrl-C comes to the demo alone. It prints to `logs/<name>.log`."""
        with open(self.logs / f"{name}.log", "a") as log:
            child = subprocess.Popen(
                command,
                cwd=cwd,
                env=self.environment,
                text=True,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._children.append(child)
        return child

    def log(self, name: str) -> str:
        return (self.logs / f"{name}.log").read_text()

    def _end_all(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while (alive := self._alive()) and time.monotonic() < deadline:
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for child in self._children:
                child.poll()  # else it stays behind as a zombie
            time.sleep(0.02)

    def _alive(self) -> list[int]:
        if not Path("/proc/self").exists():  # no Linux: those whose parents die know it themselves
            return [child.pid for child in self._children if child.poll() is None]
        mark = f"TMPDIR={self._temporary}\0".encode()
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                with suppress(OSError):
                    if mark in (process / "environ").read_bytes():
                        found.append(int(process.name))
        return found
