"""From a staged write to messages: the decision, and the steps that follow from it whatever happens.

What could be in the way of a write (a chunk or a queue that is gone, bounds, lanes, the disk) is looked at
once, before the one record changes that publishes it. From then on it only goes forward: chunk by chunk in
the order given, in bounded commits, each of which makes messages and forgets what they were made of. Whoever
is interrupted leaves the rest to the timer, of this life or the next. A queue deleted meanwhile takes with it
what was still to come, as it takes what had come already.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.broker.core import Core
from fairlead.broker.enqueue import Prepared, Stillborn, check_queue_bounds
from fairlead.broker.moves import Moves
from fairlead.broker.staged_book import Underway
from fairlead.decide.staging import ended_record
from fairlead.engine.room import MESSAGE_BYTES
from fairlead.errors import StagedChunkMissing, StagedQueueGone, StoreCorrupt
from fairlead.model.checks import CheckedMessage
from fairlead.model.facts import ChunksDropped, PublishEnded, PublishesForgotten, PublishSaved
from fairlead.model.limits import PUBLISH_STEP_BYTES, PUBLISH_STEP_MESSAGES, PUBLISHED_KEPT_MS, STEP_MESSAGES
from fairlead.model.names import Scoped
from fairlead.model.staging import ChunkBody, Publishing, PublishResult, StagedChunk, unpack_chunk


def publish(core: Core, write: Scoped, names: tuple[str, ...]) -> PublishResult:
    with core.lock:
        core.check_open()
        done, underway = core.store.published(write), core.staged.publishing.get(write)
        if done is not None:
            result = PublishResult("already", done.count)
        elif underway is not None:
            result = PublishResult("already", underway.record.count)
        else:
            record = _decide(core, write, names)
            core.commit([PublishSaved(record)])
            core.staged.publishing[write] = Underway(record)
            result = PublishResult("published", record.count)
        core.staged.foreground[write] += 1
        commit = core.store.last_commit
    try:
        core.confirm(commit, synced=True)
        # Two who publish the same write make its steps by turns, and both return when the last is made.
        while _step(core, write):
            pass
        core.confirm(synced=True)
    finally:
        with core.lock:
            core.staged.foreground[write] -= 1
            if core.staged.foreground[write] <= 0:
                del core.staged.foreground[write]
            if write in core.staged.publishing:
                core.wake_timer(core.now_ms())
    return result


def _decide(core: Core, write: Scoped, names: tuple[str, ...]) -> Publishing:
    """The last moment at which a write can be refused."""
    known = core.staged.writes.get(write, {})
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise StagedChunkMissing(write.name, write.queue, missing)
    listed = [known[name] for name in names]
    homeless = next((chunk for chunk in listed if chunk.queue_id not in core.by_id), None)
    if homeless is not None:
        raise StagedQueueGone(write.name, write.queue, homeless.chunk)
    _check_fits(core, write, [chunk for chunk in listed if not chunk.dead])
    count, size = sum(chunk.count for chunk in listed), sum(chunk.bytes for chunk in listed)
    core.store.check_room(size + MESSAGE_BYTES * count)
    now_ms = core.now_ms()
    staged_ms = min((chunk.staged_ms for chunk in known.values()), default=now_ms)
    return Publishing(write.name, names, now_ms, staged_ms, len(names), count, size, write.queue)


def _check_fits(core: Core, write: Scoped, chunks: list[StagedChunk]) -> None:
    """The chunks are of one queue: all were staged for the queue that has the write's name now."""
    if not chunks:
        return
    queue = core.by_id[chunks[0].queue_id]
    check_queue_bounds(
        core, queue, sum(chunk.count for chunk in chunks), sum(chunk.bytes for chunk in chunks)
    )
    if not queue.scheduler.has_room_for(sum(chunk.lanes for chunk in chunks)):
        bodies = (
            _unpack(write, chunk.chunk, core.store.staged_body(write, chunk.chunk) or b"") for chunk in chunks
        )
        queue.scheduler.check_lanes({message.lane for body in bodies for message in body.messages})


def _unpack(write: Scoped, name: str, body: bytes) -> ChunkBody:
    try:
        return unpack_chunk(body)
    except msgspec.DecodeError as why:
        raise StoreCorrupt(
            f"staged chunk {name!r} of write {write.name!r} to {write.queue!r}", f"it does not decode ({why})"
        ) from None


def _step(core: Core, write: Scoped) -> bool:
    """Without the lock: read what the next step needs, then make it in one commit. False when all is done."""
    with core.step():
        core.check_open()
        underway = core.staged.publishing.get(write)
        if underway is None:
            return False
        record, chunks = underway.record, core.staged.writes.get(write, {})
        wanted = _next_chunks(record, chunks)
        loaded = underway.loaded
    bodies = [
        (chunk.chunk, loaded.get(chunk.chunk) or core.store.staged_body(write, chunk.chunk))
        for chunk in wanted
    ]
    unpacked = {
        name: _unpack(write, name, body) if isinstance(body, bytes) else body for name, body in bodies
    }
    with core.step():
        core.check_open()
        if core.staged.publishing.get(write) is underway and underway.record is record:
            underway.loaded = {name: body or _unpack(write, name, b"") for name, body in unpacked.items()}
            _advance(core, underway, wanted)
        # Else somebody made this step meanwhile, and the chunks may be gone; or a failed commit had
        # everything read anew.
        return write in core.staged.publishing


def _next_chunks(record: Publishing, chunks: dict[str, StagedChunk]) -> list[StagedChunk]:
    """The first chunks to come, of one kind, that together make a step."""
    wanted: list[StagedChunk] = []
    messages = size = 0
    for name in record.chunks:
        chunk = chunks[name]
        if wanted and chunk.dead != wanted[0].dead:
            break
        wanted.append(chunk)
        messages, size = messages + chunk.count, size + chunk.bytes
        if messages - record.offset >= PUBLISH_STEP_MESSAGES or size >= PUBLISH_STEP_BYTES:
            break
    return wanted


def _advance(core: Core, underway: Underway, wanted: Sequence[StagedChunk]) -> None:
    """One commit: some messages, and the record of what is left."""
    record = underway.record
    write, chunks = record.write, core.staged.writes.get(record.write, {})
    parts, done, offset = _cut(wanted, underway.loaded, record.offset)
    left = record.chunks[done:]
    dropped = [*(record.chunks[:done] if left else chunks)][:STEP_MESSAGES]
    ended = len(dropped) == len(chunks)
    after = msgspec.structs.replace(record, chunks=left, offset=offset)
    # As if all had been enqueued at the moment of the decision: delays, lives and windows are counted from
    # there.
    moves = Moves(core, record.published_ms)
    added = _add(core, moves, wanted, parts)
    if dropped:
        moves.facts.append(ChunksDropped(write, dropped))
    moves.facts.append(PublishEnded(ended_record(record)) if ended else PublishSaved(after))
    moves.commit()
    if added is not None:
        added.announce(core)
    if dropped:
        core.staged.drop(write, dropped)
    if ended:
        del core.staged.publishing[write]
        core.staged.next_forget_ms = min(core.staged.next_forget_ms, record.published_ms + PUBLISHED_KEPT_MS)
        core.wake_timer(core.staged.next_forget_ms)
    else:
        underway.record = after
        underway.loaded = {name: body for name, body in underway.loaded.items() if name in left}


def _cut(
    wanted: Sequence[StagedChunk], loaded: dict[str, ChunkBody], offset: int
) -> tuple[list[tuple[ChunkBody, int, int]], int, int]:
    """What a step takes of each chunk (from, to), how many chunks are done with it, and the offset in the
    first that is not.
    """
    parts: list[tuple[ChunkBody, int, int]] = []
    room, size = PUBLISH_STEP_MESSAGES, 0
    for chunk in wanted:
        body = loaded[chunk.chunk]
        end = min(len(body.messages), offset + room)
        if size + chunk.bytes > PUBLISH_STEP_BYTES:
            end = _end_by_size(body.messages, offset, end, PUBLISH_STEP_BYTES - size)
        parts.append((body, offset, end))
        if end < len(body.messages):
            return parts, len(parts) - 1, end
        room, size, offset = room - (end - offset), size + chunk.bytes, 0
    return parts, len(parts), 0


def _end_by_size(messages: list[CheckedMessage], start: int, end: int, room: int) -> int:
    """The first always fits: a step that takes none would never end."""
    for at in range(start, end):
        room -= len(messages[at].payload) + len(messages[at].headers)
        if room <= 0:
            return at + 1
    return end


def _add(
    core: Core, moves: Moves, wanted: Sequence[StagedChunk], parts: list[tuple[ChunkBody, int, int]]
) -> Prepared | Stillborn | None:
    queue = core.by_id.get(wanted[0].queue_id) if wanted else None
    if queue is None:
        return None
    taken = [message for body, start, end in parts for message in body.messages[start:end]]
    if wanted[0].dead:
        deaths = [body.death(at) for body, start, end in parts for at in range(start, end)]
        stillborn = Stillborn(
            core, queue, taken, [(death.reason, death.error) for death in deaths], moves.now_ms
        )
        if taken:
            moves.facts.append(stillborn.fact)
        return stillborn
    prepared = Prepared(queue.name, taken, bounded=False)
    prepared.add_to(core, moves, moves.places())
    return prepared


def drop_some(core: Core, write: Scoped) -> int:
    names = [*core.staged.writes[write]][:STEP_MESSAGES]
    core.commit([ChunksDropped(write, names)])
    core.staged.drop(write, names)
    return len(names)


# What the timer does


def finish_publishes(core: Core) -> bool:
    """Without the lock: a step of each write whose caller is gone. False when there is none."""
    with core.lock:
        if core.closed or not core.staged.publishing:
            return False
        writes = [write for write in core.staged.publishing if write not in core.staged.foreground]
    for write in writes:
        _step(core, write)
    return bool(writes)


def run_staging_step(core: Core, now_ms: int) -> bool:
    """Writes nobody published in time go; writes published long ago are forgotten."""
    book = core.staged
    if min(book.next_expiry_ms, book.next_forget_ms) > now_ms:
        return False
    late = book.expired(now_ms)
    if late:
        drop_some(core, late[0])
    rows = core.store.published_over(now_ms, STEP_MESSAGES)
    if rows:
        core.commit([PublishesForgotten(rows)])
    book.look_ahead(core.store)
    return bool(late or rows)


def next_staging_ms(core: Core) -> int:
    """0 when a write is waiting for its next step, and nobody but the timer will make it."""
    if any(write not in core.staged.foreground for write in core.staged.publishing):
        return 0
    return min(core.staged.next_expiry_ms, core.staged.next_forget_ms)
