"""One round: several lives on one directory, each ended by SIGKILL and followed by `verify`; then the account
is settled.
"""

from __future__ import annotations

import random
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import fairlead
from fairlead.errors import InvalidRequest
from fairlead.testing import Durability, ManualClock

from .bulk import VERBS, half_done, happened
from .child import LOADS, Life
from .history import History
from .journal import Journal, RecordedBroker, read_journal, read_tag
from .ledger import check

ROOT = Path(__file__).resolve().parents[2]
WORKS = (*LOADS, *VERBS)
#: Opening and preparing 30,000 messages takes a second or two; a child that says nothing for so long hangs.
PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Kill:
    """After so many ms from "ready"; or at a step of the bulk operation, and then `after_ms` is only how long
    to wait for it.
    """

    after_ms: int
    die_at: int = 0
    die_before: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    work: str
    durability: Durability
    kills: tuple[Kill, ...]

    @property
    def replay(self) -> str:
        return shlex.join(
            [
                "python",
                "-m",
                "tests.crash.torture",
                "--rounds",
                "1",
                "--seed",
                str(self.seed),
                "--work",
                self.work,
                "--keep",
            ]
        )


@dataclass(slots=True)
class Report:
    """`cut_off` counts operations that had begun and were not confirmed at a kill; `resumed` says that a bulk
    operation was among them, had left its mark, and was finished in a later life.
    """

    plan: Plan
    directory: Path
    problems: list[str]
    kills: int = 0
    messages: int = 0
    deliveries: int = 0
    cut_off: int = 0
    resumed: bool = False

    def __str__(self) -> str:
        shown = "\n  ".join(self.problems[:20])
        head = f"{len(self.problems)} problems with seed {self.plan.seed} ({self.plan.work}):"
        return f"{head}\n  {shown}\nreplay: {self.plan.replay}\ndirectory and journals: {self.directory}"


def plan_round(seed: int, work: str) -> Plan:
    """The same seed and work give the same plan; the moment a timer fires is the only thing that cannot be
    replayed.
    """
    rng = random.Random(f"{seed}-{work}")
    durability: Durability = rng.choice(("os", "fsync"))
    if work in LOADS:
        latest_ms = 1200 if work == "logs" else 400
        return Plan(seed, work, durability, tuple(Kill(rng.randint(20, latest_ms)) for _ in range(4)))
    kills = []
    for number in range(3):
        if rng.random() < 0.7:
            kills.append(
                Kill(
                    4000 if number == 0 else 600,
                    die_at=rng.randint(1, 5 if number == 0 else 2),
                    die_before=rng.random() < 0.5,
                )
            )
        else:
            kills.append(Kill(rng.randint(0, 400 if number == 0 else 120)))
    return Plan(seed, work, durability, tuple(kills))


def run_round(plan: Plan, directory: Path, on_kill: Callable[[], None] = lambda: None) -> Report:
    """`directory` must be empty and is left behind, whatever happens; a round that ends early says why in its
    problems.
    """
    report = Report(plan, directory, [])
    try:
        _kill_again_and_again(plan, directory, report, on_kill)
        if not report.problems:
            _settle_account(plan, directory, report)
    except Exception:
        # Whatever the broker threw at us in here, the seed must be told with it.
        report.problems.append(traceback.format_exc())
    return report


def _kill_again_and_again(plan: Plan, directory: Path, report: Report, on_kill: Callable[[], None]) -> None:
    data = directory / "data"
    for number, kill in enumerate(plan.kills):
        life = Life(
            str(data),
            str(directory),
            plan.seed,
            number,
            plan.work,
            plan.durability,
            kill.die_at,
            kill.die_before,
        )
        complaint = _live_and_die(life, kill, directory / f"stderr-{number:03}.txt")
        report.kills += 1
        on_kill()
        if complaint:
            report.problems.append(complaint)
            return
        verified = fairlead.verify(data)
        if not verified.ok:
            report.problems += [f"verify after kill {number}: {problem}" for problem in verified.problems]
            return


def _live_and_die(life: Life, kill: Kill, stderr: Path) -> str | None:
    command = [sys.executable, "-m", "tests.crash.child", msgspec.json.encode(life).decode()]
    with (
        stderr.open("wb") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT
        ) as child,
    ):
        assert child.stdout is not None
        watchdog = _kill_later(child, PATIENCE_S)
        ready = child.stdout.readline() == b"ready\n"
        watchdog()
        if ready:
            try:
                child.wait(kill.after_ms / 1000)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
        code = child.wait()
    if code != -signal.SIGKILL or not (ready or life.die_at):
        return f"life {life.number} ended by itself with code {code} (ready: {ready}):\n{stderr.read_text()[-3000:]}"
    return None


def _kill_later(child: subprocess.Popen[bytes], seconds: float) -> Callable[[], None]:
    timer = threading.Timer(seconds, child.kill)
    timer.start()
    return timer.cancel


def _settle_account(plan: Plan, directory: Path, report: Report) -> None:
    """Reopen, let everything become claimable, drain it, and hold the whole history against the rules."""
    last = len(plan.kills)
    drained = drain_and_verify(directory / "data", directory / f"life-{last:03}.jsonl", last, report)
    history = History()
    for number in range(last + 1):
        history.add_life(read_journal(directory / f"life-{number:03}.jsonl"))
    audit(history, report)
    # On a busy machine every life may die before it begins the operation; then there is nothing more to say
    # about it.
    if plan.work not in LOADS and (begun := history.of(plan.work)):
        (operation,) = begun
        report.problems += [
            f"half done: {what}" for what in half_done(plan.work, operation.confirmed, drained.values())
        ]
        report.resumed = operation.goes_on and happened(plan.work, drained.values())


def drain_and_verify(data: Path, journal: Path, life: int, report: Report) -> dict[str, tuple[str, str]]:
    """Completes whatever there is, in a broker of its own. Gives id -> (tag, queue)."""
    clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
    told = Journal(journal, life, clock.now_ms)
    with fairlead.open(data, durability="os", clock=clock) as broker:
        counted, drained = _drain(RecordedBroker(broker, told), clock)
    told.close()
    if counted != len(drained):
        report.problems.append(
            f"counters: after the last reopening they said {counted} messages, a full drain found {len(drained)}"
        )
    verified = fairlead.verify(data)
    report.problems += [f"verify after the drain: {problem}" for problem in verified.problems]
    if verified.messages:
        report.problems.append(
            f"leftovers: {verified.messages} messages are stored after everything was completed"
        )
    return drained


def audit(history: History, report: Report) -> None:
    report.problems += [str(problem) for problem in check(history)]
    report.messages, report.deliveries = len(history.enqueues), len(history.deliveries)
    report.cut_off = sum(not o.confirmed and not o.refused for o in history.operations)


def _drain(recorded: RecordedBroker, clock: ManualClock) -> tuple[int, dict[str, tuple[str, str]]]:
    """How many messages the counters know once resumed operations are through, and id -> (tag, queue) of all
    that came out.
    """
    broker = recorded.broker
    broker.run_due()
    for _ in range(1000):
        if not _intents(broker):
            break
        clock.advance(ms=10)
    counted = _stored(broker)
    drained: dict[str, tuple[str, str]] = {}
    step_ms = 50
    for _ in range(60):
        for queue in _names(broker):
            while deliveries := recorded.claim(queue, limit=2000, consumer="drain"):
                drained.update((d.id, (read_tag(d.payload), d.queue)) for d in deliveries)
                recorded.settle([fairlead.Complete(d) for d in deliveries])
        if not _stored(broker):
            break
        clock.advance(ms=step_ms)
        step_ms = min(step_ms * 2, 900_000)
    # What is done is kept for an hour at most.
    clock.advance(seconds=3600)
    return counted, drained


def _intents(broker: fairlead.Broker) -> list[Any]:
    try:
        return broker.intents()
    except InvalidRequest:
        # An engine that does not know the verb yet has no operation to go on with.
        return []


def _stored(broker: fairlead.Broker) -> int:
    return sum(s.ready + s.waiting + s.leased for s in map(broker.stats, _names(broker)))


def _names(broker: fairlead.Broker) -> list[str]:
    names = {info.name for info in broker.queues()}
    return sorted(names | {name + ".dlq" for name in names if not name.endswith(".dlq")})
