"""Kills at random moments: of the driver, of parts of it, of executors, and of the broker, while a query
processes a queue. A seed gives a plan: the victims, after how many lines of the ledger each is killed, and
how long after the last of these lines.
"""

from __future__ import annotations

import json
import random
import shlex
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.crash.pipeline.lives import Command, run_pipeline
from tests.crash.pipeline.strikes import Kill, draw_kills, kill_again_and_again
from tests.spark.cluster import run_cluster

from .driver import FAILURES, Life

BATCH = 12
#: The least number of ledger lines of a batch: a claim, reads and stages of its slices, a publish and a
#: close, each twice.
LINES_OF_A_BATCH = 10
#: The victims with a local master, and the effect on a query: a task is retried, a source is not.
LOCAL = ("driver", "jvm", "worker", "source", "sink", "broker")
CLUSTER = ("executor", "worker", "source", "broker", "driver")
#: A failed task is retried, as on a cluster; plain `local[2]` gives up at the first failure.
LOCAL_MASTER = "local[2,4]"
#: Two executors of one core each.
ON_CLUSTER = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
ENDS_THE_QUERY = ("source", "sink")


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    master: str
    kills: tuple[Kill, ...]

    @property
    def replay(self) -> str:
        kinds = ",".join(kill.kind for kill in self.kills)
        work = "query-cluster" if self.master.startswith("spark://") else "query-local"
        options = ["--rounds", "1", "--seed", str(self.seed), "--work", work, "--kinds", kinds, "--keep"]
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
        head = f"{len(self.problems)} problems with seed {self.plan.seed} on {self.plan.master}:"
        return f"{head}\n  {shown}\nplan: {self.plan.kills}\nreplay: {self.plan.replay}\ndirectory and ledger: {self.directory}"


def plan_round(seed: int, master: str, kinds: tuple[str, ...] | None = None, count: int = 3) -> Plan:
    """`kinds` in this order, or `count` random kills."""
    rng = random.Random(seed)
    kinds = kinds or tuple(rng.choice(LOCAL) for _ in range(count))
    return Plan(seed, master, draw_kills(rng, kinds, most_lines=3 * LINES_OF_A_BATCH))


def plan_cluster_round(seed: int, master: str, kinds: tuple[str, ...] | None = None) -> Plan:
    """One kill of each kind. The driver is last, because it takes long to start again."""
    return plan_round(seed, master, kinds or CLUSTER)


def run_cluster_round(seed: int, directory: Path, kinds: tuple[str, ...] | None = None) -> Report:
    with run_cluster(directory / "cluster") as cluster:
        return run_round(plan_cluster_round(seed, cluster.url, kinds), directory, config=ON_CLUSTER)


def spark_command(master: str, **options: object) -> Command:
    def command(home: Path, address: str) -> list[str]:
        life = msgspec.convert(
            {"home": str(home), "address": address, "master": master, "batch": BATCH, **options}, Life
        )
        return [sys.executable, "-m", "tests.spark.crash.driver", msgspec.json.encode(life).decode()]

    return command


def run_round(plan: Plan, directory: Path, **options: object) -> Report:
    """Keeps `directory`. The problems of a round that ends early include the reason."""
    report = Report(plan, directory)
    query_ends = sum(kill.kind in ENDS_THE_QUERY for kill in plan.kills)
    try:
        with run_pipeline(directory, spark_command(plan.master, patience=query_ends, **options)) as pipeline:
            pipeline.feed(BATCH * (4 * len(plan.kills) + 2))
            kill_again_and_again(pipeline, plan.kills, report.killed)
            code = pipeline.end()
            if code:
                report.problems.append(f"life {pipeline.lives} ended with {code}:\n{pipeline.said()}")
            report.lives, report.messages = pipeline.lives, len(pipeline.sent)
            report.problems += _unexpected_failures(pipeline.home, query_ends)
            report.problems += pipeline.audit()
    except Exception:
        # Report any error together with the seed.
        report.problems.append(traceback.format_exc())
    return report


def _unexpected_failures(home: Path, expected: int) -> list[str]:
    """A query must survive a restart of the broker, and the death of an executor or a Python worker."""
    path = home / FAILURES
    failures = [json.loads(line)["error"] for line in path.read_text().splitlines()] if path.exists() else []
    return (
        [f"the query failed {len(failures)} times, and was made to fail {expected} times:", *failures]
        if len(failures) > expected
        else []
    )
