"""How much disk a few messages take that stay when thousands around them go: `python -m bench.churn [--messages 400000
--left 5 --size 1000 --batch 500] [--off]`.

On RocksDB in a fresh directory, durability `os`. Batches are enqueued, claimed and settled, with one second of the
engine's time for each; of each batch some percent stay: as dead letters, held, or in a lane that a throttle has parked.
*live* is what these messages have as payloads and headers, *rows* what the engine stores of messages before RocksDB
compresses it; *tables* is the size of RocksDB's tables and *logs* that of its logs, as the churn left them; *compacted* are
the tables after a compaction of everything. `--off`: chunks stay as they are until their last message is gone.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from random import Random
from time import process_time
from unittest.mock import patch

from bench.conditions import conditions_here
from fairlead import Complete, Fail, NewMessage
from fairlead.engine import evacuation, thinning
from fairlead.engine.broker import Broker
from fairlead.store.kv.port import Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.rows import read_table
from fairlead.testing import ManualClock

_OF_MESSAGES = (Table.CHUNKS, Table.COLD, Table.PAGES, Table.STATES, Table.OWN, Table.RUNS, Table.DUE)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.churn", description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--left", type=float, default=5.0, help="percent of the messages that stay")
    parser.add_argument("--size", type=int, default=1000, help="bytes of a payload")
    parser.add_argument("--batch", type=int, default=500, help="messages of an enqueue, so of a chunk")
    parser.add_argument("--off", action="store_true", help="without evacuation")
    options = parser.parse_args()
    off = patch.object(thinning, "MAX_LIVE_BYTES", -1)
    with tempfile.TemporaryDirectory() as directory:
        if options.off:
            off.start()
        run(Path(directory, "data"), options)


def run(path: Path, options: argparse.Namespace) -> None:
    clock, random = ManualClock(), Random(1)
    broker = Broker(RocksKeyValueStore.open(path), clock=clock, durability="os")
    broker.create_queue("q", visibility_timeout="1h")
    broker.config.set("throttle.parked", "0.000001,1")
    broker.claim("q", limit=1)
    began = process_time()
    for _ in range(options.messages // options.batch):
        churn(broker, random, options)
        clock.advance(seconds=1)
    for _ in range(3):
        clock.advance(ms=evacuation.LOOK_MS)
    took = process_time() - began
    counts = [broker.stats(name) for name in ("q", "q.dlq")]
    live, left = sum(one.bytes for one in counts), sum(one.ready + one.waiting for one in counts)
    store = broker.engine.store
    rows = sum(len(key) + len(raw) for table in _OF_MESSAGES for key, raw in read_table(store, table))
    tables, logs = _bytes_of(path, ".sst"), _bytes_of(path, ".log")
    _compact(store)
    broker.close()
    compacted = _bytes_of(path, ".sst")
    print(f"{options.messages:,} messages of {options.size:,} bytes in chunks of {options.batch:,}, ", end="")
    print(f"{options.left} % stay; evacuation {'off' if options.off else 'on'}; {took:.1f} s CPU")
    print(f"live {live:,} bytes ({left:,} messages); in bytes that live: rows {rows / live:.2f}, ", end="")
    print(f"tables {tables / live:.2f}, logs {logs / live:.2f}, compacted {compacted / live:.2f}")
    print(conditions_here())


def churn(broker: Broker, random: Random, options: argparse.Namespace) -> None:
    share = options.left / 100
    kinds = random.choices(
        ("gone", "dead", "held", "parked"), (1 - share, share / 2, share / 4, share / 4), k=options.batch
    )
    messages = [
        NewMessage(
            random.randbytes(options.size),
            {"kind": kind},
            fairness_key=f"k{n % 10}",
            throttle_keys=["parked"] if kind == "parked" else [],
        )
        for n, kind in enumerate(kinds)
    ]
    ids = broker.enqueue_many("q", messages)
    held = [one for one, kind in zip(ids, kinds, strict=True) if kind == "held"]
    if held:
        broker.hold("q", held)
    found = broker.claim("q", limit=options.batch)
    broker.settle(
        [Fail(one, "no", dead=True) if one.headers["kind"] == "dead" else Complete(one) for one in found]
    )


def _bytes_of(path: Path, suffix: str) -> int:
    return sum(file.stat().st_size for file in path.rglob(f"*{suffix}"))


def _compact(store: object) -> None:
    assert isinstance(store, RocksKeyValueStore)
    for table in Table:
        store.flush_table(table)
        store._database.rows_of(table).compact_range(None, None)


if __name__ == "__main__":
    main()
