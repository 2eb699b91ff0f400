"""`python -m tests.simulation.turn --seeds 10000 [--first N] [--jobs 2]` simulates the door that speaks Redis, each seed
a server and ten clients; `--seed N` replays one and tells every step.
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.turn.life import Life

STEPS = 800
_SEEDS_OF_A_JOB = 20


class Found(NamedTuple):
    """What some seeds were like. `bad` has why, by seed."""

    answers: int
    repeats: int
    deliveries: int
    crashes: int
    breaks: int
    bad: dict[int, str]


def live(seed: int, told: list[str] | None = None) -> Life:
    """One whole life. The seed alone decides everything about it."""
    life = Life(seed, told.append if told is not None else lambda line: None)
    life.run(STEPS)
    return life


def live_many(seeds: range) -> Found:
    counts, bad = [0] * 5, {}
    for seed in seeds:
        try:
            life = live(seed)
        except Exception as broken:
            bad[seed] = f"{type(broken).__name__}: {broken}"
            continue
        account = life.account
        found = account.answers, account.repeats, account.deliveries, life.crashes, life.breaks
        counts = [count + one for count, one in zip(counts, found, strict=True)]
    return Found(*counts, bad)


def replay_command(seed: int) -> str:
    return f"python -m tests.simulation.turn --seed {seed}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.turn", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--first", type=int, help="the first seed (default: drawn)")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side (default 1)")
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options.seed)
    first = random.SystemRandom().randrange(1 << 31) if options.first is None else options.first
    return many(range(first, first + options.seeds), options.jobs)


def replay(seed: int) -> int:
    told: list[str] = []
    try:
        live(seed, told)
    except Exception:
        print("\n".join(told))
        traceback.print_exc()
        return 1
    print("\n".join(told))
    print(f"seed {seed}: every promise kept")
    return 0


def many(seeds: range, jobs: int) -> int:
    console = Console()
    console.print(f"seeds {seeds.start} to {seeds.stop - 1}", highlight=False)
    parts = [seeds[at : at + _SEEDS_OF_A_JOB] for at in range(0, len(seeds), _SEEDS_OF_A_JOB)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bad: dict[int, str] = {}
    sums = [0] * 5
    with Progress(*columns, console=console) as progress, ProcessPoolExecutor(jobs) as pool:
        bar = progress.add_task("seeds", total=len(seeds))
        running: dict[Future[Found], range] = {pool.submit(live_many, part): part for part in parts}
        while running:
            over, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in over:
                part, found = running.pop(future), future.result()
                sums = [count + one for count, one in zip(sums, found[:5], strict=True)]
                for seed, why in found.bad.items():
                    shown = f"seed {seed}: {why}\nreplay: {replay_command(seed)}"
                    progress.console.print(shown, markup=False, highlight=False)
                bad |= found.bad
                progress.update(bar, advance=len(part), description=f"seeds, {len(bad)} bad")
    answers, repeats, deliveries, crashes, breaks = sums
    told = f"{answers:,} answers, {repeats:,} of them again, {deliveries:,} deliveries"
    console.print(
        f"{len(seeds)} seeds, {told}, {crashes:,} crashes, {breaks:,} broken connections, {len(bad)} bad",
        highlight=False,
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
