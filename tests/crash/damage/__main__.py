"""`python -m tests.crash.damage [--sample N] [--seed N]`: damage every file of a data directory in every way,
and open it.

The whole sweep takes minutes. `--power` damages what no sync has covered, as a power cut does, with marks of
another boot. `--case CASE --base DIR` replays one damage of a directory that a failed run has kept.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .boots import ANOTHER_BOOT, NO_BOOT
from .cases import Case, all_cases, parse_case, sample
from .judge import DamageJudge, Judge, Outcome
from .power import PowerJudge, power_cases
from .victim import make_directory

POWER_CUTS = 500
BOOTS = {"restarted": ANOTHER_BOOT, "no-boot-id": NO_BOOT}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.damage", description=__doc__)
    parser.add_argument(
        "--sample", type=int, help="so many cases, drawn evenly from every kind (default: all)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(1 << 31),
        help="seed of the random damages and the sample",
    )
    parser.add_argument(
        "--of",
        choices=("synced", "tables", "checkpoint"),
        default="synced",
        help="a killed broker's directory, the tables of one that has many, or a checkpoint",
    )
    parser.add_argument(
        "--power",
        choices=("restarted", "no-boot-id"),
        help="simulate power cuts, on a system with a boot id or without",
    )
    parser.add_argument("--base", type=Path, help="a directory that a failed run has kept")
    parser.add_argument("--case", action="append", help="only this one, such as 000010.log:flip:4312")
    options = parser.parse_args()
    console = Console()
    memory = Path("/dev/shm")
    home = Path(
        tempfile.mkdtemp(prefix="fairlead-damage-", dir=memory if os.access(memory, os.W_OK) else None)
    )
    base = options.base or make_directory(home, "unsynced" if options.power else options.of)
    judge = PowerJudge(base, home, BOOTS[options.power]) if options.power else DamageJudge(base, home)
    cases = [parse_case(text) for text in options.case or ()] or _draw_cases(base, options)
    console.print(f"seed {options.seed}, {len(cases):,} cases")
    sums: dict[tuple[str, str], Counter[str]] = {}
    bad: list[tuple[Case, Outcome]] = []
    for case, outcome in _judged(judge, cases, console):
        sums.setdefault((case.kind, case.how), Counter())[outcome.what] += 1
        if options.case:
            console.print(f"{case}: {outcome.what} {outcome.text}", markup=False, highlight=False)
        if outcome.what not in judge.good:
            bad.append((case, outcome))
    _show(sums, judge.good, console)
    for case, outcome in bad[:20]:
        how = ["--power", options.power] if options.power else []
        replay = shlex.join(
            ["python", "-m", "tests.crash.damage", *how, "--base", str(base), "--case", str(case)]
        )
        console.print(
            f"{case} ({case.how}): {outcome.what}: {outcome.text}\n  replay: {replay}",
            markup=False,
            highlight=False,
        )
    if not bad:
        shutil.rmtree(home, ignore_errors=True)
    console.print(
        f"{len(bad)} bad of {sum(sum(found.values()) for found in sums.values()):,} damages, seed {options.seed}"
    )
    return 1 if bad else 0


def _draw_cases(base: Path, options: argparse.Namespace) -> list[Case]:
    if options.power:
        return power_cases(base, options.sample or POWER_CUTS, options.seed)
    cases = all_cases(base, base.with_name("older"), options.seed)
    if options.of == "tables":
        cases = [case for case in cases if case.kind == "sst"]
    return cases if options.sample is None else sample(cases, options.sample, options.seed)


def _judged(judge: Judge, cases: list[Case], console: Console) -> Iterator[tuple[Case, Outcome]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        for case in progress.track(cases, description="damages"):
            outcome = judge.judge(case)
            if outcome is not None:
                yield case, outcome


def _show(sums: dict[tuple[str, str], Counter[str]], good: tuple[str, ...], console: Console) -> None:
    columns = (*good, *sorted({what for found in sums.values() for what in found} - set(good)))
    table = Table("file", "damage", *columns)
    for (kind, how), found in sorted(sums.items()):
        table.add_row(kind, how, *(f"{found[what]:,}" if found[what] else "" for what in columns))
    total: Counter[str] = sum(sums.values(), Counter())
    table.add_section()
    table.add_row("all", "", *(f"{total[what]:,}" for what in columns))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
