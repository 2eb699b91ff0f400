"""Staged writes: chunks that nobody sees until one record makes all of them messages.

Whatever can be wrong with a message is found when it is staged. What is left to go wrong is checked when it is
published, before anything changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlead.decide.access import rights_on
from fairlead.decide.arguments import check_bool
from fairlead.decide.staging import (
    check_chunk_names,
    check_name,
    ended_record,
    read_staging_ttl,
    read_write,
    view_published,
    view_staged,
)
from fairlead.engine.key_ring import load_key
from fairlead.engine.memory import Queue
from fairlead.engine.room import MESSAGE_BYTES
from fairlead.engine.transaction import StepsTable, Transaction
from fairlead.engine.work.enqueue import check_bounds
from fairlead.engine.work.publish_steps import STEP_CHUNKS, drop_chunks, find_published, take_step
from fairlead.errors import InvalidRequest, LimitReached, StagedChunkMissing, StagedQueueGone
from fairlead.model.checks import CheckedMessage, check_each, check_messages
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
from fairlead.records.chunk import PAGE_BYTES, page_starts
from fairlead.records.facts import PagesStaged, RecordsChanged
from fairlead.records.ids import MAX_CHUNK_MESSAGES
from fairlead.records.staging import StagedPart
from fairlead.request import Caller
from fairlead.store.kv.port import Table
from fairlead.store.rows import chunk_key, part_key, write_key, write_of_published_end
from fairlead.verbs.staging import StagingDiscard, StagingList, StagingPublish, StagingStage

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

_LISTED_PUBLISHED = 1000
_pack = msgspec.msgpack.Encoder().encode


# Staging


def stage(engine: Engine, request: StagingStage, caller: Caller) -> StageResult:
    write, name = read_write(request.token, request.queue), check_name(request.chunk, "chunk")
    ttl_ms = read_staging_ttl(request.ttl)
    if check_bool(request.skip_invalid, "skip_invalid"):
        checked, refused = check_each(request.messages)
    else:
        checked, refused = check_messages(request.messages), []
    deaths = [] if request.dead is None else read_deaths(request.dead, len(request.messages))
    if len(deaths) > 1 and refused:
        left_out = {row for row, _ in refused}
        deaths = [death for row, death in enumerate(deaths) if row not in left_out]
    if not deaths and engine.hooking.is_used:
        checked = engine.hooking.ask_about_new(request.queue, checked)
    parts = _to_parts(checked, deaths)
    size = sum([len(message.payload) + len(message.headers) for message in checked])
    with engine.transaction() as tx:
        queue = tx.queue(request.queue)
        if queue.is_dead_letter_queue:
            wanted = "the queue the messages belong to, not its dead-letter queue"
            raise InvalidRequest("queue", wanted, request.queue)
        if write not in tx.memory.staged.publishing and find_published(tx, write) is None:
            made = StagedChunk(
                write.name,
                name,
                queue.record.queue_id,
                write.queue,
                len(checked),
                size,
                sum(stored_bytes for _, _, stored_bytes in parts),
                len({message.lane for message in checked}),
                tx.now_ms,
                tx.now_ms + ttl_ms,
                bool(deaths),
            )
            _check_room(tx, queue, made, engine.settings.max_staged_bytes)
            _stage(tx, made, parts)
    engine.confirm()
    return StageResult(len(checked), size, [Refusal(row, error.message) for row, error in refused])


def _to_parts(
    messages: list[CheckedMessage], deaths: list[Death]
) -> list[tuple[StagedPart, list[bytes], int]]:
    """Parts with their payloads, and what each takes on disk."""
    parts = []
    for start in range(0, len(messages), MAX_CHUNK_MESSAGES):
        some = messages[start : start + MAX_CHUNK_MESSAGES]
        payloads = [message.payload for message in some]
        sizes = list(map(len, payloads))
        is_inline = sum(sizes) <= PAGE_BYTES
        part = StagedPart(
            [msgspec.structs.replace(message, payload=b"") for message in some],
            sizes,
            payloads if is_inline else None,
            deaths[start : start + MAX_CHUNK_MESSAGES] if len(deaths) > 1 else deaths,
        )
        parts.append((part, payloads, len(_pack(part)) + (0 if is_inline else sum(sizes))))
    return parts


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


def _stage(tx: Transaction, made: StagedChunk, parts: list[tuple[StagedPart, list[bytes], int]]) -> None:
    before = tx.memory.staged.chunks_of(made.write).get(made.chunk)
    if before is not None:
        drop_chunks(tx, [before])
    numbers = []
    for part, payloads, _ in parts:
        number = tx.next_block()
        numbers.append((number, len(payloads)))
        if part.inline is None:
            starts = page_starts(part.sizes)
            ends = [*starts[1:], len(payloads)]
            pages = [payloads[start:end] for start, end in zip(starts, ends, strict=True)]
            tx.add(PagesStaged(made.queue_id, number, pages))
        tx.add(RecordsChanged(Table.STAGED_PARTS, {part_key(made.queue_id, number): part}))
    made = msgspec.structs.replace(made, parts=tuple(numbers))
    tx.add(RecordsChanged(Table.STAGED, {chunk_key(made.write, made.chunk): made}))


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
            record = _decide(tx, write, names)
            tx.add(RecordsChanged(Table.PUBLISHING, {write_key(write): record}))
            result = PublishResult("published", record.count)
            take_step(tx, record)
    while _go_on(engine, write):
        pass
    engine.confirm(synced=True)
    return result


def _decide(tx: Transaction, write: Scoped, names: tuple[str, ...]) -> Publishing:
    """The last moment at which a write can be refused."""
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
    count, size = sum(chunk.count for chunk in listed), sum(chunk.bytes for chunk in listed)
    tx.store.check_room(size + MESSAGE_BYTES * count)
    staged_ms = min((chunk.staged_ms for chunk in known.values()), default=tx.now_ms)
    return Publishing(write.name, names, tx.now_ms, staged_ms, len(names), count, size, write.queue)


def _go_on(engine: Engine, write: Scoped) -> bool:
    """One step; False when the write has none left. Others may take steps of it too."""
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
            if write not in staged.publishing and _sees(tx, caller, write.queue):
                found.append(view_staged(write, [*chunks.values()]))
        for write, record in staged.publishing.items():
            if _sees(tx, caller, write.queue):
                found.append(view_published(ended_record(record)))
    left = _LISTED_PUBLISHED
    while left:
        with engine.transaction() as tx:
            # From the latest on: what others have published only takes longer to pass over.
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
    """Which kinds of messages a staged write has: dead letters (True) and others (False)."""
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
