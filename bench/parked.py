"""What an active tenant pays beside messages that nobody takes: `python -m bench.parked [--messages 400000]`.

Two engines in one process, each on RocksDB in a fresh directory, durability `os`, with as many parked messages as
memory holds. One makes them cold when others need the room, the other does not. A lifecycle is enqueue, claim and
complete, of 1 KB and over 10 keys, in turns; figures are CPU time of the calling thread.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from time import process_time, sleep, thread_time

from rich.console import Console
from rich.table import Table

from bench.conditions import conditions_here
from fairlead import Complete, NewMessage
from fairlead.engine.broker import Broker
from fairlead.engine.demotion import DemotionSearch
from fairlead.engine.queue import Queue
from fairlead.records.chunk import Chunk
from fairlead.store.kv.rocks import RocksKeyValueStore

_FILL = 500
_TENANTS = 100
_PAYLOAD = b"x" * 1000


def fill(broker: Broker, messages: int) -> None:
    broker.create_queue("work", visibility_timeout="10m")
    broker.config.set("throttle:slow:rate", 0.001)
    for start in range(0, messages, _FILL):
        some = [
            NewMessage(b"parked", fairness_key=f"p{at % _TENANTS}", throttle_keys=("slow",))
            for at in range(start, min(messages, start + _FILL))
        ]
        broker.enqueue_many("work", some)
    # The bucket is empty then, and every lane waits.
    out = broker.claim("work", limit=_TENANTS)
    broker.settle([Complete(one) for one in out])
    for _ in out:
        broker.enqueue("work", b"parked", fairness_key="p0", throttle_keys=("slow",))


def lifecycles(broker: Broker, batch: int, count: int) -> float:
    """Microseconds of a message."""
    before = thread_time()
    for _ in range(max(1, count // batch)):
        broker.enqueue_many("work", [NewMessage(_PAYLOAD, fairness_key=f"a{at % 10}") for at in range(batch)])
        broker.settle([Complete(one) for one in broker.claim("work", limit=batch)])
    return (thread_time() - before) / (max(1, count // batch) * batch) * 1e6


def make_room(broker: Broker) -> tuple[int, float]:
    """How many messages the timer makes cold, and how much CPU time of its thread that takes."""
    memory, used = broker.engine.memory, broker.engine.memory.used_room
    before = process_time() - thread_time()
    lifecycles(broker, 10, 30)
    while memory.demotion.next_look_ms is not None:
        sleep(0.1)
    return used - memory.used_room, process_time() - thread_time() - before


class NoSearch(DemotionSearch):
    """Nothing becomes cold."""

    def found_no_room(self, queue: Queue, chunk: Chunk) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.parked", description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000, help="parked ones (default 400000)")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    options = parser.parse_args()
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as home:
        without, with_it = [
            Broker(RocksKeyValueStore.open(Path(home) / name), durability="os")
            for name in ("without", "with")
        ]
        for broker in (without, with_it):
            fill(broker, options.messages)
        without.engine.memory.demotion = NoSearch()
        make_room(without)
        made_cold, seconds = make_room(with_it)
        console.print(f"{made_cold:,} messages became cold, in {seconds:.2f} s of CPU")
        table = Table("batch", "stays hot, us", "made cold, us", "ratio (of the rounds)", title="a lifecycle")
        for batch, count in ((500, 10_000), (10, 2_000), (1, 1_000)):
            rounds = []
            for _ in range(options.rounds):
                before = lifecycles(without, batch, count)
                rounds.append((before, lifecycles(with_it, batch, count)))
            ratios = sorted(before / after for before, after in rounds)
            table.add_row(
                str(batch),
                f"{median(one for one, _ in rounds):.1f}",
                f"{median(one for _, one in rounds):.1f}",
                f"{median(ratios):.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f})",
            )
        console.print(table)
        for broker in (without, with_it):
            broker.close()
    console.print(conditions_here())


if __name__ == "__main__":
    main()
