"""From a staged write to messages: steps that follow from the decision to publish, whatever happens.

A step turns some parts into chunks of messages and deletes the parts, in one transaction; payloads stay in
the pages where they were staged. The timer continues an interrupted call, in this process or after a crash. A
queue that is deleted meanwhile takes the remaining parts with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from fairlead.decide.staging import OWN_TOKENS, ended_record
from fairlead.engine import moves
from fairlead.engine.queue import Queue
from fairlead.engine.transaction import Transaction
from fairlead.engine.work.enqueue import published_columns, to_columns
from fairlead.model.checks import MessageColumns
from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.model.names import Scoped
from fairlead.model.staging import Published, Publishing, StagedChunk
from fairlead.records.chunk import GONE, IMPLIED, OWN, Chunk, Head
from fairlead.records.facts import ChunkEnqueued, KeysRemembered, PagesStaged, RecordsChanged
from fairlead.records.ids import id_of, shown_ids
from fairlead.records.staging import StagedPart
from fairlead.records.state import DedupRow, OwnState
from fairlead.store.kv.port import Table
from fairlead.store.rows import (
    chunk_key,
    end_of_published,
    part_key,
    published_end_key,
    write_key,
    write_of_published_end,
)

T = TypeVar("T")

#: Messages, and parts, of one step. There is always at least one part, of at most PART_MESSAGES messages.
STEP_MESSAGES = 500
#: The weight of a dead letter, which begins with a row of its own.
DEAD_MESSAGES = 5
STEP_PARTS = 100
#: Bytes of one step. Small parts contain their payloads, which are written again.
STEP_BYTES = 1 << 20
#: Chunks, or remembered writes, that one step deletes.
STEP_CHUNKS = 500


class _Next(NamedTuple):
    """The parts of a step, with their chunks; the number of chunks that end with them, and the number of
    messages of the first chunk that does not.
    """

    parts: list[tuple[StagedChunk, int]]
    done: int
    offset: int


def take_step(tx: Transaction, record: Publishing, told: list[str] | None = None) -> None:
    """One bounded step of a decided write. `told` receives the ids of its messages, including duplicates."""
    chunks = tx.memory.staged.chunks_of(record.write)
    step = _next_parts(record, chunks)
    keys = [part_key(chunk.queue_id, number) for chunk, number in step.parts]
    parts: list[StagedPart] = tx.records(Table.STAGED_PARTS, keys)
    for (chunk, number), part in zip(step.parts, parts, strict=True):
        queue = tx.memory.by_id.get(chunk.queue_id)
        if queue is None or not _publish(tx, queue, number, part, record.published_ms, told):
            tx.add(PagesStaged(chunk.queue_id, number, None))
    if keys:
        tx.add(RecordsChanged(Table.STAGED_PARTS, dict.fromkeys(keys)))
    left = record.chunks[step.done :]
    published = record.chunks[: step.done]
    # After the last chunk of the write, the chunks that it does not name are dropped.
    names = published if left else (*published, *[name for name in chunks if name not in published])
    drop_chunks(tx, [chunks[name] for name in names[: 2 * STEP_CHUNKS]], set(published))
    if left or tx.memory.staged.chunks_of(record.write):
        _save(tx, msgspec.structs.replace(record, chunks=left, offset=step.offset))
    else:
        _end(tx, record)


def _next_parts(record: Publishing, chunks: dict[str, StagedChunk]) -> _Next:
    found: list[tuple[StagedChunk, int]] = []
    messages, size, skip = 0, 0, record.offset
    for done, name in enumerate(record.chunks):
        chunk, offset = chunks[name], 0
        if done >= STEP_CHUNKS:
            return _Next(found, done, 0)
        for number, count in chunk.parts:
            if offset >= skip:
                messages += count * DEAD_MESSAGES if chunk.dead else count
                size += chunk.bytes * count // chunk.count
                if found and (messages > STEP_MESSAGES or size > STEP_BYTES or len(found) >= STEP_PARTS):
                    return _Next(found, done, offset)
                found.append((chunk, number))
            offset += count
        skip = 0
    return _Next(found, len(record.chunks), 0)


def _save(tx: Transaction, record: Publishing) -> None:
    tx.add(RecordsChanged(Table.PUBLISHING, {write_key(record.write): record}))


def _end(tx: Transaction, record: Publishing) -> None:
    key, done = write_key(record.write), ended_record(record)
    tx.add(RecordsChanged(Table.PUBLISHING, {key: None}))
    if record.token.startswith(OWN_TOKENS):
        # It will not be published again.
        return
    tx.add(RecordsChanged(Table.PUBLISHED, {key: done}))
    tx.add(RecordsChanged(Table.PUBLISHED_END, {published_end_key(done.until_ms, record.write): True}))
    tx.memory.staged.look_by(done.until_ms)


def find_published(tx: Transaction, write: Scoped) -> Published | None:
    found: Published | None = tx.record(Table.PUBLISHED, write_key(write))
    return found


def drop_chunks(
    tx: Transaction, chunks: Sequence[StagedChunk], published: set[str] | frozenset[str] = frozenset()
) -> None:
    """Delete staged chunks; with their messages, unless these were published."""
    if not chunks:
        return
    lost = [
        (chunk.queue_id, number)
        for chunk in chunks
        if chunk.chunk not in published
        for number, _ in chunk.parts
    ]
    if lost:
        tx.add(RecordsChanged(Table.STAGED_PARTS, {part_key(*where): None for where in lost}))
    for queue_id, number in lost:
        tx.add(PagesStaged(queue_id, number, None))
    tx.add(RecordsChanged(Table.STAGED, {chunk_key(chunk.write, chunk.chunk): None for chunk in chunks}))


# A part becomes a chunk of messages


def _publish(
    tx: Transaction, queue: Queue, number: int, part: StagedPart, at_ms: int, told: list[str] | None
) -> bool:
    """Publish as if all had been enqueued at the moment of the decision: delays, lives and windows count from
    then. Returns whether the pages of the part are in use.
    """
    if part.deaths:
        return _publish_dead(tx, queue, number, part, at_ms, told)
    twins, remembered = dict[str, bytes](), dict[str, int]()
    is_new: Sequence[bool] = [True] * part.count
    if part.dedup_keys is None:
        columns = published_columns(tx, queue, part, at_ms)
    else:
        twins, is_new, remembered = _find_new(tx, queue, part.dedup_keys, at_ms)
        if not any(is_new):
            if told is not None:
                told += [show_id(twins[key]) for key in part.dedup_keys]
            return False
        given = part.given() if all(is_new) else _without_duplicates(part.given(), is_new)
        columns = to_columns(queue, given, at_ms, sizes=part.sizes)
    states, delays = _states(part.delays, is_new), part.delays
    head = Head(tx.next_block(), tx.next_prefix(), at_ms, columns, part.inline, number)
    chunk = Chunk.of(queue.record.queue_id, head, part.inline, states)
    waiting = {
        one: OwnState(chunk.queue_id, due_ms=at_ms + (0 if delays is None else delays[one - chunk.first]))
        for one in chunk.with_own_rows()
    }
    tx.add(ChunkEnqueued(chunk, waiting, duplicates=part.count - sum(is_new)))
    if told is not None:
        shown = shown_ids(chunk.prefix, chunk.numbers)
        known = {key: show_id(raw_id) for key, raw_id in twins.items()}
        known.update((key, shown[at]) for key, at in remembered.items())
        keys = part.dedup_keys or [""] * part.count
        told += [known[key] if key else shown[at] for at, key in enumerate(keys)]
    if remembered:
        window_ms = queue.record.config.dedup_window_ms
        until_ms = at_ms + window_ms if window_ms else 0
        rows = {
            key: DedupRow(id_of(chunk.prefix, chunk.first + at), until_ms) for key, at in remembered.items()
        }
        tx.add(KeysRemembered(queue.record.queue_id, rows))
    return not chunk.is_inline


def _states(delays: Sequence[int] | None, is_new: Sequence[bool]) -> bytearray | None:
    """The states of the messages; None if all are new and ready."""
    if delays is None and all(is_new):
        return None
    states = (
        bytearray(len(is_new)) if delays is None else bytearray([OWN if one else IMPLIED for one in delays])
    )
    for at, new in enumerate(is_new):
        if not new:
            states[at] = GONE
    return states


def _find_new(
    tx: Transaction, queue: Queue, dedup_keys: Sequence[str], at_ms: int
) -> tuple[dict[str, bytes], list[bool], dict[str, int]]:
    """The ids of known dedup keys; which messages are not duplicates; and the first index of each new key."""
    keys = list(dict.fromkeys(filter(None, dedup_keys)))
    rows = tx.dedup_rows(queue.record.queue_id, keys) if keys else {}
    known = {key: row.raw_id for key, row in rows.items() if row.holds(at_ms)}
    first: dict[str, int] = {}
    is_new = []
    for at, key in enumerate(dedup_keys):
        is_new.append(not key or (key not in known and key not in first))
        if key and is_new[-1]:
            first[key] = at
    return known, is_new, first


def _without_duplicates(given: MessageColumns, is_new: Sequence[bool]) -> MessageColumns:
    """The messages, where a duplicate keeps only its index, because of the pages: it opens no lane and no
    stream.
    """

    def blank(column: Sequence[T] | None, value: T) -> list[T] | None:
        if column is None:
            return None
        return [one if new else value for one, new in zip(column, is_new, strict=True)]

    first, throttle_keys = is_new.index(True), given.throttle_keys
    return MessageColumns(
        given.payloads,
        blank(given.keys, given.keys[first]) or (),
        blank(given.weights, 1) or (),
        blank(given.headers, b""),
        None if throttle_keys is None else blank(throttle_keys, throttle_keys[first]),
        blank(given.streams, ""),
        blank(given.delays, 0),
        blank(given.dedup_keys, ""),
        blank(given.ttls or [-1] * given.length, 0),
    )


def _publish_dead(
    tx: Transaction, queue: Queue, number: int, part: StagedPart, at_ms: int, told: list[str] | None
) -> bool:
    given = part.given()._replace(delays=None, dedup_keys=None, ttls=[0] * part.count)
    columns = to_columns(queue, given, at_ms, sizes=part.sizes, joins_streams=False)
    head = Head(tx.next_block(), tx.next_prefix(), at_ms, columns, part.inline, number)
    chunk = Chunk.of(queue.record.queue_id, head, part.inline, bytearray([OWN]) * part.count)
    dead = {}
    for at, one in enumerate(chunk.numbers):
        death = part.death(at)
        dead[one] = moves.quarantine(tx, one, queue, death.error, FailureReason(death.reason))
    tx.add(ChunkEnqueued(chunk, dead))
    if told is not None:
        told += shown_ids(chunk.prefix, chunk.numbers)
    return not chunk.is_inline


# The timer


def run_staging_due(tx: Transaction) -> bool:
    """Do steps of decided writes; then delete writes that were not published in time, and forget writes that
    were published long ago.
    """
    staged = tx.memory.staged
    if staged.next_look_ms is None or staged.next_look_ms > tx.now_ms:
        return False
    record = staged.left_alone()
    if record is not None:
        take_step(tx, record)
        return True
    over = staged.over(tx.now_ms)
    if over:
        drop_chunks(tx, [*staged.chunks_of(over[0]).values()][:STEP_CHUNKS])
        return True
    rows = tx.scan_records(Table.PUBLISHED_END, limit=STEP_CHUNKS + 1)
    ended = [key for key, _ in rows if end_of_published(key) <= tx.now_ms][:STEP_CHUNKS]
    if ended:
        tx.add(RecordsChanged(Table.PUBLISHED_END, dict.fromkeys(ended)))
        tx.add(RecordsChanged(Table.PUBLISHED, {write_of_published_end(key): None for key in ended}))
    left = rows[len(ended) :]
    staged.looked(end_of_published(left[0][0]) if left else None)
    return bool(ended)
