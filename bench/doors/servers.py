"""A server process of our own making: its own port on loopback, its own directory, stopped by its own process
id.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

_START_S = 30.0
_STOP_S = 20.0


class ServerProcess:
    """Started when made: returns once its port takes connections. What it prints is kept in `log`."""

    def __init__(
        self, command: Sequence[str], port: int, log: Path, env: dict[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("wb") as out:
            around = {**os.environ, **(env or {})}
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=around
            )
        deadline = monotonic() + _START_S
        while not _listens(port):
            if self.process.poll() is not None or monotonic() > deadline:
                self.stop()
                raise RuntimeError(
                    f"{command[0]} did not start; it said:\n{log.read_text(errors='replace')[-2000:]}"
                )
            sleep(0.02)

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def cpu_s(pid: int) -> float:
    """Of all its threads, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
