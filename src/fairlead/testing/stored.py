"""How much of what is stored, for tests that nothing is left behind, or nothing forgotten too early."""

from __future__ import annotations

from typing import Any, Literal

from fairlead.model.names import Scoped
from fairlead.store.kv.port import KeyValueStore, Table
from fairlead.store.rows import read_table
from fairlead.testing.storage import Storage
from fairlead.testing.which_engine import is_new_engine

Kind = Literal["staged chunks", "leases", "queues", "buckets", "windows", "outcomes", "operations"]

_TABLES: dict[Kind, Table] = {
    "staged chunks": Table.STAGED,
    "leases": Table.LEASES,
    "queues": Table.QUEUES,
    "buckets": Table.BUCKETS,
    "windows": Table.DEDUP_END,
    "outcomes": Table.OUTCOMES,
    "operations": Table.INTENTS,
}


def stored_requests(storage: Storage) -> set[bytes]:
    """The ids of the requests whose answers are remembered."""
    if is_new_engine():
        return {key[:16] for key in _keys(storage, Table.ANSWERS)}
    found: Any = storage
    return set(found.requests_before(b"\xff" * 16, 1 << 30))


def stored_count(storage: Storage, kind: Kind) -> int:
    """How many records of that kind there are. The outcomes that are counted are those of the first claim of the
    consumer `etl` of queue `q`, as far as today's engine is asked.
    """
    if is_new_engine():
        return len(_keys(storage, _TABLES[kind]))
    found: Any = storage
    match kind:
        case "windows":
            return sum(found.next_dedup_end(record.queue_id) is not None for record in found.queues())
        case "outcomes":
            return len(found.claim_outcomes(Scoped("q", "etl"), 1, 0, 10))
        case "buckets":
            return len(found.bucket_levels())
        case "operations":
            return len(found.intents())
        case "staged chunks":
            return len(found.staged_chunks())
        case "queues":
            return len(found.queues())
    return len(found.leases())


def _keys(storage: Storage, table: Table) -> list[bytes]:
    store: KeyValueStore = storage  # type: ignore[assignment]
    return [key for key, _ in read_table(store, table)]
