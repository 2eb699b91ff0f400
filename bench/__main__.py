"""`python -m bench [--quick] [--only NAME] [--out docs/benchmarks.json]`, or `python -m bench --profile
NAME`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import backlog, census, filters, hooks, hot, lifecycle, streams, worker
from bench.conditions import conditions_here
from bench.doors import measure as doors
from bench.doors.profile import show_profile
from bench.report import Figures, load_figures, save_figures, show, write_page
from bench.spark import measure as spark
from bench.spark import worker as spark_worker

NAMES = (
    "in-step",
    "drain",
    "backlog",
    "hooks",
    "streams",
    "filters",
    "census",
    "doors",
    "worker",
    "spark",
    "spark-worker",
)
#: With a load above this, somebody else is measured too.
_QUIET = 0.5
DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure the engine beside bare RocksDB."
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="less than a minute, for a first look; written to the docs only with --out",
    )
    parser.add_argument(
        "--only", choices=NAMES, help="measure one group and keep the other figures as they are"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="the JSON file (default docs/benchmarks.json, none with --quick or --doors); the page is written beside it",
    )
    parser.add_argument(
        "--dir", type=Path, help="where data goes meanwhile (default: a new temporary directory)"
    )
    parser.add_argument(
        "--dead", type=int, help="how many dead letters the group `filters` scans (default 100000)"
    )
    parser.add_argument(
        "--doors",
        help=f"parts of the group `doors`, with commas between them: {', '.join(doors.GROUPS)} (default all)",
    )
    parser.add_argument(
        "--profile", choices=(*hot.SHAPES, "doors"), help="print where the time goes, and measure nothing"
    )
    options = parser.parse_args()
    console = Console()
    home = Path(tempfile.mkdtemp(prefix="fairlead-bench-", dir=options.dir))
    try:
        if options.profile == "doors":
            show_profile(home, console)
            return
        if options.profile:
            hot.show_hot(options.profile, home, console)
            return
        is_whole = not (options.quick or options.doors)
        out = options.out or (DOCS / "benchmarks.json" if is_whole else None)
        figures = _measure(options, load_figures(out) if out else Figures(), home, console)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    show(figures, console)
    if out:
        save_figures(out, figures)
        write_page(figures, out.with_suffix(".md"))
        console.print(f"written: {out} and {out.with_suffix('.md')}")


def _measure(options: argparse.Namespace, figures: Figures, home: Path, console: Console) -> Figures:
    plan = lifecycle.QUICK if options.quick else lifecycle.Plan()
    backlogs = backlog.QUICK if options.quick else backlog.Plan()
    hooked = hooks.QUICK if options.quick else hooks.Plan()
    ordered = streams.QUICK if options.quick else streams.Plan()
    scanned = filters.QUICK if options.quick else filters.Plan()
    if options.dead:
        scanned = msgspec.structs.replace(scanned, dead=options.dead)
    noticed = census.QUICK if options.quick else census.Plan()
    through = doors.QUICK if options.quick else doors.Plan()
    if options.doors:
        through = msgspec.structs.replace(through, groups=tuple(options.doors.split(",")))
    pipelines = worker.QUICK if options.quick else worker.Plan()
    sources = spark.QUICK if options.quick else spark.Plan()
    on_spark = spark_worker.QUICK if options.quick else spark_worker.Plan()
    only = "doors" if options.doors else options.only
    wanted = (only,) if only else NAMES
    in_step_steps, drain_steps = lifecycle.steps(plan)
    figures.quick = options.quick
    here = conditions_here()
    if here.load > _QUIET:
        console.print(
            f"the machine is busy (load {here.load}): what is measured now says as much about its neighbours"
        )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        if "in-step" in wanted:
            figures.in_step = lifecycle.measure_in_step(
                plan, home, _ticker(progress, "in step", in_step_steps)
            )
        if "drain" in wanted:
            figures.drain = lifecycle.measure_drain(plan, home, _ticker(progress, "drain", drain_steps))
        if "backlog" in wanted:
            figures.backlog = backlog.measure(
                backlogs, home, _ticker(progress, "backlog", backlog.steps(backlogs))
            )
        if "hooks" in wanted:
            figures.hooks = hooks.measure(hooked, home, _ticker(progress, "hooks", hooks.steps(hooked)))
        if "streams" in wanted:
            figures.streams = streams.measure(
                ordered, home, _ticker(progress, "streams", streams.steps(ordered))
            )
        if "filters" in wanted:
            figures.filters = filters.measure(
                scanned, home, _ticker(progress, "filters", filters.steps(scanned))
            )
        if "census" in wanted:
            figures.census = census.measure(noticed, home, _ticker(progress, "census", census.steps(noticed)))
        if "doors" in wanted:
            figures.doors = doors.measure(through, home, _ticker(progress, "doors", doors.steps(through)))
        if "worker" in wanted:
            figures.worker = worker.measure(
                pipelines, home, _ticker(progress, "worker", worker.steps(pipelines))
            )
        if "spark" in wanted:
            figures.spark = spark.measure(sources, home, _ticker(progress, "spark", spark.steps(sources)))
        if "spark-worker" in wanted:
            figures.spark_worker = spark_worker.measure(
                on_spark, home, _ticker(progress, "spark worker", spark_worker.steps(on_spark))
            )
    figures.conditions.update(dict.fromkeys(wanted, here))
    return figures


def _ticker(progress: Progress, name: str, total: int) -> Callable[[str], None]:
    task = progress.add_task(name, total=total)

    def tick(doing: str) -> None:
        progress.update(task, advance=1, description=doing)

    return tick


if __name__ == "__main__":
    main()
