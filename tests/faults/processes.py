"""A client process in the hands of a test."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
#: Generous: a condition that comes true ends the wait at once.
PATIENCE_S = 90.0

T = TypeVar("T")


def until(find: Callable[[], T], what: str) -> T:
    """Looks again and again, and gives the first thing found that is not nothing."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := find()):
        if time.monotonic() > deadline:
            raise AssertionError(f"this did not come true: {what}")
        time.sleep(0.01)
    return found


class ClientProcess:
    """Runs a function of `roles.py`. Both sides say lines of JSON. Killed at the end if it still runs."""

    def __init__(self, role: str, **given: Any) -> None:
        self.role = role
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed by __exit__
        command = [sys.executable, "-m", "tests.faults.roles", role, json.dumps(given)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=ROOT
        )
        self._heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def hear(self) -> Any:
        """What it says next. Fails with what it complained about when it ended instead."""
        try:
            line = self._heard.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"{self.role} said nothing:\n{self.complaint}") from None
        if not line:
            raise AssertionError(
                f"{self.role} ended with {self._process.wait(PATIENCE_S)} and said nothing:\n{self.complaint}"
            )
        return json.loads(line)

    def tell(self, what: Any = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def pause(self) -> None:
        """SIGSTOP. Returns when it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def finish(self) -> None:
        """Its stdin ends, which is how it is told to come to an end by itself; fails if it did not do so
        well.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(PATIENCE_S)
        assert code == 0, f"{self.role} ended with {code}:\n{self.complaint}"

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def complaint(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-5000:]

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()
        self._reader.join(PATIENCE_S)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            stream.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard.put(line)
        self._heard.put("")
