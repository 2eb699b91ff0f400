"""`python -m tests.crash.torture --kills 1000 [--seed N]`: kill a broker as often as you like and look at
what it kept.

Every round has its own seed, counted up from the first. A round with a problem prints the command that
replays it. `--work doors` kills servers under clients that reconnect; it is slower, and only done when asked
for.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.faults import rounds as doors

from .rounds import WORKS, Plan, Report, plan_round, run_round


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash.torture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=1000, help="at least so many (default 1000)")
    parser.add_argument("--rounds", type=int, help="exactly so many rounds, whatever the kills")
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="seed of the first round"
    )
    parser.add_argument("--work", choices=(*WORKS, doors.WORK), help="only this kind of round")
    parser.add_argument("--jobs", type=int, default=1, help="rounds side by side (default 1)")
    parser.add_argument("--keep", action="store_true", help="keep the directories of good rounds too")
    parser.add_argument("--dir", type=Path, help="where rounds live (default: a new temporary directory)")
    options = parser.parse_args()
    home = options.dir or Path(tempfile.mkdtemp(prefix="fairlead-torture-"))
    console = Console()
    console.print(f"seed {options.seed}, rounds in {home}")
    reports = _run(options, home, console)
    _show(reports, console)
    bad = [r for r in reports if r.problems]
    for report in bad:
        console.print(str(report), markup=False, highlight=False)
    if not bad and not options.keep:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if bad else 0


def _run(options: argparse.Namespace, home: Path, console: Console) -> list[Report]:
    reports: list[Report] = []
    running: set[Future[Report]] = set()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started = planned = 0
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(options.jobs) as pool:
        bar = progress.add_task("kills", total=options.kills if options.rounds is None else None)
        while True:
            more = started < options.rounds if options.rounds is not None else planned < options.kills
            if more and len(running) < options.jobs:
                seed = options.seed + started
                plan, run = _plan(seed, options.work)
                directory = home / f"round-{seed}-{plan.work}"
                directory.mkdir(parents=True)
                running.add(pool.submit(run, plan, directory, lambda: progress.advance(bar)))
                started, planned = started + 1, planned + len(plan.kills)
                continue
            if not running:
                return reports
            over, running = wait(running, return_when=FIRST_COMPLETED)
            for report in (future.result() for future in over):
                reports.append(report)
                progress.update(
                    bar, description=f"kills, {sum(bool(r.problems) for r in reports)} bad rounds"
                )
                if report.problems:
                    progress.console.print(
                        f"seed {report.plan.seed} ({report.plan.work}): {report.problems[0]}", markup=False
                    )
                elif not options.keep:
                    shutil.rmtree(report.directory, ignore_errors=True)


def _plan(seed: int, work: str | None) -> tuple[Plan, Callable[..., Report]]:
    if work == doors.WORK:
        return doors.plan_round(seed), doors.run_round
    return plan_round(seed, work or random.Random(seed).choice((*WORKS, "load", "load"))), run_round


def _show(reports: list[Report], console: Console) -> None:
    table = Table(
        "work", "rounds", "kills", "messages", "deliveries", "operations cut off", "resumed", "bad rounds"
    )
    sums: dict[str, Counter[str]] = {}
    for r in reports:
        found = Counter(rounds=1, kills=r.kills, messages=r.messages, deliveries=r.deliveries)
        found.update(cut_off=r.cut_off, resumed=r.resumed, bad=bool(r.problems))
        sums.setdefault(r.plan.work, Counter()).update(found)
    for work, found in sorted(sums.items()):
        table.add_row(
            work,
            *(
                f"{found[column]:,}"
                for column in ("rounds", "kills", "messages", "deliveries", "cut_off", "resumed", "bad")
            ),
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
