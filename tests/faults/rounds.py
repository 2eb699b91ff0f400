"""One round: a server killed again and again under clients that reconnect; then the account is settled with
the crash tests' ledger.

All processes write into one journal. A line is there before its request is sent and after its answer has
come, so the order of lines is an order in which things can have happened, whoever wrote them.
"""

from __future__ import annotations

import contextlib
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import fairlead
from fairlead.clock import SystemClock
from fairlead.model.access import NewKey, Right
from fairlead.server.bootstrap import BOOTSTRAP_FILE
from fairlead.testing import Durability, ServerProcess, run_server
from tests.crash.history import History
from tests.crash.journal import Journal, read_journal
from tests.crash.rounds import Kill, Plan, Report, audit, drain_and_verify
from tests.security.certificates import Files

from .load import PARTS, QUEUES, RecordedClient
from .processes import ClientProcess, until

WORK = "doors"


@dataclass(frozen=True, slots=True)
class DoorsPlan(Plan):
    """Whether the server asks for API keys, and whether it speaks TLS."""

    keys: bool = False
    tls: bool = False


def plan_round(seed: int, kills: int = 4) -> DoorsPlan:
    """The same seed gives the same plan; the moments at which a kill falls cannot be replayed."""
    rng = random.Random(f"{seed}-{WORK}")
    durability: Durability = rng.choice(("os", "fsync"))
    moments = tuple(Kill(rng.randint(0, 400)) for _ in range(kills))
    return DoorsPlan(seed, WORK, durability, moments, keys=rng.random() < 0.5, tls=rng.random() < 0.3)


def run_round(plan: DoorsPlan, directory: Path, on_kill: Callable[[], None] = lambda: None) -> Report:
    """`directory` must be empty and is left behind, whatever happens; a round that ends early says why in its
    problems.
    """
    report = Report(plan, directory, [])
    settings: dict[str, object] = {"durability": plan.durability}
    try:
        if plan.keys:
            settings["auth.mode"] = "keys"
        if plan.tls:
            files = Files(directory / "tls")
            files.server()
            settings |= files.settings()
        with run_server(directory / "data", settings=settings) as server, ExitStack() as stack:
            _Round(plan, directory, server, stack, report).run(on_kill)
        if not report.problems:
            drain_and_verify(directory / "data", directory / "journal.jsonl", 999, report)
            history = History()
            history.add_life(read_journal(directory / "journal.jsonl"))
            audit(history, report)
    except Exception:
        # Whatever came up in here, the seed must be told with it.
        report.problems.append(traceback.format_exc())
    return report


class _Round:
    def __init__(
        self, plan: DoorsPlan, directory: Path, server: ServerProcess, stack: ExitStack, report: Report
    ) -> None:
        self._plan = plan
        self._rng = random.Random(f"{plan.seed}-{WORK}-run")
        self._path = directory / "journal.jsonl"
        self._journal = Journal(self._path, 0, SystemClock().now_ms)
        self._tls = str(directory / "tls" / "ca.pem") if plan.tls else None
        self._root_key = (server.data / BOOTSTRAP_FILE).read_text().strip() if plan.keys else None
        #: Of client processes that run, by their part.
        self._keys: dict[int, NewKey] = {}
        self._revoked: list[str] = []
        self._server = server
        self._stack = stack
        self._report = report
        self._lives = 0
        self._clients: dict[int, tuple[int, ClientProcess]] = {}
        self._read = 0
        self._done: Counter[int] = Counter()

    def run(self, on_kill: Callable[[], None]) -> None:
        with self._connect() as client:
            for name, options in QUEUES.items():
                RecordedClient(client, self._journal).operate("create_queue", name, **options)  # type: ignore[arg-type]  # the same verbs
            client.config.set("throttle:slow:rate", "500")
        for part in range(len(PARTS)):
            self._start(part)
        for kill in self._plan.kills:
            self._wait_for_work()
            time.sleep(kill.after_ms / 1000)
            self._have_an_outage()
            self._report.kills += 1
            on_kill()
            if self._report.problems:
                return
        self._wait_for_work()
        self._check_revoked()
        for _, client_process in self._clients.values():
            client_process.finish()
        code = self._server.stop()
        if code != 0:
            self._report.problems.append(f"the server ended with {code}:\n{self._server.log[-3000:]}")

    def _start(self, part: int) -> None:
        self._lives += 1
        heartbeat, jobs = PARTS[part]
        given = {
            "address": self._server.address,
            "journal": str(self._path),
            "life": self._lives,
            "seed": self._plan.seed,
            "tls": self._tls,
            "api_key": self._new_key(part),
        }
        self._clients[part] = (
            self._lives,
            self._stack.enter_context(ClientProcess("load", heartbeat=heartbeat, jobs=jobs, **given)),
        )

    def _have_an_outage(self) -> None:
        """Sometimes a client dies with the server. It is buried when the server is gone too: then nothing it
        sent is on its way.
        """
        victim = self._rng.choice((None, None, *self._clients))
        if victim is not None:
            self._journal.done(self._journal.begin("client_killed", who=self._clients[victim][0]))
            self._clients[victim][1].kill()
            time.sleep(self._rng.choice((0, 0.05)))
        number = self._journal.begin("outage")
        self._server.kill()
        verified = fairlead.verify(self._server.data)
        self._report.problems += [f"verify after a kill: {problem}" for problem in verified.problems]
        if victim is not None:
            self._journal.died(self._clients[victim][0])
        self._server.restart()
        if victim is not None:
            self._end_key(victim)
            self._start(victim)
        self._journal.done(number)

    def _connect(self, api_key: str | None = None) -> fairlead.Client:
        return fairlead.connect(self._server.address, tls=self._tls, api_key=api_key or self._root_key)

    def _new_key(self, part: int) -> str | None:
        """It must be good through all kills to come, or its client fails."""
        if not self._plan.keys:
            return None
        with self._connect() as root:
            self._keys[part] = root.keys.create(f"life {self._lives}", [f"{right}:*" for right in Right])
        return self._keys[part].secret

    def _end_key(self, part: int) -> None:
        if not self._plan.keys:
            return
        key = self._keys.pop(part)
        with self._connect() as root:
            root.keys.revoke(key.info.id)
        self._revoked.append(key.secret)

    def _check_revoked(self) -> None:
        """A key that was revoked stays revoked, however often the server is killed."""
        for secret in self._revoked:
            with contextlib.suppress(fairlead.errors.Unauthenticated):
                self._connect(secret).close()
                self._report.problems.append("a revoked key is good again after a kill")

    def _wait_for_work(self) -> None:
        """Until every client has had answers, so that a kill falls into work and not into a pause between two
        tries.
        """
        self._look()
        before = Counter(self._done)
        until(
            lambda: (
                self._look()
                or all(self._done[life] >= before[life] + 20 for life, _ in self._clients.values())
            ),
            "every client being at work",
        )

    def _look(self) -> None:
        for life, client_process in self._clients.values():
            assert not client_process.ended, f"client {life} ended by itself:\n{client_process.complaint}"
        with self._path.open("rb") as journal:
            journal.seek(self._read)
            lines = journal.readlines()
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._read += len(line)
            if b'"ev":"done"' in line:
                self._done[int(line.rpartition(b'"life":')[2].partition(b",")[0])] += 1
