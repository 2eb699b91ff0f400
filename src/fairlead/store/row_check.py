"""Checks of rows without an engine: whether each can be decoded, and whether every chunk is complete.

RocksDB's checksums detect damage of the disk. These checks detect what a defect of the engine or a repair
left behind.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.errors import StoreCorrupt
from fairlead.records.chunk import GONE, IMPLIED, OWN, Chunk
from fairlead.store.kv.port import KeyValueStore, Table
from fairlead.store.rows import (
    KEY_SHAPES,
    decode_value,
    find_missing_pages,
    own_key,
    queue_of,
    read_chunks,
    read_queues,
    read_table,
)

#: Tables whose keys begin with a queue that must exist.
TABLES_OF_QUEUES = (
    Table.CHUNKS,
    Table.COLD,
    Table.RUNS,
    Table.STATES,
    Table.PAGES,
    Table.OWN,
    Table.LEASES,
    Table.STREAMS,
    Table.MEMBERS,
    Table.DEDUP,
    Table.DEDUP_END,
    Table.DUE,
    Table.DONE,
    Table.LIVES,
)


def find_unreadable(store: KeyValueStore) -> list[str]:
    """Rows whose key or value cannot be read, as sentences."""
    return [
        f"table {table.name.lower()}, row {key.hex()}: {problem}"
        for table in Table
        for key, value in read_table(store, table)
        if (problem := problem_of(table, key, value)) is not None
    ]


def check_readable(store: KeyValueStore) -> None:
    """Raises `StoreCorrupt` for the first row that cannot be read."""
    for problem in find_unreadable(store):
        where, _, what = problem.partition(": ")
        raise StoreCorrupt(where, what)


def problem_of(table: Table, key: bytes, value: bytes) -> str | None:
    """Why a row cannot be read; None if it can."""
    length, has_text = KEY_SHAPES.get(table, (0, True))
    if len(key) < length or (len(key) > length and not has_text):
        return f"expected a key of {length} bytes, got {len(key)}"
    try:
        if table in KEY_SHAPES:
            key[length:].decode()
        decode_value(table, value)
    except ValueError as trouble:
        return f"the row cannot be decoded: {trouble}"
    return None


def find_incomplete(store: KeyValueStore) -> list[str]:
    """Rows and messages of queues that do not exist, chunks without all of their payloads or states, and
    messages without a row that they need. The rows can be decoded.
    """
    queue_ids = {record.queue_id for record in read_queues(store)}
    found = [
        f"table {table.name.lower()}, row {key.hex()}: there is no queue {queue_of(key)}"
        for table in TABLES_OF_QUEUES
        for key, _ in read_table(store, table)
        if queue_of(key) not in queue_ids
    ]
    own = set()
    for key, raw in read_table(store, Table.OWN):
        own.add(key)
        queue_id = decode_value(Table.OWN, raw).queue_id
        if queue_id not in queue_ids:
            found.append(
                f"table own, row {key.hex()}: the message is in queue {queue_id}, which does not exist"
            )
    pages = {key: len(raw) for key, raw in read_table(store, Table.PAGES)}
    for queue_id in sorted(queue_ids):
        for chunk in read_chunks(store, queue_id):
            found += _problems_of(chunk, own, pages)
    return found


def _problems_of(chunk: Chunk, own: set[bytes], pages: dict[bytes, int]) -> Iterator[str]:
    name = f"chunk {chunk.first} of queue {chunk.queue_id}"
    if chunk.is_inline and (chunk.payloads is None or len(chunk.payloads) != chunk.count):
        yield f"{name} has no payloads"
    for page in find_missing_pages(chunk, lambda key, size: pages.get(key) == size):
        yield f"{name}: page {page} of its payloads is missing or has another size"
    if chunk.states is not None and not _are_states(chunk):
        yield f"{name} has {chunk.count} messages and the states {bytes(chunk.states).hex()}"
        return
    if not chunk.live:
        yield f"{name} has no live message"
    for number in chunk.lost():
        yield f"{name}: message {number} lives, and an evacuation left nothing of it"
    for number in chunk.with_own_rows():
        if own_key(chunk, number) not in own:
            yield f"{name}: message {number} has no row of its own"


def _are_states(chunk: Chunk) -> bool:
    states = bytes(chunk.states or b"")
    return len(states) == chunk.count and not states.strip(bytes((IMPLIED, OWN, GONE)))
