"""Kills at random moments. The seed is drawn anew on every run; a failure prints it with the command that
replays the round.

`make torture` goes on where this stops.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .rounds import plan_round, run_round
from .trial import local_worker, run_trial

MORE = (("driver", "step", "driver"), ("broker", "driver", "broker"))
ROUNDS = [("step", "broker", "driver"), *(pytest.param(kinds, marks=pytest.mark.rounds) for kinds in MORE)]


@pytest.mark.parametrize("kinds", ROUNDS, ids="-".join)
def test_a_worker_loses_nothing_and_repeats_no_confirmed_step_whoever_is_killed(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    report = run_round(
        plan_round(random.SystemRandom().randrange(1 << 31), "process", kinds), tmp_path, local_worker
    )
    assert not report.problems, str(report)


def test_where_nobody_is_killed_each_step_is_done_once_and_fails_as_often_as_it_must(tmp_path: Path) -> None:
    with run_trial(tmp_path, local_worker, seed=1) as trial:
        trial.feed(120)
        trial.start()
        assert trial.end() == 0, trial.said()
        assert trial.audit() == []
