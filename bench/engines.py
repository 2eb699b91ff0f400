"""The new engine beside the old one: `python -m bench.engines [--rounds 5]`.

A message is enqueued, claimed and completed: 1 KB, durability `os`, on RocksDB in a fresh directory. Both
engines run in turn, in this process; the next round starts with the other one. The figures are CPU time per
message and their ratio within each round.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

import fairlead
from bench.conditions import conditions_here
from bench.rates import ratio, spread, timed
from fairlead import Complete, NewMessage
from fairlead.engine.engine import Engine
from fairlead.request import Request
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle

PAYLOAD_BYTES = 1024
#: (batch, keys): messages of a run.
CASES = {(500, 10): 50_000, (500, 1_000): 50_000, (10, 10): 10_000, (1, 10): 3_000, (1, 1_000): 3_000}
_WARM_SHARE = 5

Do = Callable[[Request[Any]], Any]


@contextmanager
def opened(name: str) -> Iterator[Do]:
    with tempfile.TemporaryDirectory(prefix="fairlead-engines-") as home:
        engine: Any
        if name == "old":
            engine = fairlead.open(home, durability="os")
        else:
            engine = Engine(RocksKeyValueStore.open(Path(home) / "data"), durability="os")
        engine.do(CreateQueue("q", {"visibility_timeout": "10m"}))
        yield engine.do
        engine.close()


def run_lifecycles(do: Do, batch: int, keys: int, messages: int) -> None:
    payload = os.urandom(PAYLOAD_BYTES)
    for first in range(0, messages, batch):
        if batch == 1:
            do(Enqueue("q", payload, fairness_key=f"k{first % keys}"))
        else:
            numbers = range(first, first + batch)
            do(EnqueueMany("q", [NewMessage(payload, fairness_key=f"k{n % keys}") for n in numbers]))
        do(Settle([Complete(delivery) for delivery in do(Claim("q", batch))]))


def cpu_us(name: str, batch: int, keys: int, messages: int) -> float:
    with opened(name) as do:
        run_lifecycles(do, batch, keys, max(batch, messages // _WARM_SHARE))
        return timed(messages, lambda: run_lifecycles(do, batch, keys, messages)).cpu_us


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.engines", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    rounds = parser.parse_args().rounds
    seen: dict[tuple[int, int], dict[str, list[float]]] = {case: {"old": [], "new": []} for case in CASES}
    for turn in track(range(rounds), "rounds"):
        for (batch, keys), messages in CASES.items():
            for name in ("old", "new") if turn % 2 == 0 else ("new", "old"):
                seen[batch, keys][name].append(cpu_us(name, batch, keys, messages))
    table = Table("batch", "keys", "old, CPU µs a message", "new", "old / new")
    for (batch, keys), found in seen.items():
        old, new = found["old"], found["new"]
        table.add_row(str(batch), str(keys), spread(old).show(1), spread(new).show(1), ratio(old, new).show())
    here = conditions_here()
    console = Console()
    console.print(f"{here.machine}, {here.cores} cores, Python {here.python}, commit {here.commit}")
    console.print(f"{rounds} rounds, load {here.load} at the end, {here.measured}", table)


if __name__ == "__main__":
    main()
