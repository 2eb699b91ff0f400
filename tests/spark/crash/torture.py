"""`python -m tests.spark.crash.torture --rounds 10 [--seed N]`: kill a query, its parts and its broker at random, and look at what came out.

Every round has its own seed, counted up from the first. A round with a problem prints the command that replays it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .rounds import CLUSTER, LOCAL, LOCAL_MASTER, Report, plan_round, run_cluster_round, run_round


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.crash.torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="so many (default 10); every fifth on a cluster of processes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="seed of the first round")
    parser.add_argument("--kinds", help=f"who is killed, in order: of {','.join(LOCAL)}, or on a cluster of {','.join(CLUSTER)}")
    parser.add_argument("--where", choices=("local", "cluster"), help="only there")
    parser.add_argument("--keep", action="store_true", help="keep the directories of good rounds too")
    parser.add_argument("--dir", type=Path, help="where rounds live (default: a new temporary directory)")
    options = parser.parse_args()
    home = options.dir or Path(tempfile.mkdtemp(prefix="fairlead-spark-torture-"))
    kinds = tuple(options.kinds.split(",")) if options.kinds else None
    console = Console()
    console.print(f"seed {options.seed}, rounds in {home}")
    reports: list[Report] = []
    for number in range(options.rounds):
        seed = options.seed + number
        directory = home / f"round-{seed}"
        on_cluster = options.where == "cluster" or (options.where is None and number % 5 == 4)
        if on_cluster:
            report = run_cluster_round(seed, directory, kinds)
        else:
            report = run_round(plan_round(seed, LOCAL_MASTER, kinds), directory)
        reports.append(report)
        told = f"seed {seed} ({'cluster' if on_cluster else 'local'}): killed {dict(report.killed)} in {report.lives} lives"
        console.print(str(report) if report.problems else told, markup=False, highlight=False)
        if not report.problems and not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    _show(reports, console)
    bad = any(report.problems for report in reports)
    if not bad and not options.keep:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if bad else 0


def _show(reports: list[Report], console: Console) -> None:
    killed = sum((report.killed for report in reports), Counter[str]())
    table = Table("rounds", "lives", "messages", *sorted(killed), "bad rounds")
    table.add_row(
        str(len(reports)), str(sum(r.lives for r in reports)), f"{sum(r.messages for r in reports):,}",
        *(str(killed[kind]) for kind in sorted(killed)), str(sum(bool(r.problems) for r in reports)),
    )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
