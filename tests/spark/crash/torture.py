"""`python -m tests.spark.crash.torture --rounds 10 [--seed N]`: kill queries and workers, their parts and
their broker at random, and check the results. Each round has its own seed, counted up from the first. A round
with a problem prints the command that replays it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.crash.worker.rounds import LOCAL as PROCESSES
from tests.crash.worker.rounds import Report as WorkerReport
from tests.crash.worker.rounds import plan_round as plan_worker_round
from tests.crash.worker.rounds import run_round as run_worker_round
from tests.crash.worker.trial import local_worker
from tests.spark.worker_trials import rounds as worker_rounds

from . import rounds
from .rounds import LOCAL_MASTER, Report

Kinds = tuple[str, ...] | None


def query_local(seed: int, directory: Path, kinds: Kinds) -> Report:
    return rounds.run_round(rounds.plan_round(seed, LOCAL_MASTER, kinds), directory)


def worker_process(seed: int, directory: Path, kinds: Kinds) -> WorkerReport:
    """Without Spark."""
    kinds = kinds or tuple(random.Random(seed).choices(PROCESSES, k=3))
    return run_worker_round(plan_worker_round(seed, "process", kinds), directory, local_worker)


#: In turn.
WORKS: dict[str, Callable[[int, Path, Kinds], Report | WorkerReport]] = {
    "query-local": query_local,
    "worker-local": worker_rounds.run_local_round,
    "worker-process": worker_process,
    "worker-cluster": worker_rounds.run_cluster_round,
    "query-cluster": rounds.run_cluster_round,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.crash.torture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=10, help="so many (default 10); of each work in turn")
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="seed of the first round"
    )
    parser.add_argument("--work", choices=WORKS, action="append", help="only this; may be repeated")
    parser.add_argument("--kinds", help="who is killed, in order, such as worker,broker,driver")
    parser.add_argument("--keep", action="store_true", help="keep the directories of good rounds too")
    parser.add_argument("--dir", type=Path, help="where rounds live (default: a new temporary directory)")
    options = parser.parse_args()
    home = options.dir or Path(tempfile.mkdtemp(prefix="fairlead-spark-torture-"))
    kinds = tuple(options.kinds.split(",")) if options.kinds else None
    console = Console()
    console.print(f"seed {options.seed}, rounds in {home}")
    reports: list[Report | WorkerReport] = []
    for number, work in enumerate(islice(cycle(options.work or WORKS), options.rounds)):
        seed = options.seed + number
        directory = home / f"round-{seed}"
        report = WORKS[work](seed, directory, kinds)
        reports.append(report)
        told = f"seed {seed} ({work}): killed {dict(report.killed)} in {report.lives} lives"
        console.print(str(report) if report.problems else told, markup=False, highlight=False, soft_wrap=True)
        if not report.problems and not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    _show(reports, console)
    bad = any(report.problems for report in reports)
    if not bad and not options.keep:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if bad else 0


def _show(reports: list[Report | WorkerReport], console: Console) -> None:
    killed = sum((report.killed for report in reports), Counter[str]())
    table = Table("rounds", "lives", "messages", *sorted(killed), "bad rounds")
    table.add_row(
        str(len(reports)),
        str(sum(r.lives for r in reports)),
        f"{sum(r.messages for r in reports):,}",
        *(str(killed[kind]) for kind in sorted(killed)),
        str(sum(bool(r.problems) for r in reports)),
    )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
