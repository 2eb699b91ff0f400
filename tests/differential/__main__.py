"""`python -m tests.differential --first DIR --runs 10000 [--from N] [--jobs 2]` compares runs on both engines; `--seed N`
replays one and shows its first difference in full. DIR is a checkout of the first engine.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tests.differential.alike import Difference, first_difference
from tests.differential.transcript import Happened, Reopened
from tests.differential.wanted import name_of

ROOT = Path(__file__).parents[2]
#: How much of a differing answer is shown without `--seed`.
SHOWN_CHARACTERS = 400


class Engine:
    """A process that plays runs on the engine of a checkout."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.differential.play"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(checkout / "src"), str(ROOT)))},
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.communicate()

    def begin(self, seed: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % seed)
        self._process.stdin.flush()

    def finish(self) -> list[Happened]:
        """The transcript of the run that was begun. Raises `ChildProcessError` if the process has ended, as it does when
        `lend.py` lacks a name.
        """
        assert self._process.stdout is not None
        try:
            happened: list[Happened] = pickle.load(self._process.stdout)
        except EOFError as error:
            raise ChildProcessError(f"the process on {self._checkout} ended; see its error") from error
        return happened


class Tally:
    """What all runs did."""

    def __init__(self) -> None:
        self.runs = self.steps = self.delivered = self.reopenings = 0
        self.verbs = Counter[str]()
        self.wanted = Counter[str]()
        self.unknown = list[int]()

    def note(self, transcript: list[Happened]) -> None:
        self.runs += 1
        self.steps += len(transcript)
        for happened in transcript:
            self.delivered += len(happened.delivered)
            if isinstance(happened.answer, Reopened):
                self.delivered += len(happened.answer.keys)
            self.verbs[happened.verb] += 1
        self.reopenings += sum(happened.verb == "reopen" for happened in transcript)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--first", type=Path, required=True, help="a checkout of the first engine")
    parser.add_argument("--runs", type=int, default=10_000, help="how many (default 10000)")
    parser.add_argument("--from", type=int, default=0, dest="start", help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--jobs", type=int, default=1, help="pairs of processes (default 1)")
    options = parser.parse_args()
    replays = options.seed is not None
    seeds = [options.seed] if replays else range(options.start, options.start + options.runs)
    began, tally = time.monotonic(), Tally()
    for seed, transcript, difference in compare(seeds, options.first, 1 if replays else options.jobs):
        tally.note(transcript)
        if difference is not None:
            report(seed, difference, tally, options.first, None if replays else SHOWN_CHARACTERS)
        if tally.runs % 100 == 0:
            print(
                f"{tally.runs} runs, {tally.steps} steps, {time.monotonic() - began:.0f} s: "
                f"{len(tally.unknown)} unknown differences",
                flush=True,
            )
    conclude(tally, time.monotonic() - began)
    return 1 if tally.unknown else 0


def compare(
    seeds: Iterable[int], first: Path, jobs: int
) -> Iterator[tuple[int, list[Happened], Difference | None]]:
    """The transcript of each run on today's engine, and where it first differs from that on the first one."""
    with ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        pairs = SimpleQueue[tuple[Engine, Engine]]()
        for _ in range(jobs):
            pairs.put((stack.enter_context(Engine(first)), stack.enter_context(Engine(ROOT))))

        def run(seed: int) -> tuple[int, list[Happened], Difference | None]:
            pair = pairs.get()
            try:
                for engine in pair:
                    engine.begin(seed)
                expected, got = [engine.finish() for engine in pair]
            finally:
                pairs.put(pair)
            return seed, got, first_difference(expected, got)

        yield from pool.map(run, seeds)


def report(seed: int, difference: Difference, tally: Tally, first: Path, characters: int | None) -> None:
    if name := name_of(seed):
        tally.wanted[name] += 1
    else:
        tally.unknown.append(seed)
    step, verb, path, expected, got = difference
    print(f"seed {seed}, step {step}, {verb} {path}: {name or 'unknown'}")
    print(f"  first: {str(expected)[:characters]}")
    print(f"  today: {str(got)[:characters]}")
    print(f"  replay: python -m tests.differential --first {first} --seed {seed}", flush=True)


def conclude(tally: Tally, seconds: float) -> None:
    print(
        f"{tally.runs} runs, {tally.steps} steps, {tally.delivered} deliveries, {tally.reopenings} reopenings in "
        f"{seconds:.0f} s"
    )
    print("verbs:", ", ".join(f"{verb} {count}" for verb, count in sorted(tally.verbs.items())))
    for name, count in tally.wanted.items():
        print(f"wanted: {name}: {count}")
    print(f"unknown: {len(tally.unknown)} {tally.unknown or ''}")


if __name__ == "__main__":
    sys.exit(main())
