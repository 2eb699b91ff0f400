"""The parent of a pipeline: feeds the source, starts one life of the driver after the other, and settles the account."""

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
#: A session of Spark takes a while to start on a machine that others use too; a life that takes so long hangs.
PATIENCE_S = 600.0

_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); from tests.crash.pipeline.server import main; main(sys.argv[2])"

#: From the directory of a pipeline and the broker's address to the command that starts a driver.
Command = Callable[[Path, str], Sequence[str]]


class Pipeline:
    """Made by `run_pipeline`. `ledger` is the path of what the server writes down."""

    def __init__(self, home: Path, server: ServerProcess, command: Command, *, settles: bool) -> None:
        self.home = home
        self.server = server
        self.ledger = home / LEDGER
        self.sent: dict[str, str | None] = {}
        self.kinds: dict[str, str] = {}
        self.lives = 0
        self.driver: subprocess.Popen[bytes] | None = None
        self.command = command
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
            messages.append(NewMessage(body_of(tag), {"kind": self.kinds[tag]}, fairness_key=f"t{index % 3}", stream=self.sent[tag]))
        self._client.enqueue_many(SOURCE, messages)

    def start(self, window: Window | None = None) -> subprocess.Popen[bytes]:
        """A life of the driver, in a session of its own."""
        self.lives += 1
        give_orders(self.home, Orders(self.lives, window))
        command, environment = self.command(self.home, self.server.address), {**os.environ, MARK: str(self.home)}
        with self.stderr.open("wb") as said:
            self.driver = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
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

    def die_at(self, window: Window) -> None:
        """One life, which must end at that window."""
        self.start(window)
        code = self.wait()
        assert code == -signal.SIGKILL, f"life {self.lives} should have died {window}, and ended with {code}:\n{self.said()}"

    def finish(self) -> None:
        """One more life, which nobody kills."""
        self.start()
        code = self.wait()
        assert code == 0, f"the last life ended with {code}:\n{self.said()}"

    def kill(self) -> None:
        """All processes of the driver."""
        assert self.driver is not None
        kill_session(self.driver.pid)
        self.driver.wait()

    def audit(self) -> list[str]:
        """Every breach of a rule. The server is stopped for it."""
        self._client.close()
        code = self.server.stop()
        lines = read_ledger(self.ledger)
        found = look_inside(self.server.data, source=SOURCE, sink=SINK)
        problems = check_settled(self.kinds, lines, found) if self._settles else check_produced(self.sent, lines, found)
        return problems if code == 0 else [f"the server stopped with {code}:\n{self.server.log[-3000:]}", *problems]

    def said(self) -> str:
        """The last of what the current life has written."""
        self.stderr.touch()
        return self.stderr.read_text(errors="replace")[-6000:]

    @property
    def stderr(self) -> Path:
        """Of the current life."""
        return self.home / f"driver-{self.lives:02}.txt"


@contextmanager
def run_pipeline(home: Path, command: Command, *, settles: bool = False) -> Iterator[Pipeline]:
    """A watched server with a source and a sink. Whatever happens, neither server nor driver outlives it."""
    home.mkdir(parents=True, exist_ok=True)
    give_orders(home, Orders(-1))
    serve = (sys.executable, "-c", _SERVE, str(ROOT), str(home))
    server = ServerProcess(home / "data", {"flight": f"127.0.0.1:{free_ports(1)[0]}"}, {"durability": "os"}, serve)
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
