"""Rounds of random kills for the worker on Spark: see `tests/crash/worker/rounds.py`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import msgspec

from tests.crash.pipeline.lives import Command
from tests.crash.worker.rounds import Report, plan_round, run_round
from tests.spark.cluster import run_cluster
from tests.spark.crash.rounds import LOCAL_MASTER, ON_CLUSTER

from .driver import Life

#: The victims with a local master, and on a cluster.
LOCAL = ("driver", "jvm", "worker", "step", "broker")
CLUSTER = ("executor", "worker", "step", "broker", "driver")
BATCH = 40


def spark_worker(master: str, **options: object) -> Command:
    def command(home: Path, address: str) -> list[str]:
        life = msgspec.convert({"home": str(home), "address": address, "master": master, **options}, Life)
        return [sys.executable, "-m", "tests.spark.worker_trials.driver", msgspec.json.encode(life).decode()]

    return command


def run_local_round(seed: int, directory: Path, kinds: tuple[str, ...] | None = None) -> Report:
    """Three random kills, or `kinds` in this order."""
    rng = random.Random(seed)
    kinds = kinds or tuple(rng.choice(LOCAL) for _ in range(3))
    return run_round(plan_round(seed, "local", kinds), directory, spark_worker(LOCAL_MASTER, batch=BATCH))


def run_cluster_round(
    seed: int, directory: Path, kinds: tuple[str, ...] | None = None, url: str | None = None
) -> Report:
    """One kill of each kind. The driver is last, because it takes long to start again. Without a `url` it
    runs a cluster.
    """
    if url is None:
        with run_cluster(directory / "cluster") as cluster:
            return run_cluster_round(seed, directory, kinds, cluster.url)
    return run_round(
        plan_round(seed, "cluster", kinds or CLUSTER),
        directory,
        spark_worker(url, batch=BATCH, config=ON_CLUSTER),
    )
