"""Processes that a test starts, and their descendants: JVMs, executors, Python workers. All end with the
test.

A Python worker has its own process group and outlives a killed JVM for a moment, so neither groups nor
parents identify descendants. A variable does: every descendant inherits it.
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

#: Long, for loaded machines. A wait that succeeds early takes no longer.
PATIENCE_S = 600.0

_MARK = "FAIRLEAD_TEST_PROCESSES"
_SET_DEATH_SIGNAL = 1
_libc = ctypes.CDLL(None)


class Family:
    """The processes of one test or fixture. `logs` gets the output files of the processes that it starts."""

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
        """Start a process with its output in `<name>.out` and `<name>.err`."""
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
        """The live processes whose command line contains `having`."""
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
        """Send SIGKILL to each of `pids(having)`, and return them."""
        hit = self.pids(having)
        for pid in hit:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return hit

    def end(self) -> None:
        """Ask the started processes to stop, then kill the remaining ones. Returns when all have ended."""
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
    """Ends the processes even if the test run is killed."""
    _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
