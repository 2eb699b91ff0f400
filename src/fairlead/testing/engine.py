"""A broker without a disk, and questions about the inside of a broker that no verb answers.

Only this folder knows how the engine is built: a test that needs more of the inside asks for it here.
"""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fairlead.broker.broker import Broker
from fairlead.broker.broker import Durability as Durability
from fairlead.clock import Clock
from fairlead.config import Settings
from fairlead.model.lease import Lease
from fairlead.store.laws import check_laws
from fairlead.store.memory import MemoryStore
from fairlead.store.verify import verify
from fairlead.testing.storage import Storage


def open_in_memory(
    *, clock: Clock | None = None, durability: Durability = "fsync", settings: Settings | None = None
) -> Broker:
    """A broker that keeps everything in this process and loses it on exit. Has every verb but `checkpoint`."""
    return Broker(MemoryStore(), clock=clock, durability=durability, settings=settings)


def run_due(broker: Broker) -> None:
    """Do everything that is due by now. `ManualClock.advance` does this too."""
    broker.run_due()


def laws(checked: Broker | Storage | str | Path) -> list[str]:
    """Every broken law of the stored data, as a sentence; empty when all hold.

    A path is a data directory that no broker has open. A broker must be open, and idle.
    """
    if isinstance(checked, Broker):
        return check_laws(checked._core.store)
    if isinstance(checked, Storage):
        return check_laws(checked.inner)
    return verify(checked).problems


def is_closed(broker: Broker) -> bool:
    return broker._core.closed


def abandon(broker: Broker) -> None:
    """Leave a broker as a killed process does: it works no more, and writes nothing on the way out."""
    broker._core.closed = True
    broker._timer.stop()


def waiting_claims(broker: Broker, queue: str) -> int:
    """How many claims wait for messages of a queue."""
    return len(broker._core.queue(queue).waiters)


def find_lease(broker: Broker, raw_id: bytes) -> Lease | None:
    """The lease of a message by its id of 16 bytes."""
    return broker._core.leases.find(raw_id)


def all_leases(broker: Broker) -> list[Lease]:
    return list(broker._core.leases.all())


def staged_bytes(broker: Broker) -> int:
    """How much the staged writes of all queues hold, as counted in memory."""
    return broker._core.staged.stored_bytes


def engine_lock(broker: Broker) -> AbstractContextManager[Any]:
    """The lock under which every change is made. Every verb waits while it is held."""
    return broker._core.lock


def hooks_of(broker: Broker) -> Any:
    """The stand-in or process that runs the scripts of hooks."""
    return broker._core.hooks


def replace_hooks(broker: Broker, hooks: Any) -> None:
    """Scripts run in `hooks` from here on; the process that ran them ends."""
    broker._core.hooks.close()
    broker._core.hooks = hooks


def seed_jitter(broker: Broker, rng: random.Random) -> None:
    """Draw the jitter of retries from `rng`."""
    broker._core.rng = rng


def seed_ids(broker: Broker, rng: random.Random) -> None:
    """Draw the random part of new ids from `rng`."""
    broker._core.ids._random_bytes = rng.randbytes


def forget_bodies(broker: Broker) -> None:
    """Empty the cache of message bodies: the next claim reads them from the store."""
    broker._core.bodies.clear()


def sync(broker: Broker) -> None:
    """Return when everything committed would survive a power cut."""
    broker._core.store.sync(broker._core.store.last_commit)


def start_new_log(broker: Broker, family: str, *, wait: bool = True) -> None:
    """Flush one column family of a broker on disk: RocksDB starts a new log, and the others keep the old one."""
    broker._core.store._tables[family].flush(wait)  # type: ignore[attr-defined]
