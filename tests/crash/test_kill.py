"""33 kills: six rounds of load with four each, two of them with many live logs, and one round of three for
every resumable operation. `make test` has the first.

The seed is drawn anew on every run; a failure prints it with the command that replays the round.
`make torture KILLS=1000` goes on where this stops.
"""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import pytest

from fairlead.testing import Durability

from .bulk import VERBS
from .rounds import Plan, plan_round, run_round


@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.rounds) for turn in (1, 2, 3))])
def test_a_broker_killed_under_load_keeps_what_it_confirmed(turn: int, tmp_path: Path) -> None:
    run_and_check(draw_plan("load"), tmp_path)


@pytest.mark.rounds
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_broker_killed_with_many_live_logs_opens_with_what_it_confirmed(
    durability: Durability, tmp_path: Path
) -> None:
    first = random.SystemRandom().randrange(1 << 31)
    plans = (plan_round(seed, "logs") for seed in count(first))
    run_and_check(next(plan for plan in plans if plan.durability == durability), tmp_path)


@pytest.mark.rounds
@pytest.mark.parametrize("verb", VERBS)
def test_an_operation_of_many_steps_killed_between_them_is_finished_later(verb: str, tmp_path: Path) -> None:
    run_and_check(draw_plan(verb), tmp_path)


def draw_plan(work: str) -> Plan:
    return plan_round(random.SystemRandom().randrange(1 << 31), work)


def run_and_check(plan: Plan, directory: Path) -> None:
    report = run_round(plan, directory)
    assert not report.problems, str(report)
