"""Checkouts and bare RocksDB in turn, each in a process that stays open: `python -m bench.turns FIRST AFTER ...`.

A message is enqueued, claimed and completed: 1 KB, durability `os`, on RocksDB in a fresh directory. The contenders
run blocks of messages in turn, and each turn begins with another one. The figures are CPU time of the whole process for
one message. A ratio is that of a contender to the last checkout within the same turn: the median, with the quartiles.
A case is `name:batch:keys`. A checkout runs in its own `.venv`, or in this Python if it has none.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import IO, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.conditions import commit_of, conditions_here
from bench.in_turn import CASES

_RUN = Path(__file__).with_name("in_turn.py")
#: Messages of a block, by batch: about a twentieth of a second each.
_BLOCK = {1: 400, 10: 1_500, 500: 10_000}
_PLAIN = ["plain:1:10", "plain:1:1000", "plain:10:10", "plain:500:10", "plain:500:1000", "plain:500:100000"]
_DEFAULT = [*_PLAIN, *[f"{name}:{batch}:10" for name in CASES[1:] for batch in _BLOCK]]


class Case(NamedTuple):
    name: str
    batch: int
    keys: int

    @property
    def block(self) -> int:
        """Other messages than plain ones take about twice as long."""
        return _BLOCK[self.batch] // (1 if self.name == "plain" else 2)

    @classmethod
    def of(cls, text: str) -> Case:
        name, batch, keys = text.split(":")
        return cls(name, int(batch), int(keys))


class Contender:
    def __init__(self, checkout: Path, case: Case, *, is_bare: bool) -> None:
        own = checkout / ".venv/bin/python"
        command = [own if own.exists() else sys.executable, "-P", _RUN]
        command += ["bare" if is_bare else case.name, str(case.batch), str(case.keys)]
        path = os.pathsep.join([str(checkout / "src"), str(checkout)])
        self._process = subprocess.Popen(
            command,
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *trouble: object) -> None:
        _pipe(self._process.stdin).close()
        self._process.wait()
        _pipe(self._process.stdout).close()

    def run(self, count: int) -> float:
        questions, answers = _pipe(self._process.stdin), _pipe(self._process.stdout)
        questions.write(f"{count}\n")
        questions.flush()
        line = answers.readline()
        if not line:
            raise RuntimeError(f"a contender ended with {self._process.wait()}")
        return float(line)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def in_turn(checkouts: list[Path], case: Case, turns: int, *, with_bare: bool) -> list[list[float]]:
    """The figures of each contender, turn by turn; bare RocksDB is the last one."""
    sides = [(checkout, False) for checkout in checkouts] + [(checkouts[-1], True)] * with_bare
    found: list[list[float]] = [[] for _ in sides]
    with ExitStack() as stack:
        contenders = [
            stack.enter_context(Contender(checkout, case, is_bare=bare)) for checkout, bare in sides
        ]
        for contender in contenders:
            contender.run(2 * case.block)
        for turn in range(turns):
            for at in range(len(sides)):
                index = (turn + at) % len(sides)
                found[index].append(contenders[index].run(case.block))
    return found


def show_ratio(before: list[float], after: list[float]) -> str:
    ratios = [one / other for one, other in zip(before, after, strict=True)]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{median(ratios):.2f} ({low:.2f}..{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.turns", description=__doc__)
    parser.add_argument("checkouts", type=Path, nargs="+", help="directories; ratios are to the last one")
    parser.add_argument("--turns", type=int, default=13, help="default 13")
    parser.add_argument("--case", action="append", default=[], help="name:batch:keys; default: all")
    parser.add_argument("--bare", action="store_true", help="with bare RocksDB beside plain messages")
    options = parser.parse_args()
    checkouts = [path.resolve() for path in options.checkouts]
    names = [f"{path.name} {commit_of(path)}" for path in checkouts]
    last = names[-1]
    table = Table(
        "case", "batch", "keys", *names, *[f"{name} / {last}" for name in names[:-1]], "bare", "load"
    )
    for case in map(Case.of, options.case or _DEFAULT):
        with_bare = options.bare and case.name == "plain"
        found = in_turn(checkouts, case, options.turns, with_bare=with_bare)
        engines = found[: len(checkouts)]
        table.add_row(
            case.name,
            str(case.batch),
            f"{case.keys:,}",
            *[f"{median(one):.1f}" for one in engines],
            *[show_ratio(one, engines[-1]) for one in engines[:-1]],
            f"{median(found[-1]):.1f}: {show_ratio(found[-1], engines[-1])}" if with_bare else "",
            f"{os.getloadavg()[0]:.1f}",
        )
    here = conditions_here()
    console = Console(width=max(160, Console().width))
    console.print(
        f"{here.machine}, {here.cores} cores, {here.system}, Python {here.python}, rocksdict {here.rocksdict}"
    )
    console.print(f"{options.turns} turns, ended {here.measured}", table)


if __name__ == "__main__":
    main()
