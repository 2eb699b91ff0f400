"""One life of a process after the other; and the parent of a pipeline, which feeds the source, starts the
lives of its driver, and settles the account.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import fairlead
from fairlead import NewMessage
from fairlead.testing.server import ServerProcess, free_ports

from .audit import check_produced, check_settled, look_inside
from .ledger import SINK, SOURCE, body_of, name_message, read_ledger
from .server import LEDGER
from .switch import MARK, ROOT, Orders, Window, give_orders, kill_marked, kill_session

KINDS = ("complete", "fail", "release", "dead")
#: A session of Spark takes a while to start on a machine that others use too; a life that takes so long
#: hangs.
PATIENCE_S = 600.0

_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); from tests.crash.pipeline.server import main; main(sys.argv[2])"

#: From the directory of a pipeline and the broker's address to the command that starts a driver.
Command = Callable[[Path, str], Sequence[str]]


class Lives:
    """Of a driver that talks to `server` and is killed. `ledger` is the path of what is written down outside
    of it.
    """

    def __init__(self, home: Path, server: ServerProcess, command: Command, ledger: Path) -> None:
        self.home = home
        self.server = server
        self.command = command
        self.ledger = ledger
        self.lives = 0
        self.driver: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """A life of the driver, in a session of its own."""
        self.lives += 1
        command, environment = (
            self.command(self.home, self.server.address),
            {**os.environ, MARK: str(self.home)},
        )
        with self.stderr.open("wb") as said:
            self.driver = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        return self.driver

    def wait(self) -> int:
        """For the end of the life that was started last."""
        assert self.driver is not None
        try:
            return self.driver.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"life {self.lives} does not end:\n{self.said()}") from None

    def end(self) -> int:
        """Its last life comes to its end. Returns the exit code."""
        return self.wait()

    def kill(self) -> None:
        """All processes of the driver."""
        assert self.driver is not None
        kill_session(self.driver.pid)
        self.driver.wait()

    def said(self) -> str:
        """The last of what the current life has written."""
        self.stderr.touch()
        return self.stderr.read_text(errors="replace")[-6000:]

    @property
    def stderr(self) -> Path:
        """Of the current life."""
        return self.home / f"driver-{self.lives:02}.txt"


class Pipeline(Lives):
    """Made by `run_pipeline`. The server writes the ledger."""

    def __init__(self, home: Path, server: ServerProcess, command: Command, *, settles: bool) -> None:
        super().__init__(home, server, command, home / LEDGER)
        self.sent: dict[str, str | None] = {}
        self.kinds: dict[str, str] = {}
        self._settles = settles
        self._client = fairlead.connect(server.address, retry_for="60s")
        self._client.create_queue(SOURCE, retry={"policy": "immediate", "attempts": 3})
        self._client.create_queue(SINK)

    def feed(self, count: int) -> None:
        """Two of three messages belong to one of five streams."""
        messages = []
        for index in range(len(self.sent), len(self.sent) + count):
            tag = name_message(index)
            self.sent[tag] = None if index % 3 == 0 or self._settles else f"s{index % 5}"
            self.kinds[tag] = KINDS[index % 4]
            messages.append(
                NewMessage(
                    body_of(tag),
                    {"kind": self.kinds[tag]},
                    fairness_key=f"t{index % 3}",
                    stream=self.sent[tag],
                )
            )
        self._client.enqueue_many(SOURCE, messages)

    def start(self, window: Window | None = None) -> subprocess.Popen[bytes]:
        """A life that ends at that window, if there is one."""
        give_orders(self.home, Orders(self.lives + 1, window))
        return super().start()

    def die_at(self, window: Window) -> None:
        """One life, which must end at that window."""
        self.start(window)
        code = self.wait()
        assert code == -signal.SIGKILL, (
            f"life {self.lives} should have died {window}, and ended with {code}:\n{self.said()}"
        )

    def finish(self) -> None:
        """One more life, which nobody kills."""
        self.start()
        code = self.wait()
        assert code == 0, f"the last life ended with {code}:\n{self.said()}"

    def audit(self) -> list[str]:
        """Every breach of a rule. The server is stopped for it."""
        self._client.close()
        code = self.server.stop()
        lines = read_ledger(self.ledger)
        found = look_inside(self.server.data, source=SOURCE, sink=SINK)
        problems = (
            check_settled(self.kinds, lines, found)
            if self._settles
            else check_produced(self.sent, lines, found)
        )
        return (
            problems
            if code == 0
            else [f"the server stopped with {code}:\n{self.server.log[-3000:]}", *problems]
        )


@contextmanager
def run_pipeline(home: Path, command: Command, *, settles: bool = False) -> Iterator[Pipeline]:
    """A watched server with a source and a sink. Whatever happens, neither server nor driver outlives it."""
    home.mkdir(parents=True, exist_ok=True)
    give_orders(home, Orders(-1))
    serve = (sys.executable, "-c", _SERVE, str(ROOT), str(home))
    resp, flight = (f"127.0.0.1:{port}" for port in free_ports(2))
    server = ServerProcess(home / "data", {"resp": resp, "flight": flight}, {"durability": "os"}, serve)
    pipeline = None
    try:
        server.start()
        pipeline = Pipeline(home, server, command, settles=settles)
        yield pipeline
    finally:
        kill_marked(home)
        if pipeline is not None and pipeline.driver is not None:
            pipeline.driver.wait()
        if server._process is not None and server._process.poll() is None:
            server.kill()
