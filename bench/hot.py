"""Where the time of a lifecycle goes, by function, in microseconds per message."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

from rich.console import Console
from rich.table import Table

import fairlead
from bench.lifecycle import drafts_over, drain, in_step

SHAPES = ("lifecycle", "drain")


def show_hot(
    shape: str,
    home: Path,
    console: Console,
    *,
    batch: int = 500,
    keys: int = 1_000,
    count: int = 50_000,
    rows: int = 30,
) -> None:
    """Profiling makes small functions look dearer than they are: compare shares, not sums, with the measured
    rates.
    """
    run = in_step if shape == "lifecycle" else drain
    with fairlead.open(home / "profile", durability="os") as broker:
        broker.create_queue("work", visibility_timeout="10m")
        run(broker, "work", drafts_over(keys, batch * 10, batch))
        drafts = drafts_over(keys, count, batch)
        profile = cProfile.Profile()
        profile.enable()
        run(broker, "work", drafts)
        profile.disable()
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    whole = sum(own for _, _, own, _, _ in stats.values())
    title = (
        f"{shape}: batch {batch}, {keys:,} keys, {whole / count * 1e6:.2f} us a message under the profiler"
    )
    table = Table("own us", "share", "with callees us", "calls", "function", title=title)
    hottest = sorted(stats.items(), key=lambda item: -item[1][2])[:rows]
    for (file, line, name), (_, calls, own, total, _) in hottest:
        where = f"{Path(file).name}:{line} {name}" if line else name
        table.add_row(
            f"{own / count * 1e6:.3f}",
            f"{own / whole:.1%}",
            f"{total / count * 1e6:.3f}",
            f"{calls / count:.3f}",
            where,
        )
    console.print(table)
