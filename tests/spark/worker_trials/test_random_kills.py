"""Kills at random moments. Every run has a new seed; a failure prints it with the command that replays the
round. `make torture SPARK_ROUNDS=10` runs more rounds.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.spark.cluster import Cluster

from .rounds import LOCAL, run_cluster_round, run_local_round


def draw_seed() -> int:
    return random.SystemRandom().randrange(1 << 31)


def test_a_worker_on_spark_loses_nothing_and_repeats_no_confirmed_step_whoever_is_killed(
    tmp_path: Path,
) -> None:
    seed = draw_seed()
    report = run_local_round(seed, tmp_path, tuple(random.Random(seed).sample(LOCAL, len(LOCAL))))
    assert not report.problems, str(report)


def test_a_worker_on_a_cluster_loses_nothing_and_repeats_no_confirmed_step_whoever_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    report = run_cluster_round(draw_seed(), tmp_path, url=cluster.url)
    assert not report.problems, str(report)
