"""25 kills: four rounds of load with four each, and one round of three for every resumable operation. `make test` has the first.

The seed is drawn anew on every run; a failure prints it with the command that replays the round.
`make torture KILLS=1000` goes on where this stops.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .bulk import VERBS
from .rounds import plan_round, run_round


@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.rounds) for turn in (1, 2, 3))])
def test_a_broker_killed_under_load_keeps_what_it_confirmed(turn: int, tmp_path: Path) -> None:
    run_and_check("load", tmp_path)


@pytest.mark.rounds
@pytest.mark.parametrize("verb", VERBS)
def test_an_operation_of_many_steps_killed_between_them_is_finished_later(verb: str, tmp_path: Path) -> None:
    run_and_check(verb, tmp_path)


def run_and_check(work: str, directory: Path) -> None:
    report = run_round(plan_round(random.SystemRandom().randrange(1 << 31), work), directory)
    assert not report.problems, str(report)
