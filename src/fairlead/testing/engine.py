"""A broker without a disk, and questions about the inside of a broker that no verb answers.

Only this folder knows how the engine is built: a test that needs more of the inside asks for it here.
"""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import fairlead
from fairlead.broker.broker import Broker
from fairlead.broker.broker import Durability as Durability
from fairlead.clock import Clock
from fairlead.config import Settings
from fairlead.engine.broker import Broker as NewBroker
from fairlead.engine.laws import broken_laws
from fairlead.model.lease import Lease
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.laws import check_laws
from fairlead.store.memory import MemoryStore
from fairlead.store.rows import read_table
from fairlead.store.verify import VerifyReport
from fairlead.testing.storage import Storage
from fairlead.testing.which_engine import is_new_engine


def open_in_memory(
    *, clock: Clock | None = None, durability: Durability = "fsync", settings: Settings | None = None
) -> Broker:
    """A broker that keeps everything in this process and loses it on exit. Has every verb but `checkpoint`."""
    if is_new_engine():
        store = DictionaryStore()
        return cast(Broker, NewBroker(store, clock=clock, durability=durability, settings=settings))
    return Broker(MemoryStore(), clock=clock, durability=durability, settings=settings)


def engine_of(broker: Broker | NewBroker) -> Any:
    """The engine inside: it has `lock`, `looks`, `check_scan` and `waits_over`, whichever engine it is."""
    return broker.engine if isinstance(broker, NewBroker) else broker._core


def run_due(broker: Broker) -> None:
    """Do everything that is due by now. `ManualClock.advance` does this too."""
    broker.run_due()


def laws(checked: Broker | NewBroker | Storage | str | Path) -> list[str]:
    """Every broken law of the stored data, as a sentence; empty when all hold.

    A path is a data directory that no broker has open. A broker must be open, and idle.
    """
    if isinstance(checked, NewBroker):
        return broken_laws(checked.engine)
    if isinstance(checked, Broker):
        return check_laws(checked._core.store)
    if isinstance(checked, Storage):
        return checked.laws()
    return fairlead.verify(checked).problems


def is_closed(broker: Broker | NewBroker) -> bool:
    return broker.engine.closed if isinstance(broker, NewBroker) else broker._core.closed


def abandon(broker: Broker | NewBroker) -> None:
    """Leave a broker as a killed process does: it works no more, and writes nothing on the way out."""
    if isinstance(broker, NewBroker):
        broker.engine.stop_working()
        return
    broker._core.closed = True
    broker._timer.stop()


def waiting_claims(broker: Broker | NewBroker, queue: str) -> int:
    """How many claims wait for messages of a queue."""
    if isinstance(broker, NewBroker):
        engine = broker.engine
        return len(engine.waiters.of(engine.memory.by_name[queue].record.queue_id))
    return len(broker._core.queue(queue).waiters)


def find_lease(broker: Broker, raw_id: bytes) -> Lease | None:
    """The lease of a message by its id of 16 bytes."""
    return broker._core.leases.find(raw_id)


def all_leases(broker: Broker) -> list[Lease]:
    return list(broker._core.leases.all())


def staged_bytes(broker: Broker) -> int:
    """How much the staged writes of all queues hold, as counted in memory."""
    return broker._core.staged.stored_bytes


def engine_lock(broker: Broker | NewBroker) -> AbstractContextManager[Any]:
    """The lock under which every change is made. Every verb waits while it is held."""
    if isinstance(broker, NewBroker):
        return broker.engine.lock
    return broker._core.lock


def hooks_of(broker: Broker | NewBroker) -> Any:
    """The stand-in or process that runs the scripts of hooks."""
    if isinstance(broker, NewBroker):
        return broker.engine.hooking.hooks
    return broker._core.hooks


def replace_hooks(broker: Broker | NewBroker, hooks: Any) -> None:
    """Scripts run in `hooks` from here on; the process that ran them ends."""
    if isinstance(broker, NewBroker):
        broker.engine.hooking.hooks.close()
        broker.engine.hooking.hooks = hooks
        return
    broker._core.hooks.close()
    broker._core.hooks = hooks


def seed_jitter(broker: Broker | NewBroker, rng: random.Random) -> None:
    """Draw the jitter of retries from `rng`."""
    if isinstance(broker, NewBroker):
        broker.engine.random = rng
    else:
        broker._core.rng = rng


def seed_ids(broker: Broker | NewBroker, rng: random.Random) -> None:
    """Draw the random part of new ids from `rng`. Those of the new engine have none."""
    if not isinstance(broker, NewBroker):
        broker._core.ids._random_bytes = rng.randbytes


def forget_bodies(broker: Broker | NewBroker) -> None:
    """Empty the cache of message bodies: the next claim reads them from the store."""
    if isinstance(broker, NewBroker):
        for chunk in broker.engine.memory.chunks.values():
            chunk.payloads = None
    else:
        broker._core.bodies.clear()


def sync(broker: Broker | NewBroker) -> None:
    """Return when everything committed would survive a power cut."""
    if isinstance(broker, NewBroker):
        broker.engine.store.sync()
        return
    broker._core.store.sync(broker._core.store.last_commit)


def start_new_log(broker: Broker | NewBroker, family: str, *, wait: bool = True) -> None:
    """Flush one column family of a broker on disk: RocksDB starts a new log, and the others keep the old one."""
    if isinstance(broker, NewBroker):
        _rocks_of(broker).flush_table(Table[family.upper()], wait=wait)
        return
    broker._core.store._tables[family].flush(wait)  # type: ignore[attr-defined]


def families_of(broker: Broker | NewBroker) -> list[str]:
    """The column families of a broker on disk."""
    if isinstance(broker, NewBroker):
        return [table.name.lower() for table in Table]
    return list(broker._core.store._tables)  # type: ignore[attr-defined]


def open_directory(
    path: str | Path, *, durability: Durability = "fsync", clock: Clock | None = None
) -> Broker:
    """A broker on disk, on the engine that the tests run on."""
    return fairlead.open(path, durability=durability, clock=clock)


def verify_directory(path: str | Path) -> VerifyReport:
    return fairlead.verify(path)


def copy_directory(broker: Broker | NewBroker, path: Path) -> None:
    """A checkpoint."""
    if isinstance(broker, NewBroker):
        broker.engine.store.checkpoint(path)
    else:
        broker.checkpoint(path)


def rows_in(broker: NewBroker, table: str) -> dict[bytes, bytes]:
    """The rows of a table that is stored, see `store/rows.py`, by key."""
    return dict(read_table(broker.engine.store, Table[table.upper()]))


def stored_rows(broker: NewBroker) -> dict[str, bytes]:
    """Every row of every table, by table and key."""
    return {
        f"{table.name.lower()} {key.hex()}": value
        for table in Table
        for key, value in rows_in(broker, table.name).items()
    }


def _rocks_of(broker: NewBroker) -> RocksKeyValueStore:
    store = broker.engine.store
    assert isinstance(store, RocksKeyValueStore)
    return store
