"""Staged writes: chunks that are invisible until one record makes all of them messages.

Everything that can be wrong with a message is found when it is staged. Everything else is checked at
publication, before anything changes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import add
from typing import TYPE_CHECKING, TypeVar

import msgspec

from fairlead.decide.arguments import check_bool
from fairlead.decide.rights import rights_on
from fairlead.decide.staging import (
    OWN_TOKENS,
    check_chunk_names,
    check_name,
    ended_record,
    read_staging_ttl,
    read_write,
    view_published,
    view_staged,
)
from fairlead.engine.key_ring import load_key
from fairlead.engine.queue import Queue
from fairlead.engine.room import MESSAGE_BYTES
from fairlead.engine.transaction import StepsTable, Transaction
from fairlead.engine.work.enqueue import check_bounds, check_lanes, given_columns
from fairlead.engine.work.publish_steps import (
    DEAD_MESSAGES,
    STEP_CHUNKS,
    drop_chunks,
    find_published,
    take_step,
)
from fairlead.errors import (
    FairleadError,
    InvalidRequest,
    LimitReached,
    QueueNotFound,
    StagedChunkMissing,
    StagedQueueGone,
    Unavailable,
)
from fairlead.model.checks import MessageColumns, check_columns, check_each_column
from fairlead.model.limits import MAX_STAGED_CHUNKS, MAX_WRITE_CHUNKS
from fairlead.model.names import Scoped
from fairlead.model.staging import (
    Death,
    Publishing,
    PublishResult,
    Refusal,
    StagedChunk,
    StagedWrite,
    StageResult,
    read_deaths,
)
from fairlead.records.chunk import PAGE_BYTES, PIECE_BYTES, LaneName, cut_pages, page_starts
from fairlead.records.facts import PagesStaged, RecordsChanged
from fairlead.records.staging import StagedPart
from fairlead.request import Caller
from fairlead.store.kv.port import Table
from fairlead.store.rows import chunk_key, part_key, write_key, write_of_published_end
from fairlead.verbs.staging import StagingDiscard, StagingList, StagingPublish, StagingStage

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

T = TypeVar("T")

#: Messages of one part: publishing it takes a few milliseconds, and it becomes one chunk.
PART_MESSAGES = 500
PART_BYTES = 1 << 20
#: How long parts stay after a crash, and how many are dropped in one hold.
_OWN_KEPT_MS = 600_000
_DROPPED_AT_ONCE = 100
_LISTED_PUBLISHED = 1000
_pack = msgspec.msgpack.Encoder().encode


# Staging


def stage(engine: Engine, request: StagingStage, caller: Caller) -> StageResult:
    write, name = read_write(request.token, request.queue), check_name(request.chunk, "chunk")
    ttl_ms = read_staging_ttl(request.ttl)
    if check_bool(request.skip_invalid, "skip_invalid"):
        given, refused = check_each_column(request.messages)
    else:
        given, refused = check_columns(request.messages), []
    deaths = [] if request.dead is None else read_deaths(request.dead, len(request.messages))
    if len(deaths) > 1 and refused:
        left_out = {row for row, _ in refused}
        deaths = [death for row, death in enumerate(deaths) if row not in left_out]
    if not deaths and engine.hooking.is_used:
        given = engine.hooking.ask_about_new(request.queue, given)
    parts = to_parts(given, deaths)
    size = sum([part.columns.total_bytes() for part, _, _ in parts])
    made = StagedChunk(
        write.name,
        name,
        0,
        write.queue,
        given.length,
        size,
        sum(stored_bytes for _, _, stored_bytes in parts),
        len({lane for part, _, _ in parts for lane in part.columns.lanes}),
        0,
        ttl_ms,
        bool(deaths),
    )
    if len(parts) <= 1 and made.bytes <= PART_BYTES:
        with engine.transaction() as tx:
            if (placed := _find_place(tx, made, engine.settings.max_staged_bytes)) is not None:
                save_chunk(tx, placed, parts)
    else:
        _stage_in_steps(engine, made, parts)
    engine.confirm()
    return StageResult(given.length, size, [Refusal(row, error.message) for row, error in refused])


def _find_place(tx: Transaction, made: StagedChunk, max_staged_bytes: int) -> StagedChunk | None:
    """The chunk with its queue and its times, which `made` lacks; None if its write is published already.
    Raises if it may not be staged.
    """
    queue = tx.queue(made.queue)
    if queue.is_dead_letter_queue:
        wanted = "the queue the messages belong to, not its dead-letter queue"
        raise InvalidRequest("queue", wanted, made.queue)
    if made.write in tx.memory.staged.publishing or find_published(tx, made.write) is not None:
        return None
    _check_room(tx, queue, made, max_staged_bytes)
    queue_id, ends_ms = queue.record.queue_id, tx.now_ms + made.expires_ms
    return msgspec.structs.replace(made, queue_id=queue_id, staged_ms=tx.now_ms, expires_ms=ends_ms)


def _stage_in_steps(engine: Engine, made: StagedChunk, parts: list[Part]) -> None:
    """Stage part by part, under a token of the broker's own; then the chunk takes over the parts. Until then
    a chunk with the same name stays.
    """
    most = engine.settings.max_staged_bytes
    with engine.transaction() as tx:
        placed = _find_place(tx, made, most)
    if placed is None:
        return
    own = own_write(made.queue)
    try:
        for at, part in enumerate(parts):
            stage_part(engine, own, placed.queue_id, f"{at:06}", part)
        with engine.transaction() as tx:
            # Their bytes count until they are taken over.
            placed = _find_place(tx, made, most + made.stored_bytes)
            staged = [*tx.memory.staged.chunks_of(own).values()]
            if placed is not None and all(chunk.queue_id == placed.queue_id for chunk in staged):
                drop_before(tx, placed)
                numbers = tuple([number for chunk in staged for number in chunk.parts])
                drop_chunks(tx, staged, {chunk.chunk for chunk in staged})
                save_record(tx, msgspec.structs.replace(placed, parts=numbers))
    finally:
        drop_own(engine, own)


def own_write(queue: str) -> Scoped:
    """A staged write of the broker's own, which is not shown."""
    return Scoped(queue, OWN_TOKENS + secrets.token_hex(8))


def stage_part(engine: Engine, write: Scoped, queue_id: int, name: str, part: Part) -> None:
    """Stage a part as a chunk of a write of the broker's own, in short transactions: one for each piece of a
    large payload.
    """
    staged, payloads, stored_bytes = part
    steps = _steps_of_pages(part)
    with engine.transaction() as tx:
        if queue_id not in tx.memory.by_id:
            raise QueueNotFound(write.queue)
        tx.store.check_room(stored_bytes)
        made = StagedChunk(
            write.name,
            name,
            queue_id,
            write.queue,
            len(payloads),
            staged.columns.total_bytes(),
            stored_bytes,
            0,
            tx.now_ms,
            tx.now_ms + _OWN_KEPT_MS,
            bool(staged.deaths),
        )
        number = _save_part(tx, queue_id, staged, next(steps))
        made = msgspec.structs.replace(made, parts=((number, len(payloads)),))
        save_record(tx, made)
    for first_page, pages in steps:
        with engine.transaction() as tx:
            if tx.memory.staged.chunks_of(write).get(name) != made or queue_id not in tx.memory.by_id:
                raise Unavailable(
                    f"queue {write.queue!r} was deleted, or a large message took too long to store"
                )
            tx.add(PagesStaged(queue_id, number, pages, first_page))


def _steps_of_pages(part: Part) -> Iterator[tuple[int, Pages]]:
    """The pages of a part in runs of about PIECE_BYTES, each with the number of its first page. There is at least one."""
    staged, payloads, _ = part
    if staged.inline is not None:
        yield 0, []
        return
    run: list[Sequence[bytes]] = []
    first = size = 0
    for page in cut_pages(payloads, page_starts(staged.sizes)):
        page_bytes = sum(map(len, page))
        if run and size + page_bytes > PIECE_BYTES + PAGE_BYTES:
            yield first, run
            first, run, size = first + len(run), [], 0
        run.append(page)
        size += page_bytes
    yield first, run


def drop_own(engine: Engine, write: Scoped) -> None:
    """Drop parts that were not taken over. If this fails, they expire."""
    while True:
        with suppress(FairleadError), engine.transaction() as tx:
            chunks = [*tx.memory.staged.chunks_of(write).values()][:_DROPPED_AT_ONCE]
            if chunks and write not in tx.memory.staged.publishing:
                drop_chunks(tx, chunks)
                continue
        return


#: A part with its payloads, and its size on disk.
Part = tuple[StagedPart, Sequence[bytes], int]
Pages = Sequence[Sequence[bytes]]


def to_parts(given: MessageColumns, deaths: list[Death]) -> list[Part]:
    parts = []
    for start, end in _cuts(given, max(1, PART_MESSAGES // DEAD_MESSAGES) if deaths else PART_MESSAGES):
        some = given if end - start == given.length else given.rows(start, end)
        columns = given_columns(some)
        body_bytes = sum(columns.sizes)
        is_inline = body_bytes <= PAGE_BYTES
        part = StagedPart(
            columns,
            _listed(some.delays),
            _listed(some.dedup_keys),
            _listed(some.ttls),
            some.payloads if is_inline else None,
            deaths[start:end] if len(deaths) > 1 else deaths,
        )
        parts.append((part, some.payloads, len(_pack(part)) + (0 if is_inline else body_bytes)))
    return parts


def _cuts(given: MessageColumns, most: int) -> list[tuple[int, int]]:
    """Where parts begin and end. A part ends with the message that reaches a bound."""
    cuts: list[tuple[int, int]] = []
    sizes = map(len, given.payloads)
    if given.headers is not None:
        sizes = map(add, sizes, map(len, given.headers))
    start = used = 0
    for end, size in enumerate(sizes, 1):
        used += size
        if end - start >= most or used >= PART_BYTES or end == given.length:
            cuts.append((start, end))
            start, used = end, 0
    return cuts


def _listed(column: Sequence[T] | None) -> list[T] | None:
    return None if column is None else [*column]


def _check_room(tx: Transaction, queue: Queue, made: StagedChunk, max_staged_bytes: int) -> None:
    staged = tx.memory.staged
    chunks = staged.chunks_of(made.write)
    before = chunks.get(made.chunk)
    if before is None:
        if len(chunks) >= MAX_WRITE_CHUNKS:
            raise LimitReached("chunks in one staged write", MAX_WRITE_CHUNKS)
        if staged.chunk_count >= MAX_STAGED_CHUNKS:
            raise LimitReached("staged chunks", MAX_STAGED_CHUNKS)
    replaced = 0 if before is None else before.stored_bytes
    if staged.stored_bytes - replaced + made.stored_bytes > max_staged_bytes:
        raise LimitReached("staged bytes", max_staged_bytes)
    if not made.dead:
        check_bounds(tx, queue, made.count, made.bytes)
    tx.store.check_room(made.stored_bytes)


def drop_before(tx: Transaction, made: StagedChunk) -> None:
    """Drop the earlier chunk, which a chunk that is staged again replaces."""
    before = tx.memory.staged.chunks_of(made.write).get(made.chunk)
    if before is not None:
        drop_chunks(tx, [before])


def save_record(tx: Transaction, made: StagedChunk) -> None:
    tx.add(RecordsChanged(Table.STAGED, {chunk_key(made.write, made.chunk): made}))


def save_chunk(tx: Transaction, made: StagedChunk, parts: list[Part]) -> None:
    drop_before(tx, made)
    numbers = []
    for part, payloads, _ in parts:
        pages = [] if part.inline is not None else [*cut_pages(payloads, page_starts(part.sizes))]
        numbers.append((_save_part(tx, made.queue_id, part, (0, pages)), len(payloads)))
    save_record(tx, msgspec.structs.replace(made, parts=tuple(numbers)))


def _save_part(tx: Transaction, queue_id: int, part: StagedPart, pages: tuple[int, Pages]) -> int:
    """Store the part with its first pages, or all of them; returns its number."""
    number = tx.next_block()
    if part.inline is None:
        tx.add(PagesStaged(queue_id, number, pages[1]))
    tx.add(RecordsChanged(Table.STAGED_PARTS, {part_key(queue_id, number): part}))
    return number


# Publishing


def publish(engine: Engine, request: StagingPublish, caller: Caller) -> PublishResult:
    write, names = read_write(request.token, request.queue), check_chunk_names(request.chunks)
    with engine.transaction() as tx:
        done, record = find_published(tx, write), tx.memory.staged.publishing.get(write)
        if done is not None:
            result = PublishResult("already", done.count)
        elif record is not None:
            result = PublishResult("already", record.count)
        else:
            record = decide(tx, write, names)
            tx.add(RecordsChanged(Table.PUBLISHING, {write_key(write): record}))
            result = PublishResult("published", record.count)
            take_step(tx, record)
    while _go_on(engine, write):
        pass
    engine.confirm(synced=True)
    return result


def decide(tx: Transaction, write: Scoped, names: tuple[str, ...]) -> Publishing:
    """Decide to publish. This is the last moment at which a write can be refused."""
    known = tx.memory.staged.chunks_of(write)
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise StagedChunkMissing(write.name, write.queue, missing)
    listed = [known[name] for name in names]
    homeless = next((chunk for chunk in listed if chunk.queue_id not in tx.memory.by_id), None)
    if homeless is not None:
        raise StagedQueueGone(write.name, write.queue, homeless.chunk)
    living = [chunk for chunk in listed if not chunk.dead]
    if living:
        queue = tx.memory.by_id[living[0].queue_id]
        check_bounds(tx, queue, sum(chunk.count for chunk in living), sum(chunk.bytes for chunk in living))
        check_lanes(tx, queue, sum(chunk.lanes for chunk in living), lambda: _lanes_of(tx, living))
    count, size = sum(chunk.count for chunk in listed), sum(chunk.bytes for chunk in listed)
    tx.store.check_room(size + MESSAGE_BYTES * count)
    staged_ms = min((chunk.staged_ms for chunk in known.values()), default=tx.now_ms)
    return Publishing(write.name, names, tx.now_ms, staged_ms, len(names), count, size, write.queue)


def _lanes_of(tx: Transaction, chunks: list[StagedChunk]) -> set[LaneName]:
    keys = [part_key(chunk.queue_id, number) for chunk in chunks for number, _ in chunk.parts]
    parts: list[StagedPart] = tx.records(Table.STAGED_PARTS, keys)
    return {lane for part in parts for lane in part.columns.lanes}


def _go_on(engine: Engine, write: Scoped) -> bool:
    """One step; False if the write has none left. Others may do steps of it too."""
    with engine.transaction() as tx:
        record = tx.memory.staged.publishing.get(write)
        if record is not None:
            take_step(tx, record)
    return record is not None


def discard(engine: Engine, request: StagingDiscard, caller: Caller) -> int:
    write, dropped = read_write(request.token, request.queue), 0
    while True:
        with engine.transaction() as tx:
            staged = tx.memory.staged
            chunks = [] if write in staged.publishing else [*staged.chunks_of(write).values()]
            drop_chunks(tx, chunks[:STEP_CHUNKS])
        dropped += len(chunks[:STEP_CHUNKS])
        if len(chunks) <= STEP_CHUNKS:
            break
    engine.confirm()
    return dropped


def list_writes(engine: Engine, request: StagingList, caller: Caller) -> list[StagedWrite]:
    found: list[StagedWrite] = []
    end: bytes | None = None
    with engine.transaction() as tx:
        staged = tx.memory.staged
        for write, chunks in staged.writes.items():
            if write.name.startswith(OWN_TOKENS):
                continue
            if write not in staged.publishing and _sees(tx, caller, write.queue):
                found.append(view_staged(write, [*chunks.values()]))
        for write, record in staged.publishing.items():
            if not write.name.startswith(OWN_TOKENS) and _sees(tx, caller, write.queue):
                found.append(view_published(ended_record(record)))
    left = _LISTED_PUBLISHED
    while left:
        with engine.transaction() as tx:
            # From the latest one on: passing over those of other callers only takes longer.
            rows = tx.scan_records(Table.PUBLISHED_END, end=end, limit=_LISTED_PUBLISHED, reverse=True)
            records = tx.records(Table.PUBLISHED, [write_of_published_end(key) for key, _ in rows])
            seen = [record for record in records if record is not None and _sees(tx, caller, record.queue)]
        found += map(view_published, seen[:left])
        left -= len(seen[:left])
        if len(rows) < _LISTED_PUBLISHED:
            break
        end = rows[-1][0]
    return sorted(found, key=lambda write: (write.staged_at, write.queue, write.token))


def _sees(tx: Transaction, caller: Caller, queue: str) -> bool:
    """Whether the caller has any right on the queue."""
    return caller.key_id is None or bool(rights_on(load_key(tx.memory, caller.key_id).grants, queue))


def kinds_of(engine: Engine, token: str, queue: str) -> set[bool]:
    """The kinds of messages in a staged write: dead letters (True) and others (False)."""
    write = read_write(token, queue)
    with engine.transaction() as tx:
        staged = tx.memory.staged
        if write in staged.publishing:
            return set()
        return {chunk.dead for chunk in staged.chunks_of(write).values()}


WORK_IN_STEPS: StepsTable = {
    StagingStage: stage,
    StagingPublish: publish,
    StagingDiscard: discard,
    StagingList: list_writes,
}
