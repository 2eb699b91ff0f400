"""What workers have done, as the end of `fairlead worker run` shows it, whatever engine ran them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.cli.global_options import wants_json
from fairlead.cli.output import console, show, table
from fairlead.cli.target import Target

_COUNTS = ("completed", "failed", "dead", "given back", "lost")


def show_summary(target: Target, rows: Sequence[dict[str, Any]], elapsed_s: float, *, burst: bool) -> None:
    """A row has `worker`, `queue` and the counts of a tally. After a burst it is said what it left behind,
    and why it did.
    """
    if burst:
        for row in rows:
            stats = target.stats(row["queue"])
            row["left"] = {"ready": stats.ready, "waiting": stats.waiting, "leased": stats.leased}
    lines = table("worker", "queue", *_COUNTS, right=_COUNTS)
    for row in rows:
        lines.add_row(
            row["worker"],
            row["queue"],
            *(f"{row[name]:,}" for name in ("completed", "failed", "dead", "released", "lost")),
        )
    show({"elapsed_ms": round(elapsed_s * 1000), "workers": rows}, lines)
    for row in rows:
        if burst and not wants_json() and any(row["left"].values()):
            left = ", ".join(f"{count:,} {place}" for place, count in row["left"].items() if count)
            console().print(f"left in {row['queue']}: {left}")
