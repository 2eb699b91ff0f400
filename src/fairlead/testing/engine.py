"""A broker without a disk, and questions about a broker's inside that no verb answers.

Only this folder knows the structure of the engine. A test that needs more of the inside asks for it here.
"""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import fairlead
from fairlead.clock import Clock
from fairlead.config import Settings
from fairlead.engine.audit_trail import entry_key
from fairlead.engine.broker import Broker
from fairlead.engine.broker import Durability as Durability
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.model.access import AuditRecord
from fairlead.model.ids import find_id
from fairlead.records.facts import MessageRestated, RecordsChanged
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.rows import read_table
from fairlead.testing.storage import Storage


def open_in_memory(
    *, clock: Clock | None = None, durability: Durability = "fsync", settings: Settings | None = None
) -> Broker:
    """A broker that keeps everything in this process and loses it on exit. It has every verb but
    `checkpoint`.
    """
    return Broker(DictionaryStore(), clock=clock, durability=durability, settings=settings)


def engine_of(broker: Broker) -> Engine:
    """The broker's engine."""
    return broker.engine


def run_due(broker: Broker) -> None:
    """Do all work that is due by now. `ManualClock.advance` does this too."""
    broker.run_due()


def laws(checked: Broker | Storage | str | Path) -> list[str]:
    """Every violated law of the stored data, as a sentence; empty if all hold.

    A path is a data directory that no broker has open. A broker must be open and idle.
    """
    if isinstance(checked, Broker):
        return broken_laws(checked.engine)
    if isinstance(checked, Storage):
        return checked.laws()
    return fairlead.verify(checked).problems


def is_closed(broker: Broker) -> bool:
    return broker.engine.closed


def abandon(broker: Broker) -> None:
    """Leave a broker as a killed process does: it stops working, and writes nothing more."""
    broker.engine.stop_working()


def waiting_claims(broker: Broker, queue: str) -> int:
    """The number of claims that wait for messages of a queue."""
    engine = broker.engine
    return len(engine.waiters.of(engine.memory.by_name[queue].record.queue_id))


def engine_lock(broker: Broker) -> AbstractContextManager[Any]:
    """The lock under which every change is made. Every verb waits while it is held."""
    return broker.engine.lock


def hooks_of(broker: Broker) -> Any:
    """The stand-in or process that runs hook scripts."""
    return broker.engine.hooking.hooks


def replace_hooks(broker: Broker, hooks: Any) -> None:
    """Run scripts in `hooks` from now on, and stop the process that ran them."""
    broker.engine.hooking.hooks.close()
    broker.engine.hooking.hooks = hooks


def seed_jitter(broker: Broker, rng: random.Random) -> None:
    """Draw the jitter of retries from `rng`."""
    broker.engine.random = rng


def forget_bodies(broker: Broker) -> None:
    """Drop message bodies from memory, so that the next claim reads them from the store."""
    for chunk in broker.engine.memory.chunks.values():
        chunk.payloads = None


def is_started(broker: Broker, message_id: str) -> bool:
    """Whether the consumer that holds the message has started it."""
    raw_id = find_id(message_id) or b""
    with broker.engine.lock:
        found = broker.engine.memory.find_lease(raw_id)
    return found is not None and found[1].terms.started


def set_attempts(broker: Broker, message_id: str, attempts: int) -> None:
    """Set the number of failures of a message."""
    raw_id = find_id(message_id) or b""
    with broker.engine.transaction() as tx:
        number = tx.find_messages([raw_id])[raw_id]
        tx.add(MessageRestated(number, replace(tx.state_of(number), attempts=attempts)))


def save_runbook(broker: Broker, project: str, text: str) -> None:
    """Store a text as the runbook of a project without checking it."""
    with broker.engine.transaction() as tx:
        tx.add(RecordsChanged(Table.RUNBOOKS, {b"/" + project.encode(): text}))


def replace_audit_record(broker: Broker, record: AuditRecord) -> None:
    """Replace the stored audit record with the same number."""
    with broker.engine.transaction() as tx:
        tx.add(RecordsChanged(Table.AUDIT, {entry_key(record.number): record}))


def forget_sessions(broker: Broker) -> None:
    """Expire all sessions, as after a long time without use."""
    with broker.engine.transaction() as tx:
        for table in (Table.ANSWERS, Table.SESSION_ENDS):
            tx.add(RecordsChanged(table, dict.fromkeys(rows_in(broker, table.name))))


def sync(broker: Broker) -> None:
    """Return when everything committed would survive a power cut."""
    broker.engine.store.sync()


def start_new_log(broker: Broker, family: str, *, wait: bool = True) -> None:
    """Flush one column family of a broker on disk: RocksDB starts a new log, and the other families keep the
    old one.
    """
    _rocks_of(broker).flush_table(Table[family.upper()], wait=wait)


def families_of(broker: Broker) -> list[str]:
    """The column families of a broker on disk."""
    return [table.name.lower() for table in Table]


def copy_directory(broker: Broker, path: Path) -> None:
    """Write a checkpoint."""
    broker.engine.store.checkpoint(path)


def rows_in(broker: Broker, table: str) -> dict[bytes, bytes]:
    """The stored rows of a table by key; see `store/rows.py`."""
    return dict(read_table(broker.engine.store, Table[table.upper()]))


def stored_rows(broker: Broker) -> dict[str, bytes]:
    """Every stored row, by table and key."""
    return {
        f"{table.name.lower()} {key.hex()}": value
        for table in Table
        for key, value in rows_in(broker, table.name).items()
    }


def _rocks_of(broker: Broker) -> RocksKeyValueStore:
    store = broker.engine.store
    assert isinstance(store, RocksKeyValueStore)
    return store
