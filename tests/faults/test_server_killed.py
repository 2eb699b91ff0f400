"""Six kills of a loaded server: two rounds of three, with clients that reconnect, and some that are killed
with it.

The seed is drawn anew on every run; a failure prints it with the command that replays the round.
`make torture KILLS=100 ARGS="--work doors"` goes on where this stops.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .rounds import plan_round, run_round


@pytest.mark.rounds
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_server_killed_under_load_loses_and_doubles_nothing(durability: str, tmp_path: Path) -> None:
    draw = random.SystemRandom()
    plan = next(
        plan
        for plan in iter(lambda: plan_round(draw.randrange(1 << 31), kills=3), None)
        if plan.durability == durability
    )
    report = run_round(plan, tmp_path)
    assert not report.problems, str(report)
    assert report.deliveries > 0
