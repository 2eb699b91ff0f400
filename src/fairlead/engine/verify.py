"""Check a data directory from outside: every checksum, every row, every law, without changing a byte of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.engine.engine import memory_of
from fairlead.engine.laws import broken_laws_of_rows
from fairlead.errors import StoreCorrupt
from fairlead.store.kv.port import KeyValueStore
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.row_check import find_incomplete, find_unreadable


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`problems` are sentences; `ok` means that there are none. Counts cover what could be read."""

    problems: list[str] = field(default_factory=list)
    messages: int = 0
    queues: int = 0
    leases: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(path: str | os.PathLike[str]) -> VerifyReport:
    """Read all of a data directory that no broker has open, for example after a crash: every checksum, every
    row, every law. Nothing in it is changed.

    Damage is reported, not raised. Raises `InvalidRequest` for a directory that is not fairlead's,
    `FormatTooNew` and `FormatTooOld`.
    """
    try:
        store = RocksKeyValueStore.open(Path(path), read_only=True)
    except StoreCorrupt as damage:
        return VerifyReport([damage.message])
    try:
        return verify_store(store)
    except StoreCorrupt as damage:
        return VerifyReport([damage.message])
    finally:
        store.close()


def verify_store(store: KeyValueStore) -> VerifyReport:
    """The same for an open store that no other process writes to."""
    problems = find_unreadable(store) or find_incomplete(store)
    if problems:
        return VerifyReport(problems)
    try:
        memory = memory_of(store)
        broken = broken_laws_of_rows(memory, store)
    except StoreCorrupt:
        raise
    except Exception as trouble:
        # Each row is sound by itself, but together they are contradictory.
        return VerifyReport([f"the rows do not fit together: {type(trouble).__name__}: {trouble}"])
    counts = [queue.counts for queue in memory.by_id.values()]
    return VerifyReport(
        broken,
        sum(count.messages + count.done for count in counts),
        len(counts),
        sum(count.leased for count in counts),
    )
