"""Checkouts in turn at the RESP door without sockets: `python -m bench.door_turns FIRST AFTER ...`.

Each checkout serves lifecycles in a process that stays open (`bench/without_sockets.py`). The contenders run blocks in
turn, and each turn begins with another one. The figures are CPU microseconds of the server for one command: the least
of all turns. A ratio is that of the last checkout to the one before within the same turn: the median, with the
quartiles. A checkout runs in its own `.venv`, or in this Python if it has none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.table import Table

from bench.conditions import commit_of, conditions_here
from bench.turns import show_ratio
from bench.without_sockets import CASES

_RUN = Path(__file__).with_name("without_sockets.py")
_BLOCK = 200

Figures = dict[str, float]


class Contender:
    def __init__(self, checkout: Path, case: str) -> None:
        own = checkout / ".venv/bin/python"
        self._process = subprocess.Popen(
            [own if own.exists() else sys.executable, "-P", _RUN, case],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout / "src"), str(checkout)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, count: int) -> Figures:
        questions, answers = _pipe(self._process.stdin), _pipe(self._process.stdout)
        questions.write(f"{count}\n")
        questions.flush()
        line = answers.readline()
        if not line:
            raise RuntimeError(f"a contender ended with {self._process.wait()}")
        figures: Figures = json.loads(line)
        return figures

    def close(self) -> None:
        _pipe(self._process.stdin).close()
        self._process.wait()
        _pipe(self._process.stdout).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def in_turn(checkouts: list[Path], case: str, turns: int) -> list[list[Figures]]:
    """The figures of each checkout, turn by turn."""
    contenders = [Contender(checkout, case) for checkout in checkouts]
    found: list[list[Figures]] = [[] for _ in contenders]
    try:
        for contender in contenders:
            contender.run(2 * _BLOCK)
        for turn in range(turns):
            for at in range(len(contenders)):
                index = (turn + at) % len(contenders)
                found[index].append(contenders[index].run(_BLOCK))
    finally:
        for contender in contenders:
            contender.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.door_turns", description=__doc__)
    parser.add_argument("checkouts", type=Path, nargs="+", help="directories; the last one is the new one")
    parser.add_argument("--turns", type=int, default=31, help="default 31")
    parser.add_argument("--case", action="append", default=[], choices=CASES, help="default: all")
    options = parser.parse_args()
    checkouts = [path.resolve() for path in options.checkouts]
    names = [f"{path.name} {commit_of(path)}" for path in checkouts]
    table = Table("case", "step", *names, *[f"{names[-1]} / {name}" for name in names[:-1]], "load")
    for case in options.case or CASES:
        found = in_turn(checkouts, case, options.turns)
        for step in found[0][0]:
            of_step = [[figures[step] for figures in side] for side in found]
            table.add_row(
                case,
                step,
                *[f"{min(side):.1f}" for side in of_step],
                *[show_ratio(of_step[-1], side) for side in of_step[:-1]],
                f"{os.getloadavg()[0]:.1f}",
            )
    here = conditions_here()
    console = Console(width=max(140, Console().width))
    console.print(f"{here.machine}, {here.cores} cores, {here.system}, Python {here.python}")
    console.print(f"{options.turns} turns, ended {here.measured}", table)


if __name__ == "__main__":
    main()
