"""Two checkouts in one interleaved run: `python -m bench.compare BEFORE AFTER`.

Each names a directory with its own `.venv`. A round runs both checkouts once for each way (in process,
through a server) and batch size, one after the other, each in a fresh process; the next round starts with the
other checkout. A message is enqueued, claimed and completed: 1 KB, 10 fairness keys, durability `os`. The
figures are CPU time per message, because wall time on a shared machine measures its neighbours.

The ratio AFTER/BEFORE is taken within each round, and its median is shown with a 95 % interval (order
statistics, so single disturbed rounds do not matter). An interval that contains 1 shows no difference.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from math import floor, sqrt
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

from bench.conditions import commit_of, conditions_here
from bench.rates import Spread, spread

_RUN = Path(__file__).with_name("compared.py")
_LONGEST_RUN_S = 120
#: A way and a batch size, with the number of messages that take about a second of CPU time.
CASES = {
    ("in process", 1): 4_000,
    ("in process", 500): 60_000,
    ("server", 1): 800,
    ("server", 500): 30_000,
}
Case = tuple[str, int]


class Run(msgspec.Struct, frozen=True):
    """CPU microseconds per message of both processes; messages per second."""

    client: float
    server: float
    rate: float

    @property
    def cpu_us(self) -> float:
        return self.client + self.server


class Compared(msgspec.Struct, frozen=True):
    """One run of each checkout per round."""

    before: list[Run]
    after: list[Run]

    def ratio(self) -> Spread:
        """The median of the rounds' after/before in CPU time, with its 95 % interval; with fewer than 11
        rounds, the least and the most."""
        pairs = zip(self.before, self.after, strict=True)
        ratios = sorted(after.cpu_us / before.cpu_us for before, after in pairs)
        skipped = max(0, floor(len(ratios) / 2 - 0.98 * sqrt(len(ratios))) - 1)
        return Spread(median(ratios), ratios[skipped], ratios[-1 - skipped])


def run_once(checkout: Path, case: Case, messages: int) -> Run:
    way, batch = case
    # -P: the modules beside the file must not hide those of the checkout.
    command = [checkout / ".venv/bin/python", "-P", _RUN, way, str(batch), str(messages)]
    done = subprocess.run(
        command, cwd=checkout, capture_output=True, text=True, check=False, timeout=_LONGEST_RUN_S
    )
    if done.returncode:
        raise RuntimeError(f"a run in {checkout} failed:\n{done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Run)


def compare(
    before: Path, after: Path, cases: dict[Case, int], rounds: int, console: Console
) -> dict[Case, Compared]:
    """Prints each round as it is done, and all figures at the end."""
    found = {case: Compared([], []) for case in cases}
    loads: list[float] = []
    for turn in range(rounds):
        loads.append(os.getloadavg()[0])
        for case, messages in cases.items():
            sides = [(before, found[case].before), (after, found[case].after)]
            for checkout, runs in sides if turn % 2 == 0 else sides[::-1]:
                runs.append(run_once(checkout, case, messages))
        console.print(f"round {turn + 1} of {rounds}, load {loads[-1]:.1f}", highlight=False)
    here = conditions_here()
    console.print(
        f"{here.machine}, {here.cores} cores, Python {here.python}, ended {here.measured}\n"
        f"{rounds} rounds, load {spread(loads).show(1)}\n"
        f"before: {before}, {commit_of(before)}\nafter: {after}, {commit_of(after)}",
        _table(found),
        highlight=False,
    )
    return found


def _table(found: dict[Case, Compared]) -> Table:
    table = Table("where", "batch", "checkout", "CPU µs per message", "client", "server", "messages/s")
    for (way, batch), compared in found.items():
        for name, runs in (("before", compared.before), ("after", compared.after)):
            client, server = (median([getattr(run, side) for run in runs]) for side in ("client", "server"))
            table.add_row(
                way,
                str(batch),
                name,
                spread([run.cpu_us for run in runs]).show(1),
                f"{client:,.1f}",
                f"{server:,.1f}",
                f"{median([run.rate for run in runs]):,.0f}",
            )
        table.add_row(way, str(batch), "after/before", compared.ratio().show(3), end_section=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description="Compare two checkouts.")
    parser.add_argument("before", type=Path, help="a checkout with its own .venv")
    parser.add_argument("after", type=Path, help="the other one; ratios are after/before")
    parser.add_argument("--rounds", type=int, default=31, help="default 31")
    parser.add_argument("--way", choices=sorted({way for way, _ in CASES}), help="default: both")
    parser.add_argument(
        "--batch", type=int, choices=sorted({batch for _, batch in CASES}), help="default: both"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the messages of a run (default 1.0)")
    options = parser.parse_args()
    cases = {
        (way, batch): max(batch, int(messages * options.share) // batch * batch)
        for (way, batch), messages in CASES.items()
        if options.way in (None, way) and options.batch in (None, batch)
    }
    compare(options.before.resolve(), options.after.resolve(), cases, options.rounds, Console())


if __name__ == "__main__":
    main()
