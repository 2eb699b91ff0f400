"""Counts of stored records, for tests that nothing is left behind or forgotten too early."""

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
    """The numbers of the requests whose answers are remembered, in all sessions."""
    rows = read_table(storage, Table.ANSWERS)
    return {decode_value(Table.ANSWERS, raw).number for _, raw in rows} - {0}


def stored_count(storage: Storage, kind: Kind) -> int:
    """The number of records of that kind."""
    return len(_keys(storage, _TABLES[kind]))


def staged_bytes(storage: Storage) -> int:
    """The size on disk of staged chunks that are not published, according to their records."""
    return sum([decode_value(Table.STAGED, raw).stored_bytes for _, raw in read_table(storage, Table.STAGED)])


def _keys(storage: Storage, table: Table) -> list[bytes]:
    return [key for key, _ in read_table(storage, table)]
