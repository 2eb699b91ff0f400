"""Some seeds of the simulated door. `python -m tests.simulation.turn --seeds 10000` runs more, `--seed n` replays one."""

from __future__ import annotations

import os
import random

import pytest

from tests.sampling import sampled
from tests.simulation.turn.__main__ import live, replay_command

#: Every run draws other seeds; FAIRLEAD_SIM_FIRST fixes them.
FIRST = int(os.environ.get("FAIRLEAD_SIM_FIRST") or random.SystemRandom().randrange(1 << 31))
SEEDS = int(os.environ.get("FAIRLEAD_SIM_SEEDS") or sampled(50, of=200))
GROUPS = 4


@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_answered_is_lost_and_no_effect_is_doubled(group: int) -> None:
    for seed in range(FIRST + group, FIRST + SEEDS, GROUPS):
        try:
            live(seed)
        except BaseException as broken:
            broken.add_note(f"replay: {replay_command(seed)}")
            raise


def test_a_seed_replays_the_same_life() -> None:
    told: list[list[str]] = [[], []]
    for steps in told:
        live(7, steps)
    assert told[0] == told[1]
