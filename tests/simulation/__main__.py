"""`python -m tests.simulation --runs 1000 [--first N]` simulates many lives; `--seed N` replays one and tells
every step.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import traceback
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.life import Life

STEPS = 40
#: One life in so many is on disk: opening a directory again and again takes most of its time.
ON_DISK_EVERY = 50


def live(seed: int, say: list[str] | None = None) -> Life:
    """One whole life. The seed alone decides everything about it."""
    with tempfile.TemporaryDirectory(prefix="fairlead-sim-") as directory:
        life = Life(
            seed,
            Path(directory),
            on_disk=seed % ON_DISK_EVERY == 0,
            say=say.append if say is not None else lambda line: None,
        )
        life.run(STEPS)
        return life


def replay_command(seed: int) -> str:
    return f"make sim SEED={seed}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--runs", type=int, default=1000, help="how many lives (default 1000)")
    parser.add_argument("--first", type=int, help="seed of the first (default: drawn)")
    options = parser.parse_args()
    return replay(options.seed) if options.seed is not None else many(options.runs, options.first)


def replay(seed: int) -> int:
    told: list[str] = []
    try:
        life = live(seed, told)
    except BaseException:
        print("\n".join(told))
        traceback.print_exc()
        return 1
    print("\n".join(told))
    print(f"seed {seed}: {life.made} messages, {life.cuts} cuts, every promise kept")
    return 0


def many(runs: int, first: int | None) -> int:
    first = random.SystemRandom().randrange(1 << 31) if first is None else first
    console = Console()
    console.print(f"seeds {first} to {first + runs - 1}", highlight=False)
    bad: dict[int, str] = {}
    made = cuts = 0
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        bar = progress.add_task("lives", total=runs)
        for seed in range(first, first + runs):
            try:
                life = live(seed)
                made, cuts = made + life.made, cuts + life.cuts
            except KeyboardInterrupt:
                raise
            except BaseException as broken:
                bad[seed] = f"{type(broken).__name__}: {broken}"
                progress.console.print(
                    f"{replay_command(seed)}    {bad[seed]}", markup=False, highlight=False
                )
            progress.update(bar, advance=1, description=f"lives, {len(bad)} bad")
    console.print(f"{runs} lives, {made:,} messages, {cuts:,} cuts, {len(bad)} bad", highlight=False)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
