"""One round: a server killed again and again under clients that reconnect; then the account is settled with
the crash tests' ledger.

All processes write into one journal. A line is there before its request is sent and after its answer has
come, so the order of lines is an order in which things can have happened, whoever wrote them.
"""

from __future__ import annotations

import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import fairlead
from fairlead.clock import SystemClock
from fairlead.testing import Durability, ServerProcess, run_server
from tests.crash.history import History
from tests.crash.journal import Journal, read_journal
from tests.crash.rounds import Kill, Plan, Report, audit, drain_and_verify

from .load import PARTS, QUEUES, RecordedClient
from .processes import ClientProcess, until

WORK = "doors"


def plan_round(seed: int, kills: int = 4) -> Plan:
    """The same seed gives the same plan; the moments at which a kill falls cannot be replayed."""
    rng = random.Random(f"{seed}-{WORK}")
    durability: Durability = rng.choice(("os", "fsync"))
    return Plan(seed, WORK, durability, tuple(Kill(rng.randint(0, 400)) for _ in range(kills)))


def run_round(plan: Plan, directory: Path, on_kill: Callable[[], None] = lambda: None) -> Report:
    """`directory` must be empty and is left behind, whatever happens; a round that ends early says why in its
    problems.
    """
    report = Report(plan, directory, [])
    try:
        with (
            run_server(directory / "data", settings={"durability": plan.durability}) as server,
            ExitStack() as stack,
        ):
            _Round(plan, directory / "journal.jsonl", server, stack, report).run(on_kill)
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
        self, plan: Plan, journal: Path, server: ServerProcess, stack: ExitStack, report: Report
    ) -> None:
        self._plan = plan
        self._rng = random.Random(f"{plan.seed}-{WORK}-run")
        self._path = journal
        self._journal = Journal(journal, 0, SystemClock().now_ms)
        self._server = server
        self._stack = stack
        self._report = report
        self._lives = 0
        self._clients: dict[int, tuple[int, ClientProcess]] = {}
        self._read = 0
        self._done: Counter[int] = Counter()

    def run(self, on_kill: Callable[[], None]) -> None:
        with fairlead.connect(self._server.address) as client:
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
            self._start(victim)
        self._server.restart()
        self._journal.done(number)

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
