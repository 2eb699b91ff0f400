"""Processes that a test starts, and all that they start in turn: JVMs, executors, Python workers. All of them
end with the test.

A Python worker is in a process group of its own and outlives a killed JVM for a moment, so neither groups nor
parents tell who belongs to whom. The environment does: every descendant inherits the mark.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

#: Generous: a loaded machine is slow, and a wait that is over early costs nothing.
PATIENCE_S = 600.0

_MARK = "FAIRLEAD_TEST_PROCESSES"
_SET_DEATH_SIGNAL = 1
_libc = ctypes.CDLL(None)


class Family:
    """What one test or fixture has started. `logs` gets a file for each process it starts itself."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        self._children: list[subprocess.Popen[bytes]] = []
        logs.mkdir(parents=True, exist_ok=True)

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        *,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Its stdout and stderr go to `<name>.out` and `<name>.err`."""
        mark, _, value = self._mark.partition("=")
        with open(self.logs / f"{name}.out", "ab") as out, open(self.logs / f"{name}.err", "ab") as err:
            child = subprocess.Popen(
                command,
                env={**environment, mark: value},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=_die_with_parent,
            )
        self._children.append(child)
        return child

    def pids(self, having: str = "") -> list[int]:
        """Those alive now whose command line contains `having`."""
        found = []
        for entry in Path("/proc").iterdir():
            if (
                entry.name.isdigit()
                and self._owns(entry)
                and having in _read(entry / "cmdline").replace("\0", " ")
            ):
                found.append(int(entry.name))
        return sorted(found)

    def kill(self, having: str = "") -> list[int]:
        """SIGKILL to each of `pids(having)`; returns who was hit. All of a driver: JVM, Python and workers."""
        hit = self.pids(having)
        for pid in hit:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return hit

    def end(self) -> None:
        """Ask the ones started here to stop, then end whatever is left. Returns when nothing is."""
        for child in reversed(self._children):
            if child.poll() is None:
                child.terminate()
        for child in self._children:
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        wait_until(lambda: not self.kill(), "every process of the family to end")

    def report(self, lines: int = 60) -> str:
        """The last lines of every log below `logs`."""
        parts = []
        for path in sorted(self.logs.rglob("*")):
            if path.is_file() and (
                path.suffix in (".out", ".err", ".log") or path.name in ("stdout", "stderr")
            ):
                tail = path.read_text(errors="replace").splitlines()[-lines:]
                if tail:
                    parts.append("\n".join([f"--- {path.relative_to(self.logs)}", *tail]))
        return "\n".join(parts)

    def _owns(self, entry: Path) -> bool:
        if self._mark not in _read(entry / "environ").split("\0"):
            return False
        return _read(entry / "stat").rpartition(")")[2].split()[:1] != ["Z"]


def wait_until(condition: Callable[[], object], what: str, *, explain: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}\n{explain()}")
        time.sleep(0.05)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _die_with_parent() -> None:
    """So that a test run which is killed leaves nothing behind either."""
    _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
