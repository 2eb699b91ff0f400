"""What it costs to be watched: `python -m bench.metrics`. A lifecycle with metrics beside one without, in the
same rounds.

Two figures: how much longer the rounds took, which follows the noise of the machine; and the CPU time spent
in the observers as a share of the whole, which does not.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import fairlead
from bench.lifecycle import drafts_over, in_step
from bench.rates import Spread, spread
from fairlead.server.metrics import Metrics

ROUNDS = 15
COUNTS = {500: 10_000, 100: 5_000, 1: 1_000}


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="fairlead-bench-"))
    try:
        print("| batch | rounds with metrics took, more | observers' share of CPU time |")
        print("|---|---|---|")
        for batch, count in COUNTS.items():
            longer, share = measure(home / str(batch), batch, count)
            print(f"| {batch} | {_percent(longer)} | {_percent(share)} |")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measure(home: Path, batch: int, count: int) -> tuple[Spread, Spread]:
    longer, shares = [], []
    with (
        fairlead.open(home / "plain", durability="os") as plain,
        fairlead.open(home / "watched", durability="os") as watched,
    ):
        spent = _Stopwatch()
        metrics = Metrics(watched)
        observers = watched._core.observers
        observers.of_facts[:] = [spent.around(metrics._counts.observe)]
        observers._of_timings[:] = [spent.around(metrics._counts.timed)]
        for broker in (plain, watched):
            broker.create_queue("q", visibility_timeout="10m")
        for turn in range(ROUNDS):
            took = {}
            for broker in ((plain, watched), (watched, plain))[turn % 2]:
                drafts = drafts_over(10, count, batch, first=turn * count)
                spent.seconds = 0.0
                began, cpu = perf_counter(), thread_time()
                in_step(broker, "q", drafts)
                took[broker is watched] = perf_counter() - began
                if broker is watched:
                    shares.append(spent.seconds / (thread_time() - cpu))
            longer.append(took[True] / took[False] - 1)
    return spread(longer), spread(shares)


class _Stopwatch:
    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, observer: Callable[[Any], None]) -> Callable[[Any], None]:
        def measured(what: Any) -> None:
            began = thread_time()
            observer(what)
            self.seconds += thread_time() - began

        return measured


def _percent(found: Spread) -> str:
    return f"{100 * found.median:.1f} % ({100 * found.low:.1f}..{100 * found.high:.1f})"


if __name__ == "__main__":
    main()
