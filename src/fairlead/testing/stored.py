"""How much of what is stored, for tests that nothing is left behind, or nothing forgotten too early."""

from __future__ import annotations

from typing import Literal

from fairlead.store.kv.port import Table
from fairlead.store.rows import decode_value, read_table
from fairlead.testing.storage import Storage

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


def stored_requests(storage: Storage) -> set[int]:
    """The numbers of the requests whose answers are remembered, of all sessions."""
    rows = read_table(storage, Table.ANSWERS)
    return {decode_value(Table.ANSWERS, raw).number for _, raw in rows} - {0}


def stored_count(storage: Storage, kind: Kind) -> int:
    """How many records of that kind there are."""
    return len(_keys(storage, _TABLES[kind]))


def staged_bytes(storage: Storage) -> int:
    """What the staged chunks that nobody has published take on disk, as their records say."""
    return sum([decode_value(Table.STAGED, raw).stored_bytes for _, raw in read_table(storage, Table.STAGED)])


def _keys(storage: Storage, table: Table) -> list[bytes]:
    return [key for key, _ in read_table(storage, table)]
