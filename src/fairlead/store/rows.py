"""The one row layout: what changed becomes rows, rows become facts. Nothing else knows a key or an encoding.

| table    | key                         | value (MessagePack)                                              |
|----------|-----------------------------|------------------------------------------------------------------|
| meta     | `clock`                     | `ClockMark`: ties the store's own time to the clocks             |
| config   | configuration key           | its value                                                        |
| buckets  | throttle key                | `Bucket`: what a token bucket held at a time                     |
| closed   | throttle key                | `Closure`: a throttle key that is closed until a time            |
| meta     | `last_queue_id`             | the highest id that a queue had, once a queue was deleted        |
| intents  | its number                  | `Intent`: a long operation under way                             |
| queues   | queue                       | `QueueRecord`                                                    |
| counters | queue                       | `Counts`: absolute values                                        |
| chunks   | queue, first number         | `Head`: columns; small chunks with their payloads                |
| cold     | queue, first number         | `Head` of a chunk that is not read at open                       |
| runs     | home queue, queue, lane, place, 0 or 1 | `RunRow`: ready messages of a lane, of a cold chunk (0) or one with a row of its own (1) |
| pages    | queue, number of a body, page | payloads one behind the other, about 16 KiB, or a piece of a large one; written once |
| states   | queue, first number         | a byte per message: implied, has a row of its own, gone          |
| own      | queue, number               | `OwnState` of a message that something happened to               |
| due      | queue, due time, number     | nothing; one row per message that waits                          |
| done     | queue, time of completion, number | nothing; one row per completed message that is kept        |
| lives    | queue, end, first number    | nothing; one row per chunk and end of lives in it                |
| dedup    | queue, dedup key            | `DedupRow`: the message that the key stands for, and until when  |
| dedup_end | queue, end, dedup key      | nothing; one row per window                                      |
| members  | queue, stream, seq, 0 or 1  | `MemberRow`: live messages of a stream, of a cold chunk (0) or one with a row of its own (1) |
| streams  | queue, stream               | `StreamRow`: which messages may pass earlier ones that wait      |
| leases   | queue, group                | `LeaseRow`: the members of a claim that expire together          |
| api_keys | id of a key                 | `KeyRecord`; under `adopted`, the bootstrap key as it was taken  |
| runbooks | `/`, project                | the text of its runbook                                          |
| external_queues | `/`, project         | the names of the queues that its runbook says live elsewhere     |
| audit    | number of the entry         | `AuditRecord`                                                    |
| consumers | queue name, 0, name        | `ConsumerRecord`: a durable consumer and its numbered claim      |
| outcomes | claim, call                 | `RecordedCall`: what was said about members; call 0: `ChosenParts` |
| answers  | id of the key, 0, session, 0, row | `RememberedAnswer` of a request of the session; a later request takes its row |
| session_ends | end, id of the key, 0, session, 0 | true; one row per session                             |
| staged   | queue name, 0, length of token, token, chunk | `StagedChunk`                                   |
| staged_parts | queue, number           | `StagedPart`: its messages; their payloads are in pages under that number |
| publishing | queue name, 0, length of token, token | `Publishing`: a write that is decided, and what is left of it |
| published | queue name, 0, length of token, token | `Published`, so that a write is not published twice    |
| published_end | end, key of the write  | true                                                             |

Numbers are big-endian, so that keys sort by them. `queue` is the queue that a message was enqueued into, also
in rows of a dead letter: all rows of a queue and its dead letters can be read, or deleted, as a range. A body has
the first number of its chunk, unless the head names another one.

An implied message is leased when a lease row lists it; a message with a row of its own, when that row names
the claim. So a settle of some members rewrites no lease row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

import msgspec

from fairlead.errors import BrokenInvariant
from fairlead.model.access import AuditRecord, KeyRecord
from fairlead.model.clock_mark import ClockMark
from fairlead.model.config_keys import throttle_entries
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.intent import Intent
from fairlead.model.names import Scoped
from fairlead.model.packed_payloads import PackedPayloads
from fairlead.model.queue import QueueRecord
from fairlead.model.staging import Published, Publishing, StagedChunk
from fairlead.model.throttle import Closure
from fairlead.records.chunk import (
    IMPLIED,
    OWN,
    PAGE_BYTES,
    PIECE_BYTES,
    Chunk,
    Head,
    count_pieces,
    cut_pages,
    page_sizes,
)
from fairlead.records.consumer import ChosenParts, RecordedCall
from fairlead.records.facts import (
    BucketChanged,
    ChunkEnqueued,
    ChunksRead,
    Claimed,
    ConfigChanged,
    CountsRead,
    DoneRead,
    DueRead,
    LivesEnded,
    MessageMoved,
    PagesStaged,
    PassAllowed,
    QueueDeleted,
    QueueStored,
    ReadFact,
    RecordsChanged,
    StateFact,
    WindowsEnded,
)
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT, MAX_CHUNK_MESSAGES
from fairlead.records.lease import GroupLease, LeaseRow
from fairlead.records.session import RememberedAnswer
from fairlead.records.staging import StagedPart
from fairlead.records.state import Counts, DedupRow, MemberRow, OwnState, RunRow
from fairlead.records.stream import StreamRow
from fairlead.schedule.throttle import Bucket
from fairlead.store.changes import Changes
from fairlead.store.cold_rows import (
    read_cold_chunks,
    read_states,
    scan_cold_chunks,
    write_runs,
    write_scattered,
)
from fairlead.store.index_rows import read_done, read_due, read_lives, write_indexes
from fairlead.store.kv.port import Batch, KeyValueStore, Table
from fairlead.store.row_keys import numbers_in as _numbers_in
from fairlead.store.row_keys import pack_key as _key
from fairlead.store.row_keys import pack_one as _key_of_one
from fairlead.store.row_keys import pack_two as _key_of_two
from fairlead.store.stream_rows import write_members

_encode = msgspec.msgpack.Encoder().encode
_decode_queue = msgspec.msgpack.Decoder(QueueRecord).decode
_decode_counts = msgspec.msgpack.Decoder(Counts).decode
_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_own = msgspec.msgpack.Decoder(OwnState).decode
_decode_bucket = msgspec.msgpack.Decoder(Bucket).decode
_decode_dedup = msgspec.msgpack.Decoder(DedupRow).decode
_decode_stream = msgspec.msgpack.Decoder(StreamRow).decode
_decode_lease = msgspec.msgpack.Decoder(LeaseRow).decode

#: Tables of records that stand beside the messages, and the type of their records.
RECORD_TYPES: dict[Table, Any] = {
    Table.API_KEYS: KeyRecord,
    Table.RUNBOOKS: str,
    Table.EXTERNAL_QUEUES: frozenset[str],
    Table.AUDIT: AuditRecord,
    Table.META: ClockMark | int,
    Table.INTENTS: Intent,
    Table.CLOSED: Closure,
    Table.CONSUMERS: ConsumerRecord,
    Table.OUTCOMES: RecordedCall | ChosenParts,
    Table.ANSWERS: RememberedAnswer,
    Table.SESSION_ENDS: bool,
    Table.STAGED: StagedChunk,
    Table.STAGED_PARTS: StagedPart,
    Table.PUBLISHING: Publishing,
    Table.PUBLISHED: Published,
    Table.PUBLISHED_END: bool,
}
#: Tables whose records are all in memory.
RECORDS_IN_MEMORY: frozenset[Table] = frozenset(
    {
        Table.API_KEYS,
        Table.EXTERNAL_QUEUES,
        Table.CONSUMERS,
        Table.STAGED,
        Table.PUBLISHING,
        Table.INTENTS,
        Table.CLOSED,
    }
)
_decode_record = {table: msgspec.msgpack.Decoder(kind).decode for table, kind in RECORD_TYPES.items()}

#: The type of the values of each table; None: bytes that are not MessagePack. For verification and repair.
VALUE_TYPES: dict[Table, Any] = {
    Table.QUEUES: QueueRecord,
    Table.COUNTERS: Counts,
    Table.CHUNKS: Head,
    Table.COLD: Head,
    Table.RUNS: RunRow,
    Table.PAGES: None,
    Table.STATES: None,
    Table.OWN: OwnState,
    Table.MEMBERS: MemberRow,
    Table.STREAMS: StreamRow,
    Table.LEASES: LeaseRow,
    Table.DEDUP: DedupRow,
    Table.DEDUP_END: None,
    Table.DUE: None,
    Table.DONE: None,
    Table.LIVES: None,
    Table.CONFIG: None,
    Table.BUCKETS: Bucket,
    **RECORD_TYPES,
}
#: The length of the numbers that the keys of a table begin with, and whether a text follows.
KEY_SHAPES: dict[Table, tuple[int, bool]] = {
    Table.QUEUES: (8, False),
    Table.COUNTERS: (8, False),
    Table.CHUNKS: (16, False),
    Table.COLD: (16, False),
    Table.PAGES: (18, False),
    Table.STATES: (16, False),
    Table.OWN: (16, False),
    Table.LEASES: (16, False),
    Table.STREAMS: (8, True),
    Table.DEDUP: (8, True),
    Table.DEDUP_END: (16, True),
    Table.DUE: (24, False),
    Table.DONE: (24, False),
    Table.LIVES: (24, False),
    Table.CONFIG: (0, True),
    Table.BUCKETS: (0, True),
    Table.CLOSED: (0, True),
    Table.API_KEYS: (0, True),
    Table.AUDIT: (8, False),
    Table.CONSUMERS: (0, True),
    Table.OUTCOMES: (16, False),
    Table.STAGED_PARTS: (16, False),
    Table.PUBLISHED_END: (8, True),
    Table.SESSION_ENDS: (8, True),
}
#: Tables whose keys begin with the queue that a message was enqueued into. Their rows are deleted with that
#: queue.
TABLES_OF_A_QUEUE = (
    Table.CHUNKS,
    Table.COLD,
    Table.RUNS,
    Table.PAGES,
    Table.STATES,
    Table.OWN,
    Table.LEASES,
    Table.DEDUP,
    Table.DEDUP_END,
    Table.DUE,
    Table.DONE,
    Table.LIVES,
    Table.STREAMS,
    Table.MEMBERS,
)
#: The tables of nearly every commit: reading a member of an enumeration costs as much as a function call.
_CHUNKS, _COLD, _STATES = Table.CHUNKS, Table.COLD, Table.STATES
_LEASES, _COUNTERS, _ANSWERS = Table.LEASES, Table.COUNTERS, Table.ANSWERS
_LAST_QUEUE_ID = b"last_queue_id"

#: Rows of one bounded scan while a queue is loaded.
_SCAN_ROWS = 1000

_Row = tuple[bytes, bytes]


def consumer_key(queue: str, name: str) -> bytes:
    """Sorts by queue, then by name: no name of a queue contains a zero byte."""
    return f"{queue}\0{name}".encode()


def outcomes_key(claim_id: int, call: int) -> bytes:
    return _key(claim_id, call)


def claim_of_outcomes(key: bytes) -> int:
    return _numbers_in(key)[0]


def write_key(write: Scoped) -> bytes:
    """The length separates a token from the name of a chunk after it."""
    token = write.name.encode()
    return f"{write.queue}\0".encode() + len(token).to_bytes(2, "big") + token


def chunk_key(write: Scoped, chunk: str) -> bytes:
    return write_key(write) + chunk.encode()


def part_key(queue_id: int, number: int) -> bytes:
    return _key(queue_id, number)


def published_end_key(until_ms: int, write: Scoped) -> bytes:
    return _key(until_ms) + write_key(write)


def end_of_published(key: bytes) -> int:
    return _numbers_in(key[:8])[0]


def write_of_published_end(key: bytes) -> bytes:
    return key[8:]


def session_key(key_id: str | None, session: str) -> bytes:
    """Neither the id of a key nor the name of a session contains a zero byte."""
    return f"{key_id or ''}\0{session}\0".encode()


def answer_key(session: bytes, row: int) -> bytes:
    return session + _key_of_one(row)


def end_of_session_rows(session: bytes) -> bytes:
    """After the keys of all of its answers."""
    return session[:-1] + b"\1"


def session_of_answer(key: bytes) -> bytes:
    return key[:-8]


def row_of_answer(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


def session_end_key(end_ms: int, session: bytes) -> bytes:
    return _key(end_ms) + session


def session_of_end(key: bytes) -> bytes:
    return key[8:]


def _page_keys(chunk: Chunk, count: int) -> list[bytes]:
    """The keys of its first pages."""
    of_chunk = _key_of_two(chunk.queue_id, chunk.body)
    return [of_chunk + page.to_bytes(2, "big") for page in range(count)]


def _page_key(chunk: Chunk, page: int) -> bytes:
    return _key_of_two(chunk.queue_id, chunk.body) + page.to_bytes(2, "big")


# Changes become rows


def write_changes(batch: Batch, changes: Changes) -> None:
    """Put the rows of everything that a transaction changed into its batch."""
    puts, deletes = batch.puts, batch.deletes
    for chunk in changes.new_chunks:
        if chunk.live:
            table, key = _COLD if chunk.is_cold else _CHUNKS, _key_of_two(chunk.queue_id, chunk.first)
            puts.append((table, key, _encode(chunk.head())))
            if chunk.payload_bytes > PAGE_BYTES and chunk.body == chunk.first:
                _write_pages(batch, chunk)
    if changes.chunks:
        new = changes.new_chunks and set(changes.new_chunks)
        for chunk in changes.chunks:
            _write_states(batch, chunk, is_new=chunk in new)
    new_leases, ended_leases = changes.new_leases, changes.ended_leases
    if new_leases:
        for group, lease in new_leases.items():
            if group not in ended_leases:
                puts.append((_LEASES, _key_of_two(lease.terms.home_id, group), _encode(lease.row())))
    if ended_leases:
        for group, lease in ended_leases.items():
            if group not in new_leases:
                deletes.append((_LEASES, _key_of_two(lease.terms.home_id, group)))
    for queue_id, counts in changes.counts.items():
        puts.append((_COUNTERS, _key_of_one(queue_id), _encode(counts)))
    if changes.answers:
        for row_key, answer in changes.answers.items():
            if answer is None:
                deletes.append((_ANSWERS, row_key))
            else:
                puts.append((_ANSWERS, row_key, _encode(answer)))
    changes.has_others = any(changes.others)
    if changes.has_others:
        _write_others(batch, changes)


def _write_others(batch: Batch, changes: Changes) -> None:
    for fact in changes.scattered:
        write_scattered(batch, fact)
    for chunk in changes.cooled.difference(changes.new_chunks) if changes.cooled else ():
        key = _key(chunk.queue_id, chunk.first)
        batch.put(Table.COLD, key, _encode(chunk.head()))
        batch.delete(Table.CHUNKS, key)
    for before, after in changes.thinned:
        _delete_pages(batch, before)
        table = _COLD if after.is_cold else _CHUNKS
        batch.put(table, _key_of_two(after.queue_id, after.first), _encode(after.head()))
        _write_pages(batch, after)
    if changes.runs:
        write_runs(batch, changes)
    if changes.own:
        _write_own(batch, changes)
    if changes.members:
        write_members(batch, changes)
    if changes.streams:
        _write_streams(batch, changes)
    if changes.config or changes.buckets:
        _write_config(batch, changes)
    if changes.dedup or changes.ended_windows:
        _write_dedup(batch, changes)
    if changes.due or changes.done or changes.lives:
        write_indexes(batch, changes)
    if changes.records:
        _write_records(batch, changes)
    if changes.staged_pages:
        for (queue_id, number), staged in changes.staged_pages.items():
            _write_staged_pages(batch, queue_id, number, staged)
    if changes.queues or changes.deleted_queues:
        _write_queues(batch, changes)


def _write_own(batch: Batch, changes: Changes) -> None:
    # Messages that wait for the same time share their state.
    last, raw = None, b""
    for (queue_id, number), state in changes.own.items():
        if state is None:
            batch.delete(Table.OWN, _key_of_two(queue_id, number))
            continue
        if state is not last:
            last, raw = state, _encode(state)
        batch.put(Table.OWN, _key_of_two(queue_id, number), raw)


def _write_streams(batch: Batch, changes: Changes) -> None:
    for (queue_id, name), row in changes.streams.items():
        if row is None:
            batch.delete(Table.STREAMS, _key(queue_id) + name.encode())
        else:
            batch.put(Table.STREAMS, _key(queue_id) + name.encode(), _encode(row))


def _write_records(batch: Batch, changes: Changes) -> None:
    for (table, key), record in changes.records.items():
        if record is None:
            batch.delete(table, key)
        else:
            batch.put(table, key, _encode(record))


def _write_queues(batch: Batch, changes: Changes) -> None:
    """Write the rows of deleted, new and changed queues. A deletion stores the highest id that a queue ever
    had.
    """
    for deleted in changes.deleted_queues:
        _delete_queue(batch, deleted)
    if changes.last_queue_id:
        batch.put(Table.META, _LAST_QUEUE_ID, _encode(changes.last_queue_id))
    for queue_id, record in changes.queues.items():
        batch.put(Table.QUEUES, _key(queue_id), _encode(record))


def _delete_queue(batch: Batch, record: QueueRecord) -> None:
    for table in TABLES_OF_A_QUEUE:
        batch.delete_range(table, _key(record.queue_id), _key(record.queue_id + 1))
    for queue_id in (record.queue_id, record.dlq_id):
        batch.delete(Table.QUEUES, _key(queue_id))
        batch.delete(Table.COUNTERS, _key(queue_id))


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


def _write_pages(batch: Batch, chunk: Chunk) -> None:
    if chunk.is_inline:
        return
    payloads = chunk.payloads
    assert payloads is not None, "a new chunk has its payloads"
    starts = chunk.page_starts()
    for key, page in zip(_page_keys(chunk, len(starts)), cut_pages(payloads, starts), strict=True):
        batch.put(Table.PAGES, key, b"".join(page))


def _delete_pages(batch: Batch, chunk: Chunk) -> None:
    if not chunk.is_inline:
        for key in _page_keys(chunk, len(chunk.page_starts())):
            batch.delete(Table.PAGES, key)


def _write_staged_pages(batch: Batch, queue_id: int, number: int, staged: PagesStaged | None) -> None:
    if staged is None or staged.pages is None:
        batch.delete_range(Table.PAGES, _key(queue_id, number), _key(queue_id, number + 1))
        return
    for page, payloads in enumerate(staged.pages, staged.first_page):
        batch.put(Table.PAGES, _key(queue_id, number) + page.to_bytes(2, "big"), b"".join(payloads))


def _write_states(batch: Batch, chunk: Chunk, *, is_new: bool) -> None:
    key = _key_of_two(chunk.queue_id, chunk.first)
    if chunk.live:
        batch.puts.append((_STATES, key, bytes(chunk.states or b"")))
        chunk.has_states_row = True
        return
    if is_new:
        return
    batch.deletes.append((_COLD if chunk.is_cold else _CHUNKS, key))
    if chunk.has_states_row:
        batch.deletes.append((_STATES, key))
    if chunk.payload_bytes > PAGE_BYTES and chunk.body == chunk.first:
        _delete_pages(batch, chunk)


# Rows become facts


def read_counts(store: KeyValueStore) -> dict[int, Counts]:
    return {_numbers_in(key)[0]: _decode_counts(raw) for key, raw in _scan(store, Table.COUNTERS)}


def read_queues(store: KeyValueStore) -> list[QueueRecord]:
    return [_decode_queue(raw) for _, raw in _scan(store, Table.QUEUES)]


def read_payloads(store: KeyValueStore, chunk: Chunk) -> Sequence[bytes]:
    """All payloads of a stored chunk. Raises `BrokenInvariant` if they are missing: without the lock, the
    chunk may be gone or rewritten.
    """
    if chunk.is_inline:
        inline = _find_inline(store, chunk)
        if inline is None:
            raise BrokenInvariant(f"chunk {chunk.first} of queue {chunk.queue_id} has no payloads")
        return inline
    pages = _read_pages(store, chunk, range(len(chunk.page_starts())))
    if None in pages:
        raise BrokenInvariant(f"a page of chunk {chunk.first} of queue {chunk.queue_id} is missing")
    return _unpack(chunk, b"".join(cast("list[bytes]", pages)), chunk.columns.sizes)


def _read_pages(store: KeyValueStore, chunk: Chunk, pages: Sequence[int]) -> list[bytes | None]:
    """Read in steps of about a piece, each of which holds the interpreter lock."""
    keys = [_page_key(chunk, page) for page in pages]
    at_once = max(1, PIECE_BYTES * len(chunk.page_starts()) // chunk.payload_bytes)
    if len(keys) <= at_once:
        return store.get_many(Table.PAGES, keys)
    steps = [keys[start : start + at_once] for start in range(0, len(keys), at_once)]
    return [raw for step in steps for raw in store.get_many(Table.PAGES, step)]


def _unpack(chunk: Chunk, raw: bytes, sizes: Sequence[int]) -> PackedPayloads:
    try:
        return PackedPayloads(raw, sizes)
    except ValueError as wrong:
        raise BrokenInvariant(f"pages of chunk {chunk.first} of queue {chunk.queue_id}: {wrong}") from None


def _find_inline(store: KeyValueStore, chunk: Chunk) -> Sequence[bytes] | None:
    """Read in this order: without the lock, a chunk may become cold between the two reads, but never hot."""
    for table in (Table.CHUNKS, Table.COLD):
        raw = store.get(table, _key(chunk.queue_id, chunk.first))
        if raw is not None:
            head = _decode_head(raw)
            return head.inline if (head.body or head.first) == chunk.body else None
    return None


def find_payloads(store: KeyValueStore, chunk: Chunk, numbers: Sequence[int]) -> list[bytes | None]:
    """Payloads of some messages of a chunk; None for those that are gone, or that moved because the chunk was
    rewritten.

    Needs no lock: the number of a body is used once, so a page of it has its payloads or is gone.
    """
    indexes = [number & BLOCK_MASK for number in numbers]
    if chunk.is_inline:
        inline = _find_inline(store, chunk)
        return [None if inline is None else inline[index] for index in indexes]
    starts, sizes = chunk.page_starts(), chunk.columns.sizes
    page_of = {index: bisect_right(starts, index) - 1 for index in indexes}
    ends = [*starts[1:], chunk.count]
    # Each with the following pages that have the rest of its last payload.
    runs = {page: range(page, page + count_pieces(sizes[ends[page] - 1])) for page in page_of.values()}
    wanted = [page for run in runs.values() for page in run]
    raw_pages = dict(zip(wanted, _read_pages(store, chunk, wanted), strict=True))
    pages: dict[int, PackedPayloads] = {}
    for page, run in runs.items():
        parts = [raw for raw in map(raw_pages.__getitem__, run) if raw is not None]
        if len(parts) == len(run):
            pages[page] = _unpack(chunk, b"".join(parts), sizes[starts[page] : ends[page]])
    return [
        pages[page_of[index]][index - starts[page_of[index]]] if page_of[index] in pages else None
        for index in indexes
    ]


def read_dedup(
    store: KeyValueStore, changes: Changes, queue_id: int, keys: Sequence[str]
) -> dict[str, DedupRow]:
    """The rows of these keys that exist, as this transaction sees them."""
    found = {key: changes.dedup.get((queue_id, key)) for key in keys}
    unknown = [key for key in keys if (queue_id, key) not in changes.dedup]
    raw_keys = [_key(queue_id) + key.encode() for key in unknown]
    for key, raw in zip(unknown, store.get_many(Table.DEDUP, raw_keys) if unknown else (), strict=True):
        found[key] = None if raw is None else _decode_dedup(raw)
    return {key: row for key, row in found.items() if row is not None}


def read_records(store: KeyValueStore, changes: Changes, table: Table, keys: Sequence[bytes]) -> list[Any]:
    """Records beside the messages as this transaction sees them, in the order of the keys; None if there is
    none.
    """
    decode = _decode_record[table]
    changed = changes.records_of(table, keys)
    unknown = [key for key in keys if key not in changed]
    stored = dict(zip(unknown, store.get_many(table, unknown) if unknown else (), strict=True))
    found = {key: None if raw is None else decode(raw) for key, raw in stored.items()}
    return [changed[key] if key in changed else found[key] for key in keys]


def scan_records(
    store: KeyValueStore,
    changes: Changes,
    table: Table,
    start: bytes,
    end: bytes | None,
    *,
    limit: int,
    reverse: bool,
) -> list[tuple[bytes, Any]]:
    """As `KeyValueStore.scan`, with the changes of this transaction."""
    decode = _decode_record[table]
    changed = {
        key: record
        for key, record in changes.records_of(table).items()
        if start <= key and (end is None or key < end)
    }
    # The transaction may have deleted that many more.
    rows = store.scan(table, start, end, limit=limit + len(changed), reverse=reverse)
    found = {key: decode(raw) for key, raw in rows if key not in changed}
    found.update({key: record for key, record in changed.items() if record is not None})
    return sorted(found.items(), key=itemgetter(0), reverse=reverse)[:limit]


def find_orphans(store: KeyValueStore) -> list[str]:
    """For laws and verification: rows of chunks and messages that do not exist."""
    heads = {
        key: _decode_head(raw) for table in (Table.CHUNKS, Table.COLD) for key, raw in _scan(store, table)
    }
    states = dict(_scan(store, Table.STATES))
    queue_ids = {_key(record.queue_id) for record in read_queues(store)}
    found = [f"states {key.hex()}" for key in states if key not in heads]
    for table in (*TABLES_OF_A_QUEUE, Table.COUNTERS):
        found += [f"{table.name} {key.hex()}" for key, _ in _scan(store, table) if key[:8] not in queue_ids]
    bodies = {key[:8] + _key(head.body or head.first) for key, head in heads.items()}
    bodies |= {key for key, _ in _scan(store, Table.STAGED_PARTS)}
    found += [f"page {key.hex()}" for key, _ in _scan(store, Table.PAGES) if key[:16] not in bodies]
    for key, _ in _scan(store, Table.OWN):
        queue_id, number = _numbers_in(key)
        state = states.get(_key(queue_id, number & ~BLOCK_MASK), b"")
        if state[number & BLOCK_MASK : (number & BLOCK_MASK) + 1] != bytes((OWN,)):
            found.append(f"own row of {number} of queue {queue_id}")
    return found


def read_outcomes(store: KeyValueStore) -> dict[int, dict[int, RecordedCall | ChosenParts]]:
    """For laws and verification: the recorded outcomes of numbered claims, by claim and call."""
    found: dict[int, dict[int, RecordedCall | ChosenParts]] = {}
    for key, raw in _scan(store, Table.OUTCOMES):
        claim_id, call = _numbers_in(key)
        found.setdefault(claim_id, {})[call] = _decode_record[Table.OUTCOMES](raw)
    return found


def read_parts(store: KeyValueStore) -> dict[tuple[int, int], StagedPart]:
    """For laws and verification: staged parts by queue and number."""
    rows = [(_numbers_in(key), raw) for key, raw in _scan(store, Table.STAGED_PARTS)]
    return {(queue_id, number): _decode_record[Table.STAGED_PARTS](raw) for (queue_id, number), raw in rows}


def count_staged_pages(store: KeyValueStore, queue_id: int, number: int) -> int:
    """For laws and verification."""
    start, end = _key(queue_id, number), _key(queue_id, number + 1)
    return len(store.scan(Table.PAGES, start, end, limit=MAX_CHUNK_MESSAGES))


def read_published(store: KeyValueStore) -> tuple[dict[bytes, Published], dict[bytes, int]]:
    """For laws and verification: published writes, and when each is forgotten, by the keys of the writes."""
    decode = _decode_record[Table.PUBLISHED]
    published = {key: decode(raw) for key, raw in _scan(store, Table.PUBLISHED)}
    ends = [key for key, _ in _scan(store, Table.PUBLISHED_END)]
    return published, {write_of_published_end(key): end_of_published(key) for key in ends}


def read_answers(store: KeyValueStore) -> dict[bytes, dict[bytes, RememberedAnswer]]:
    """For laws, verification and repair: remembered answers by the keys of their sessions and their own."""
    decode, found = _decode_record[Table.ANSWERS], dict[bytes, dict[bytes, RememberedAnswer]]()
    for key, raw in _scan(store, Table.ANSWERS):
        found.setdefault(session_of_answer(key), {})[key] = decode(raw)
    return found


def read_session_ends(store: KeyValueStore) -> list[bytes]:
    """For laws and verification: the keys of the rows."""
    return [key for key, _ in _scan(store, Table.SESSION_ENDS)]


def read_all_dedup(store: KeyValueStore, queue_id: int) -> dict[str, DedupRow]:
    """For laws and verification."""
    return {key[8:].decode(): _decode_dedup(raw) for key, raw in _scan(store, Table.DEDUP, queue_id)}


def read_windows(store: KeyValueStore, queue_id: int, limit: int) -> list[tuple[int, str]]:
    """The stored windows of dedup keys that end first: (end, key)."""
    rows = store.scan(Table.DEDUP_END, _key(queue_id), _key(queue_id + 1), limit=limit)
    return [(int.from_bytes(key[8:16], "big"), key[16:].decode()) for key, _ in rows]


def read_stream_names(store: KeyValueStore, queue_id: int) -> list[str]:
    """For laws and verification: the streams of a queue that have rows."""
    return [key[8:].decode() for key, _ in _scan(store, Table.STREAMS, queue_id)]


def load(store: KeyValueStore, home_ids: Iterable[int] | None = None) -> Iterator[StateFact | ReadFact]:
    """The facts that lead from nothing to the stored state, in an order in which memory can apply them; for
    some queues with their dead letters, or for all.
    """
    if home_ids is None:
        yield from _load_config(store)
        last_queue_id = store.get(Table.META, _LAST_QUEUE_ID)
        if last_queue_id is not None:
            yield QueueDeleted(0, _decode_record[Table.META](last_queue_id))
        for table in sorted(RECORDS_IN_MEMORY):
            decode = _decode_record[table]
            yield RecordsChanged(table, {key: decode(raw) for key, raw in _scan(store, table)})
    homes = [(record, record.source_id or record.queue_id) for record in read_queues(store)]
    wanted = {home_id for _, home_id in homes} if home_ids is None else set(home_ids)
    counts = read_counts(store)
    for record, home_id in homes:
        if home_id in wanted:
            yield QueueStored(record)
            yield CountsRead(record.queue_id, counts.get(record.queue_id, Counts()))
    for record, home_id in homes:
        if home_id in wanted and not record.source_id:
            yield from _load_home(store, home_id, is_ordered=record.config.ordering != "none")


def _load_config(store: KeyValueStore) -> Iterator[StateFact | ReadFact]:
    config = {key.decode(): raw.decode() for key, raw in _scan(store, Table.CONFIG)}
    if config:
        yield ConfigChanged(dict(config))
    for raw_key, raw in _scan(store, Table.BUCKETS):
        key, bucket = raw_key.decode(), _decode_bucket(raw)
        yield BucketChanged(key, bucket, throttle_entries(key)[0] not in config, bucket.at_ms)


def _load_home(store: KeyValueStore, queue_id: int, *, is_ordered: bool) -> Iterator[StateFact | ReadFact]:
    for until_ms, _ in read_windows(store, queue_id, 1):
        yield WindowsEnded(queue_id, (), until_ms)
    for due_ms, _ in read_due(store, Changes(), queue_id, (0, 0), 1):
        yield DueRead(queue_id, due_ms)
    for done_ms, _ in read_done(store, Changes(), queue_id, (0, 0), 1):
        yield DoneRead(queue_id, done_ms)
    for end_ms, _ in read_lives(store, Changes(), queue_id, 1):
        yield LivesEnded(queue_id, (), end_ms)
    hot = read_hot_chunks(store, queue_id)
    rows = [_decode_lease(raw) for _, raw in _scan(store, Table.LEASES, queue_id)]
    leases = [GroupLease.from_row(row) for row in rows]
    members = {number for lease in leases for number in lease.numbers}
    blocks = {number >> BLOCK_SHIFT for number in members} - {chunk.block for chunk in hot}
    cold = read_cold_chunks(store, [queue_id], sorted(blocks)) if blocks else []
    chunks = {chunk.block: chunk for chunk in [*hot, *cold]}
    in_streams = _in_streams(hot) if is_ordered else set()
    own = _read_states_of(store, chunks, members | in_streams)
    held = dict(_choose_leases(leases, chunks, own))
    if cold:
        yield ChunksRead(cold)
    for chunk in hot:
        ready = [number for number in chunk.implied() if number not in held]
        yield ChunkEnqueued(chunk, ready=ready)
    kept = {
        number: state
        for number, state in own.items()
        if number in held or (number in in_streams and state.queue_id == queue_id)
    }
    for number, state in sorted(kept.items(), key=lambda item: item[1].place):
        yield MessageMoved(number, state, None)
    for lease in leases:
        numbers = [number for number in lease.numbers if held.get(number) is lease]
        if numbers:
            yield Claimed(lease, numbers, None)
    for key, raw in _scan(store, Table.STREAMS, queue_id):
        row = _decode_stream(raw)
        yield PassAllowed(queue_id, key[8:].decode(), row.allowed_to_pass, row.all_after)


def _in_streams(chunks: Iterable[Chunk]) -> set[int]:
    """Messages with rows of their own that are, or were, in a stream."""
    return {
        number
        for chunk in chunks
        if chunk.columns.streams is not None
        for number in chunk.with_own_rows()
        if chunk.stream_of(number)
    }


def read_table(store: KeyValueStore, table: Table) -> Iterator[_Row]:
    """For verification: every row as it is stored."""
    return _scan(store, table)


def decode_value(table: Table, value: bytes) -> Any:
    """For verification and repair. Raises `ValueError`."""
    if table is Table.CONFIG:
        return value.decode()
    kind = VALUE_TYPES.get(table)
    return value if kind is None else msgspec.msgpack.decode(value, type=kind)


def find_missing_pages(chunk: Chunk, has_page: Callable[[bytes, int], bool]) -> list[int]:
    """For verification: missing pages of a chunk. `has_page` gets a key and the bytes of all payloads."""
    if chunk.is_inline:
        return []
    sizes = page_sizes(chunk.page_starts(), chunk.columns.sizes)
    return [page for page, size in enumerate(sizes) if not has_page(_page_key(chunk, page), size)]


def own_key(chunk: Chunk, number: int) -> bytes:
    return _key(chunk.queue_id, number)


def payload_range(chunk: Chunk, page: int) -> tuple[Sequence[int], bytes]:
    """For repair: the messages whose payloads (or a piece of one) are in a page, and the key of the page."""
    start, end = [*chunk.page_starts(), chunk.count][page : page + 2]
    return chunk.numbers[min(start, end - 1) : end], _page_key(chunk, page)


def encode_value(value: Any) -> bytes:
    """For repair: the stored form of a value of `VALUE_TYPES`."""
    return _encode(value)


def made_key(*numbers: int) -> bytes:
    """For repair: a key of numbers, or its beginning."""
    return _key(*numbers)


def read_key(key: bytes) -> list[int]:
    """For repair: the numbers that a key begins with."""
    return _numbers_in(key)


def queue_of(key: bytes) -> int:
    """The queue in a key that begins with one."""
    return int.from_bytes(key[:8], "big")


def read_own(store: KeyValueStore, queue_id: int) -> dict[int, OwnState]:
    return {_numbers_in(key)[1]: _decode_own(raw) for key, raw in _scan(store, Table.OWN, queue_id)}


def read_chunks(store: KeyValueStore, queue_id: int) -> list[Chunk]:
    """For laws and verification: hot and cold."""
    cold: list[Chunk] = []
    while some := scan_cold_chunks(
        store, queue_id, cold[-1].first + MAX_CHUNK_MESSAGES if cold else 0, _SCAN_ROWS
    ):
        cold += some
    return [*read_hot_chunks(store, queue_id), *cold]


def read_hot_chunks(store: KeyValueStore, queue_id: int) -> list[Chunk]:
    rows = list(_scan(store, Table.CHUNKS, queue_id))
    chunks = []
    for start in range(0, len(rows), _SCAN_ROWS):
        part = rows[start : start + _SCAN_ROWS]
        states = store.get_many(Table.STATES, [key for key, _ in part])
        for (_, raw), state in zip(part, states, strict=True):
            head = _decode_head(raw)
            chunks.append(Chunk.of(queue_id, head, head.inline, None if state is None else bytearray(state)))
    return chunks


def read_lease_groups(store: KeyValueStore) -> set[int]:
    """For laws and verification: the groups that have rows."""
    return {_decode_lease(raw).terms.group for _, raw in _scan(store, Table.LEASES)}


def _read_states_of(
    store: KeyValueStore, chunks: Mapping[int, Chunk], numbers: Iterable[int]
) -> dict[int, OwnState]:
    """The states of those messages that have rows of their own."""
    found = [(chunks.get(number >> BLOCK_SHIFT), number) for number in sorted(numbers)]
    wanted = [
        (chunk.queue_id, number)
        for chunk, number in found
        if chunk is not None and chunk.state_of(number) == OWN
    ]
    return read_states(store, wanted) if wanted else {}


def read_leases(
    store: KeyValueStore, queue_id: int, chunks: Mapping[int, Chunk], own: Mapping[int, OwnState]
) -> dict[int, GroupLease]:
    """For laws and verification: the lease of each message that a claim holds."""
    rows = [_decode_lease(raw) for _, raw in _scan(store, Table.LEASES, queue_id)]
    return dict(_choose_leases([GroupLease.from_row(row) for row in rows], chunks, own))


def _choose_leases(
    leases: Sequence[GroupLease], chunks: Mapping[int, Chunk], own: Mapping[int, OwnState]
) -> Iterator[tuple[int, GroupLease]]:
    """Several rows of a claim list a member whose lease was extended or started: the latest group counts."""
    seen: set[int] = set()
    for lease in sorted(leases, reverse=True):
        for number in lease.numbers:
            chunk = chunks.get(number >> BLOCK_SHIFT)
            if number in seen or chunk is None:
                continue
            state, row = chunk.state_of(number), own.get(number)
            if state == IMPLIED or (
                state == OWN and row is not None and row.claim_id == lease.terms.claim_id
            ):
                seen.add(number)
                yield number, lease


def _scan(store: KeyValueStore, table: Table, queue_id: int | None = None) -> Iterator[_Row]:
    """All rows of a table, or those of a queue, read in bounded parts."""
    start = b"" if queue_id is None else _key(queue_id)
    end = None if queue_id is None else _key(queue_id + 1)
    while rows := store.scan(table, start, end, limit=_SCAN_ROWS):
        yield from rows
        if len(rows) < _SCAN_ROWS:
            return
        start = rows[-1][0] + b"\0"
