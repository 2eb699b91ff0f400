"""25 kills: four rounds of load with four each, and one round of three for every resumable operation.

The seed is drawn anew on every run; a failure prints it with the command that replays the round.
`make torture KILLS=1000` goes on where this stops.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .rounds import plan_round, run_round


@pytest.mark.parametrize("work", ["load", "load", "load", "load", "purge", "delete_queue", "redrive"])
def test_a_killed_broker_keeps_what_it_confirmed(work: str, tmp_path: Path) -> None:
    report = run_round(plan_round(random.SystemRandom().randrange(1 << 31), work), tmp_path)
    assert not report.problems, str(report)
