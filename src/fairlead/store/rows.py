"""The one row layout: what changed becomes rows, rows become facts. Nothing else knows a key or an encoding.

| table    | key                         | value (MessagePack)                                              |
|----------|-----------------------------|------------------------------------------------------------------|
| config   | configuration key           | its value                                                        |
| buckets  | throttle key                | `Bucket`: what a token bucket held at a time                     |
| queues   | queue                       | `QueueRecord`                                                    |
| counters | queue                       | `Counts`: absolute values                                        |
| chunks   | queue, first number         | `Head`: columns; small chunks with their payloads                |
| pages    | queue, first number, page   | payloads of consecutive messages, about 16 KiB, written once     |
| states   | queue, first number         | a byte per message: implied, has a row of its own, gone          |
| own      | queue, number               | `OwnState` of a message that something happened to               |
| dedup    | queue, dedup key            | `DedupRow`: the message that the key stands for, and until when  |
| dedup_end | queue, end, dedup key      | nothing; one row per window                                      |
| leases   | queue, group                | `LeaseRow`: the members of a claim that expire together          |

Numbers are big-endian, so that keys sort by them. `queue` is the queue that a message was enqueued into, also
in rows of a dead letter: all rows of a queue and its dead letters can be read, or deleted, as a range.

An implied message is leased when a lease row lists it; a message with a row of its own, when that row names
the claim. So a settle of some members rewrites no lease row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from fairlead.errors import BrokenInvariant
from fairlead.model.config_keys import throttle_entries
from fairlead.model.queue import QueueRecord
from fairlead.records.chunk import OWN, Chunk, Head
from fairlead.records.facts import (
    BucketChanged,
    ChunkEnqueued,
    Claimed,
    ConfigChanged,
    MessageMoved,
    QueueStored,
    StateFact,
    WindowsEnded,
)
from fairlead.records.ids import BLOCK_MASK
from fairlead.records.lease import GroupLease, LeaseRow
from fairlead.records.state import Counts, DedupRow, OwnState
from fairlead.schedule.throttle import Bucket
from fairlead.store.changes import Changes
from fairlead.store.kv.port import Batch, KeyValueStore, Table

_encode = msgspec.msgpack.Encoder().encode
_decode_queue = msgspec.msgpack.Decoder(QueueRecord).decode
_decode_counts = msgspec.msgpack.Decoder(Counts).decode
_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_page = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_own = msgspec.msgpack.Decoder(OwnState).decode
_decode_bucket = msgspec.msgpack.Decoder(Bucket).decode
_decode_dedup = msgspec.msgpack.Decoder(DedupRow).decode
_decode_lease = msgspec.msgpack.Decoder(LeaseRow).decode

#: Rows of one bounded scan while a queue is loaded.
_SCAN_ROWS = 1000

_Row = tuple[bytes, bytes]


def _key(*numbers: int) -> bytes:
    return b"".join([number.to_bytes(8, "big") for number in numbers])


def _numbers_in(key: bytes) -> list[int]:
    return [int.from_bytes(key[at : at + 8], "big") for at in range(0, len(key) - 7, 8)]


def _page_key(chunk: Chunk, page: int) -> bytes:
    return _key(chunk.queue_id, chunk.first) + page.to_bytes(2, "big")


# Changes become rows


def write_changes(batch: Batch, changes: Changes) -> None:
    """Put the rows of everything that a transaction changed into its batch."""
    for chunk in changes.new_chunks:
        if chunk.live:
            _write_chunk(batch, chunk)
    for chunk in changes.chunks:
        _write_states(batch, chunk, is_new=chunk in changes.new_chunks)
    for group, lease in changes.new_leases.items():
        if group not in changes.ended_leases:
            batch.put(Table.LEASES, _lease_key(lease), _encode(lease.row()))
    for group, lease in changes.ended_leases.items():
        if group not in changes.new_leases:
            batch.delete(Table.LEASES, _lease_key(lease))
    for (queue_id, number), state in changes.own.items():
        if state is None:
            batch.delete(Table.OWN, _key(queue_id, number))
        else:
            batch.put(Table.OWN, _key(queue_id, number), _encode(state))
    if changes.config or changes.buckets:
        _write_config(batch, changes)
    if changes.dedup or changes.ended_windows:
        _write_dedup(batch, changes)
    for queue_id, record in changes.queues.items():
        batch.put(Table.QUEUES, _key(queue_id), _encode(record))
    for queue_id, counts in changes.counts.items():
        batch.put(Table.COUNTERS, _key(queue_id), _encode(counts))


def _write_config(batch: Batch, changes: Changes) -> None:
    for key, value in changes.config.items():
        if value is None:
            batch.delete(Table.CONFIG, key.encode())
        else:
            batch.put(Table.CONFIG, key.encode(), value.encode())
    for key, bucket in changes.buckets.items():
        if bucket is None:
            batch.delete(Table.BUCKETS, key.encode())
        else:
            batch.put(Table.BUCKETS, key.encode(), _encode(bucket))


def _write_dedup(batch: Batch, changes: Changes) -> None:
    for (queue_id, key), row in changes.dedup.items():
        if row is None:
            batch.delete(Table.DEDUP, _key(queue_id) + key.encode())
            continue
        batch.put(Table.DEDUP, _key(queue_id) + key.encode(), _encode(row))
        if row.until_ms:
            batch.put(Table.DEDUP_END, _key(queue_id, row.until_ms) + key.encode(), b"")
    for queue_id, until_ms, key in changes.ended_windows:
        batch.delete(Table.DEDUP_END, _key(queue_id, until_ms) + key.encode())


def _lease_key(lease: GroupLease) -> bytes:
    terms = lease.terms
    return _key(terms.home_id, terms.group)


def _write_chunk(batch: Batch, chunk: Chunk) -> None:
    batch.put(Table.CHUNKS, _key(chunk.queue_id, chunk.first), _encode(chunk.head()))
    if chunk.is_inline:
        return
    payloads = chunk.payloads
    assert payloads is not None, "a new chunk has its payloads"
    starts = chunk.page_starts()
    for page, (start, end) in enumerate(zip(starts, [*starts[1:], chunk.count], strict=True)):
        batch.put(Table.PAGES, _page_key(chunk, page), _encode(payloads[start:end]))


def _write_states(batch: Batch, chunk: Chunk, *, is_new: bool) -> None:
    key = _key(chunk.queue_id, chunk.first)
    if chunk.live:
        batch.put(Table.STATES, key, bytes(chunk.states or b""))
        return
    if is_new:
        return
    batch.delete(Table.CHUNKS, key)
    batch.delete(Table.STATES, key)
    if not chunk.is_inline:
        for page in range(len(chunk.page_starts())):
            batch.delete(Table.PAGES, _page_key(chunk, page))


# Rows become facts


def read_counts(store: KeyValueStore) -> dict[int, Counts]:
    return {_numbers_in(key)[0]: _decode_counts(raw) for key, raw in _scan(store, Table.COUNTERS)}


def read_queues(store: KeyValueStore) -> list[QueueRecord]:
    return [_decode_queue(raw) for _, raw in _scan(store, Table.QUEUES)]


def read_payloads(store: KeyValueStore, chunk: Chunk) -> Sequence[bytes]:
    """All payloads of a stored chunk."""
    if chunk.is_inline:
        raw = store.get(Table.CHUNKS, _key(chunk.queue_id, chunk.first))
        head = None if raw is None else _decode_head(raw)
        if head is None or head.inline is None:
            raise BrokenInvariant(f"chunk {chunk.first} of queue {chunk.queue_id} has no payloads")
        return head.inline
    keys = [_page_key(chunk, page) for page in range(len(chunk.page_starts()))]
    pages = store.get_many(Table.PAGES, keys)
    if None in pages:
        raise BrokenInvariant(f"a page of chunk {chunk.first} of queue {chunk.queue_id} is missing")
    return [payload for raw in pages for payload in _decode_page(raw or b"")]


def read_dedup(
    store: KeyValueStore, changes: Changes, queue_id: int, keys: Sequence[str]
) -> dict[str, DedupRow]:
    """The rows of those of these keys that have one, as this transaction sees them."""
    found = {key: changes.dedup.get((queue_id, key)) for key in keys}
    unknown = [key for key in keys if (queue_id, key) not in changes.dedup]
    raw_keys = [_key(queue_id) + key.encode() for key in unknown]
    for key, raw in zip(unknown, store.get_many(Table.DEDUP, raw_keys) if unknown else (), strict=True):
        found[key] = None if raw is None else _decode_dedup(raw)
    return {key: row for key, row in found.items() if row is not None}


def find_orphans(store: KeyValueStore) -> list[str]:
    """For laws and verification: rows of chunks and messages that do not exist."""
    heads = {key: _decode_head(raw) for key, raw in _scan(store, Table.CHUNKS)}
    states = dict(_scan(store, Table.STATES))
    found = [f"states {key.hex()}" for key in states if key not in heads]
    found += [f"page {key.hex()}" for key, _ in _scan(store, Table.PAGES) if key[:16] not in heads]
    for key, _ in _scan(store, Table.OWN):
        queue_id, number = _numbers_in(key)
        state = states.get(_key(queue_id, number & ~BLOCK_MASK), b"")
        if state[number & BLOCK_MASK : (number & BLOCK_MASK) + 1] != bytes((OWN,)):
            found.append(f"own row of {number} of queue {queue_id}")
    return found


def read_all_dedup(store: KeyValueStore, queue_id: int) -> dict[str, DedupRow]:
    """For laws and verification."""
    return {key[8:].decode(): _decode_dedup(raw) for key, raw in _scan(store, Table.DEDUP, queue_id)}


def read_windows(store: KeyValueStore, queue_id: int, limit: int) -> list[tuple[int, str]]:
    """The stored windows of dedup keys that end first: (end, key)."""
    rows = store.scan(Table.DEDUP_END, _key(queue_id), _key(queue_id + 1), limit=limit)
    return [(int.from_bytes(key[8:16], "big"), key[16:].decode()) for key, _ in rows]


def load(store: KeyValueStore, home_ids: Iterable[int] | None = None) -> Iterator[StateFact]:
    """The facts that lead from nothing to what is stored, in an order in which memory can apply them; of some
    queues with their dead letters, or of all.
    """
    if home_ids is None:
        yield from _load_config(store)
    homes = [(record, record.source_id or record.queue_id) for record in read_queues(store)]
    wanted = {home_id for _, home_id in homes} if home_ids is None else set(home_ids)
    for record, home_id in homes:
        if home_id in wanted:
            yield QueueStored(record)
    for home_id in sorted(wanted):
        yield from _load_home(store, home_id)


def _load_config(store: KeyValueStore) -> Iterator[StateFact]:
    config = {key.decode(): raw.decode() for key, raw in _scan(store, Table.CONFIG)}
    if config:
        yield ConfigChanged(dict(config))
    for raw_key, raw in _scan(store, Table.BUCKETS):
        key, bucket = raw_key.decode(), _decode_bucket(raw)
        yield BucketChanged(key, bucket, throttle_entries(key)[0] not in config, bucket.at_ms)


def _load_home(store: KeyValueStore, queue_id: int) -> Iterator[StateFact]:
    own = {_numbers_in(key)[1]: _decode_own(raw) for key, raw in _scan(store, Table.OWN, queue_id)}
    chunks = read_chunks(store, queue_id)
    implied = {number for chunk in chunks for number in chunk.implied()}
    leases = list(_read_leases(store, queue_id, implied, own))
    held = {number for _, numbers in leases for number in numbers}
    for until_ms, _ in read_windows(store, queue_id, 1):
        yield WindowsEnded(queue_id, (), until_ms)
    for chunk in chunks:
        yield ChunkEnqueued(chunk, [number for number in chunk.implied() if number not in held])
    for number, state in sorted(own.items(), key=lambda item: item[1].place):
        yield MessageMoved(number, state, None)
    for lease, numbers in leases:
        if numbers:
            yield Claimed(lease, numbers, None)


def read_chunks(store: KeyValueStore, queue_id: int) -> list[Chunk]:
    states = dict(_scan(store, Table.STATES, queue_id))
    chunks = []
    for key, raw in _scan(store, Table.CHUNKS, queue_id):
        head, state = _decode_head(raw), states.get(key)
        chunks.append(Chunk(queue_id, head, head.inline, None if state is None else bytearray(state)))
    return chunks


def _read_leases(
    store: KeyValueStore, queue_id: int, implied: set[int], own: dict[int, OwnState]
) -> Iterator[tuple[GroupLease, list[int]]]:
    """A member whose lease was extended or started is listed by several rows of its claim: the latest group
    counts.
    """
    seen: set[int] = set()
    rows = [_decode_lease(raw) for _, raw in _scan(store, Table.LEASES, queue_id)]
    for row in sorted(rows, key=lambda row: row.terms.group, reverse=True):
        lease = GroupLease.from_row(row)
        members = [
            number
            for number in lease.numbers
            if number not in seen
            and (number in implied or (number in own and own[number].claim_id == row.terms.claim_id))
        ]
        seen.update(members)
        yield lease, members


def _scan(store: KeyValueStore, table: Table, queue_id: int | None = None) -> Iterator[_Row]:
    """All rows of a table, or those of a queue, read in bounded parts."""
    start = b"" if queue_id is None else _key(queue_id)
    end = None if queue_id is None else _key(queue_id + 1)
    while rows := store.scan(table, start, end, limit=_SCAN_ROWS):
        yield from rows
        if len(rows) < _SCAN_ROWS:
            return
        start = rows[-1][0] + b"\0"
