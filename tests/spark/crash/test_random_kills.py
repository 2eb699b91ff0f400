"""Kills at random moments. Every run has a new seed; a failure prints it with the command that replays the
round. `make torture SPARK_ROUNDS=10` runs more rounds.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.spark.cluster import Cluster

from .rounds import LOCAL, LOCAL_MASTER, ON_CLUSTER, plan_cluster_round, plan_round, run_round


def draw_seed() -> int:
    return random.SystemRandom().randrange(1 << 31)


def test_a_query_loses_nothing_whoever_is_killed(tmp_path: Path) -> None:
    seed = draw_seed()
    report = run_round(
        plan_round(seed, LOCAL_MASTER, tuple(random.Random(seed).sample(LOCAL, len(LOCAL)))), tmp_path
    )
    assert not report.problems, str(report)


def test_a_query_on_a_cluster_loses_nothing_whoever_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    report = run_round(plan_cluster_round(draw_seed(), cluster.url), tmp_path, config=ON_CLUSTER)
    assert not report.problems, str(report)
