"""A few hundred simulated lives. `make sim RUNS=10000` lives more of them, `make sim SEED=n` replays one and
tells every step.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.sampling import sampled
from tests.simulation.__main__ import live, replay_command

#: Every run draws other lives; FAIRLEAD_SIM_FIRST fixes them.
FIRST = int(os.environ.get("FAIRLEAD_SIM_FIRST") or random.SystemRandom().randrange(1 << 31))
LIVES = int(os.environ.get("FAIRLEAD_SIM_LIVES") or sampled(150, of=600))
GROUPS = 6


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_promise_is_kept_in_every_life(group: int) -> None:
    for seed in range(FIRST + group, FIRST + LIVES, GROUPS):
        try:
            live(seed)
        except BaseException as broken:
            broken.add_note(f"replay: {replay_command(seed)}")
            raise


@pytest.mark.parametrize("seed", [7, 50])
def test_a_seed_replays_the_same_life_step_by_step(seed: int) -> None:
    told: list[list[str]] = [[], []]
    for steps in told:
        live(seed, steps)
    assert told[0] == told[1]
