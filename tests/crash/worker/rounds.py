"""Kills at random moments: of a worker, of parts of it, and of its broker, while messages of all fates come
in.

The same seed gives the same plan: which messages there are and what becomes of each, who is killed, after how
many lines of the ledger, and how long after the last of these.
"""

from __future__ import annotations

import random
import shlex
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.pipeline.lives import Command
from tests.crash.pipeline.strikes import Kill, draw_kills, kill_again_and_again

from .trial import run_trial

#: Messages that come in before each kill is waited for, and again before the last life is left alone. Each
#: leaves at least six lines.
MESSAGES = 60
MOST_LINES = 4 * MESSAGES
#: Who can be killed where the steps are processes of `fairlead worker run`.
LOCAL = ("driver", "step", "broker")


@dataclass(frozen=True, slots=True)
class Plan:
    """`where` is what `torture` calls the worker."""

    seed: int
    where: str
    kills: tuple[Kill, ...]
    retain: bool

    @property
    def replay(self) -> str:
        kinds = ",".join(kill.kind for kill in self.kills)
        options = [
            "--rounds",
            "1",
            "--seed",
            str(self.seed),
            "--work",
            f"worker-{self.where}",
            "--kinds",
            kinds,
            "--keep",
        ]
        return shlex.join(["python", "-m", "tests.spark.crash.torture", *options])


@dataclass(slots=True)
class Report:
    plan: Plan
    directory: Path
    problems: list[str] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    messages: int = 0

    def __str__(self) -> str:
        shown = "\n  ".join(self.problems[:20])
        head = f"{len(self.problems)} problems with seed {self.plan.seed} of a worker ({self.plan.where}):"
        return f"{head}\n  {shown}\nplan: {self.plan.kills}\nreplay: {self.plan.replay}\ndirectory and ledger: {self.directory}"


def plan_round(seed: int, where: str, kinds: tuple[str, ...]) -> Plan:
    """`kinds` are killed in that order."""
    rng = random.Random(seed)
    return Plan(seed, where, draw_kills(rng, kinds, most_lines=MOST_LINES), retain=rng.random() < 0.5)


def run_round(plan: Plan, directory: Path, command: Command) -> Report:
    """`directory` is left behind, whatever happens; a round that ends early says why in its problems."""
    report = Report(plan, directory)
    try:
        with run_trial(directory, command, seed=plan.seed, retain=plan.retain) as trial:
            kill_again_and_again(trial, plan.kills, report.killed, before=lambda: trial.feed(MESSAGES))
            trial.feed(MESSAGES)
            code = trial.end()
            if code:
                report.problems.append(f"life {trial.lives} ended with {code}:\n{trial.said()}")
            report.lives, report.messages = trial.lives, len(trial.sent)
            report.problems += trial.audit(kills=len(plan.kills))
    except Exception:
        # Whatever happened in there, the seed must be told with it.
        report.problems.append(traceback.format_exc())
    return report
