"""A small directory with something of everything in it, tables and several live logs; and what must be found
in it again.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import fairlead
from fairlead import Complete, Fail, NewMessage
from fairlead.engine.broker import Broker
from fairlead.store.rocks import RocksStore, codec
from fairlead.store.rocks.layout import FAMILIES
from fairlead.testing import ManualClock


def store_of(broker: Broker) -> RocksStore:
    store = broker._core.store
    assert isinstance(store, RocksStore)
    return store


def flush(broker: Broker, *families: str) -> None:
    """Into tables; RocksDB then starts another log, and keeps the last one for the other families."""
    for family in families:
        store_of(broker)._tables[family].flush()


def make_rich(path: Path, clock: ManualClock) -> None:
    """As a killed process leaves it."""
    living = path.with_name("living")
    broker = fairlead.open(living, clock=clock)
    fill(broker, clock)
    shutil.copytree(living, path)
    broker.close()


def fill(broker: Broker, clock: ManualClock) -> None:
    broker.create_queue("work", retry={"policy": "fixed", "cooldown": "10s"})
    broker.create_queue("kept", retain_completed="1h", dedup="kept")
    broker.create_queue("live", dedup="live", ttl="1h")
    broker.create_queue("gone")
    broker.enqueue_many(
        "work",
        [NewMessage(b"plain-%d" % n, headers={"n": str(n)}, fairness_key=f"k{n % 3}") for n in range(30)],
    )
    broker.enqueue_many("work", [NewMessage(b"stream-%d" % n, stream=f"s{n % 3}") for n in range(12)])
    broker.enqueue_many("work", [NewMessage(b"later-%d" % n, delay="1h", ttl="2h") for n in range(5)])
    broker.enqueue_many(
        "work",
        [NewMessage(b"later in stream", delay="1m", stream="s9"), NewMessage(b"behind it", stream="s9")],
    )
    broker.enqueue_many("live", [NewMessage(b"live-%d" % n, dedup_key=f"d{n}") for n in range(6)])
    broker.enqueue_many(
        "work", [NewMessage(b"window-%d" % n, dedup_key=f"w{n}", throttle_keys=["t1"]) for n in range(4)]
    )
    flush(broker, "messages", "ready")
    broker.enqueue_many("kept", [NewMessage(b"kept-%d" % n, dedup_key=f"x{n}") for n in range(6)])
    broker.settle([Complete(delivery) for delivery in broker.claim("kept", limit=3)])
    taken = broker.claim("work", limit=12, consumer="worker")
    broker.settle([Complete(delivery) for delivery in taken[:3]])
    broker.settle([Fail(delivery, "bad", dead=True) for delivery in taken[3:5]])
    broker.settle([Fail(delivery, "again") for delivery in taken[5:7]])
    clock.advance(ms=11_000)
    broker.run_due()
    flush(broker, "state", "leases")
    broker.config.set("throttle:t1:rate", "50")
    broker.hold("work", [broker.peek("work", limit=1)[0].id])
    broker.redrive("work", ids=[taken[3].id])
    consumer = broker.consumers.register("etl", "work")
    broker.consumers.claim("etl", "work", consumer.generation, 1, limit=4)
    held = list(broker.consumers.read("etl", "work", consumer.generation, 1))
    broker.consumers.record("etl", "work", consumer.generation, 1, [Fail(held[0], "no")], part="0")
    broker.staging.stage("write-1", "0", "work", [NewMessage(b"staged-%d" % n) for n in range(3)])
    broker.staging.stage("write-2", "0", "work", [NewMessage(b"published-%d" % n) for n in range(3)])
    broker.staging.publish("write-2", "work", ["0"])
    broker.config.set("throttle:t2:rate", "0.01")
    broker.create_queue("slow")
    broker.enqueue_many("slow", [NewMessage(b"slow-%d" % n, throttle_keys=["t2"]) for n in range(3)])
    broker.claim("slow")
    broker.delete_queue("gone")


def all_rows(store: RocksStore) -> dict[str, dict[bytes, bytes]]:
    return {family: dict(store._scan(family, b"", None, 1 << 60)) for family in FAMILIES}


def payloads(store: RocksStore) -> dict[bytes, bytes]:
    return {
        key: codec.decode_messages([key], [raw])[0].payload
        for key, raw in store._scan("messages", b"", None, 1 << 60)
    }  # type: ignore[union-attr]


def fingerprint(path: Path) -> dict[str, tuple[int, int, str]]:
    return {
        file.name: (
            file.stat().st_mtime_ns,
            file.stat().st_size,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for file in [path, *sorted(path.iterdir())]
        if file.is_file()
    }
