"""A real `fairlead serve` in a process of its own, for tests that kill, pause and restart it."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fairlead.config.load import SETTINGS
from fairlead.config.server import DOORS

#: Generous: a loaded machine is slow, and a wait that ends early costs nothing.
PATIENCE_S = 60.0

_FIRST_PORT = 10_000
_BLOCKS = 22
_BLOCK = 1_000
#: Its own generator: Hypothesis seeds the global one alike for every test, so tests in two processes would
#: draw the same ports.
_chance = random.SystemRandom()
#: The ports that this process took last. A port stays free until its server listens; without this record, two
#: threads that start servers at the same time could take the same one.
_last_ports: deque[int] = deque(maxlen=_BLOCK // 2)
_ports_lock = threading.Lock()

_SERVE = (sys.executable, "-c", "from fairlead.cli import main; main()", "serve", "-o", "json")


class ServerProcess:
    """A server on fixed loopback ports and one data directory. `run_server` makes it.

    Doors without an address are off; a setting that is None keeps the default of `fairlead serve`.
    """

    def __init__(
        self,
        data: Path,
        addresses: Mapping[str, str],
        settings: Mapping[str, object],
        command: Sequence[str] = _SERVE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        #: Environment variables in addition to the settings, from the next start on.
        self.environment = dict(environment or {})
        self._command = command
        self.addresses: dict[str, str] = {}
        self._given = {
            **dict.fromkeys(DOORS, "off"),
            **settings,
            **addresses,
            "data": data,
        }
        self._process: subprocess.Popen[str] | None = None
        self._log: list[str] = []
        self._out: list[list[str]] = []
        self._readers: list[threading.Thread] = []

    @property
    def address(self) -> str:
        """The address for `fairlead.connect`."""
        return self.addresses["resp"]

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def log(self) -> str:
        """Everything that all processes have written to stderr so far."""
        return "".join(self._log)

    @property
    def out(self) -> str:
        """Everything that all processes have written to stdout so far."""
        return "".join(line for lines in self._out for line in lines)

    def start(self) -> None:
        """Return when the server is ready, or raise `ServerDidNotStart`."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
        environment |= {
            SETTINGS[path].variable: str(value) for path, value in self._given.items() if value is not None
        }
        environment |= self.environment
        process = self._process = subprocess.Popen(
            self._command,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        first: list[str] = []
        self._out.append(first)
        came = threading.Event()
        self._readers = [
            threading.Thread(target=_drain, args=(process.stdout, first, came), daemon=True),
            threading.Thread(target=_drain, args=(process.stderr, self._log, threading.Event()), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        if not came.wait(PATIENCE_S):
            process.kill()
        if not first:
            raise ServerDidNotStart(self.wait(), self.log)
        self.addresses = json.loads(first[0])["addresses"]

    def terminate(self) -> None:
        """SIGTERM: ask the server to stop. `wait` waits for its end."""
        self._running().send_signal(signal.SIGTERM)

    def look_at_certificates(self) -> None:
        """SIGHUP: load changed certificates now, not within a second."""
        self._running().send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """SIGKILL, like a crash. Returns when the process has ended."""
        self._running().kill()
        self.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nothing answers. Returns when the process has stopped."""
        self._running().send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume_process(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """The exit code, once the process has ended and all its output is read."""
        code = self._running().wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code

    def stop(self) -> int:
        """`terminate` and `wait`."""
        self.terminate()
        return self.wait()

    def restart(self, *, kill: bool = False) -> None:
        """End the server if it still runs, and start it again on the same ports and data."""
        if self._running().poll() is None:
            if kill:
                self.kill()
            else:
                self.stop()
        self._given |= self.addresses
        self.start()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("expected a started server; call start() first")
        return self._process


class ServerDidNotStart(RuntimeError):
    def __init__(self, code: int, log: str) -> None:
        super().__init__(f"fairlead serve ended with {code} before it was ready:\n{log}")
        self.code = code
        self.log = log


@contextmanager
def run_server(
    data: str | Path,
    *,
    flight: bool = True,
    grpc: bool = False,
    http: bool = False,
    settings: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """Start a server on free ports, and kill it at the end if it still runs. `flight` is for bulk verbs and
    Spark.

    `settings` are by path, as in a settings file: `{"durability": "os", "tls.cert": "/tls/server.pem"}`.
    `fairlead.testing.authority` makes certificates. `environment` has variables that are no settings, such as
    `FAIRLEAD_AUTH_BOOTSTRAP_KEY`.

        with run_server(tmp_path / "data", settings={"durability": "os"}) as server:
            client = fairlead.connect(server.address)
            server.restart(kill=True)
    """
    wanted = {"resp": True, "flight": flight, "grpc": grpc, "http": http}
    doors = [door for door in DOORS if wanted[door]]
    server = ServerProcess(
        Path(data),
        {door: f"127.0.0.1:{port}" for door, port in zip(doors, free_ports(len(doors)), strict=True)},
        settings or {},
        environment=environment,
    )
    try:
        server.start()
        yield server
    finally:
        if server._process is not None and server._process.poll() is None:
            server.kill()


def free_ports(count: int) -> list[int]:
    """Ports without a listener, outside the range that the system uses for outgoing connections.

    In that range, a client that keeps reconnecting to a stopped server's port may connect to itself, and so
    take the port. Tests that pytest-xdist runs side by side search different ranges, and a process does not
    take one of its last ports again: between the search and the start of the server two tests could take the
    same port, and gRPC lets two servers share one without an error.
    """
    with _ports_lock:
        return [_free_port() for _ in range(count)]


def _free_port() -> int:
    first = _FIRST_PORT + _neighbour() % _BLOCKS * _BLOCK
    deadline = time.monotonic() + PATIENCE_S
    while True:
        port = _chance.randrange(first, first + _BLOCK)
        if port in _last_ports:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                if time.monotonic() > deadline:
                    raise
                continue
        _last_ports.append(port)
        return port


def _neighbour() -> int:
    """A different number for each process of one pytest-xdist run, which numbers its processes; they have one
    parent.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return os.getppid() + int(worker[2:]) if worker[2:].isdigit() else os.getpid()


def _drain(stream: IO[str], lines: list[str], came: threading.Event) -> None:
    """Read until the end, because a child whose pipe is full would block."""
    with stream:
        for line in stream:
            lines.append(line)
            came.set()
    came.set()
