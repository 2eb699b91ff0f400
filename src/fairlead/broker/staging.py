"""Staged writes: chunks that nobody sees, and one record whose change makes all of them messages, once.

Whatever can be wrong with a message is found when it is staged, and whatever can be in the way of a write when it is
published, before anything changes. From that moment on it only goes forward: chunk by chunk in the order given, in bounded
commits, each of which makes messages and forgets what they were made of. A crash in between leaves the rest to the
timer of the next life, and so does a disk that is full.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.broker.core import Core
from fairlead.broker.enqueue import Prepared, ask_hook, check_queue_bounds
from fairlead.broker.moves import Moves
from fairlead.broker.queue_state import QueueState
from fairlead.broker.requests import check_bool
from fairlead.broker.staged_book import Underway
from fairlead.errors import InvalidRequest, LimitReached, StagedChunkMissing, StagedQueueGone, StoreCorrupt
from fairlead.model.checks import CheckedMessage, check_each, check_messages, check_text
from fairlead.model.durations import Duration, to_ms
from fairlead.model.facts import ChunksDropped, ChunkStaged, PublishEnded, PublishesForgotten, PublishSaved
from fairlead.model.limits import (
    MAX_STAGED_CHUNKS,
    MAX_STAGING_NAME_BYTES,
    MAX_WRITE_CHUNKS,
    PUBLISH_STEP_BYTES,
    PUBLISH_STEP_MESSAGES,
    PUBLISHED_KEPT_MS,
    STEP_MESSAGES,
)
from fairlead.model.message import NewMessage
from fairlead.model.staging import (
    Published,
    Publishing,
    PublishResult,
    Refusal,
    StagedChunk,
    StagedWrite,
    StageResult,
    pack_chunk,
    unpack_chunk,
)

_LISTED_PUBLISHED = 1000


class Staging:
    """`broker.staging`. A token names a write; whoever has it may stage, publish and discard."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def stage(
        self, token: str, chunk: str, queue: str, messages: Sequence[NewMessage], *, ttl: Duration = "1d", skip_invalid: bool = False
    ) -> StageResult:
        """Keep messages that nobody sees until `publish`; the same chunk again takes the place of the first.

        A write that is never published goes when `ttl` has passed since its last chunk. With `skip_invalid` bad messages
        are left out and named in `refused`; else one of them refuses the chunk. The queue's hook is asked now, not later.
        What is staged for a token that is published already is checked, and not kept.
        """
        core, token, chunk = self._core, check_name(token, "token"), check_name(chunk, "chunk")
        ttl_ms = to_ms(ttl, "ttl")
        if not ttl_ms:
            raise InvalidRequest("ttl", "longer than nothing", ttl)
        refused: list[Refusal] = []
        if check_bool(skip_invalid, "skip_invalid"):
            checked, wrong = check_each(messages)
            refused = [Refusal(row, error.message) for row, error in wrong]
        else:
            checked = check_messages(messages)
        checked = ask_hook(core, queue, checked)
        body = pack_chunk(checked)
        size = sum([len(message.payload) + len(message.headers) for message in checked])
        lanes = len({message.lane for message in checked})
        with core.lock:
            state = core.queue(queue)
            if state.is_dead_letter_queue:
                raise InvalidRequest("queue", "no dead-letter queue", queue)
            now_ms = core.clock.now_ms()
            if token not in core.staged.publishing and core.store.published(token) is None:
                made = StagedChunk(token, chunk, state.queue_id, queue, len(checked), size, len(body), lanes, now_ms, now_ms + ttl_ms)
                _check_room_to_stage(core, state, made)
                core.commit([ChunkStaged(made, body)])
                core.staged.add(made)
                core.wake_timer(made.expires_ms)
            commit = core.store.last_commit
        core.confirm(commit)
        return StageResult(len(checked), size, refused)

    def publish(self, token: str, chunks: Sequence[str]) -> PublishResult:
        """Make messages of these chunks, in this order, all of them or none; the write's other chunks are dropped.

        Returns when all are there, synced whatever the durability is. The same token again within seven days does nothing,
        and says `already`. Once begun it cannot fail: should this call be cut short, the rest follows by itself.
        """
        core, token = self._core, check_name(token, "token")
        names = _check_chunk_names(chunks)
        with core.lock:
            core.check_open()
            done, underway = core.store.published(token), core.staged.publishing.get(token)
            if done is not None:
                result = PublishResult("already", done.count)
            elif underway is not None:
                result = PublishResult("already", underway.record.count)
            else:
                record = _decide(core, token, names)
                core.commit([PublishSaved(record)])
                core.staged.publishing[token] = Underway(record)
                result = PublishResult("published", record.count)
            core.staged.foreground[token] += 1
            commit = core.store.last_commit
        try:
            core.confirm(commit, synced=True)
            while _publish_step(core, token):
                pass
            core.confirm(synced=True)
        finally:
            with core.lock:
                core.staged.foreground[token] -= 1
                if core.staged.foreground[token] <= 0:
                    del core.staged.foreground[token]
        return result

    def discard(self, token: str) -> int:
        """Drop a write that is not published. Returns how many chunks it had."""
        core, token = self._core, check_name(token, "token")
        dropped = 0
        with core.lock:
            core.check_open()
            if token not in core.staged.publishing:
                while token in core.staged.writes:
                    dropped += _drop_some(core, token)
            commit = core.store.last_commit
        core.confirm(commit)
        return dropped

    def list(self) -> list[StagedWrite]:
        """Writes in the order of their first chunks: those staged, and the thousand last published that are remembered."""
        core = self._core
        with core.lock:
            core.check_open()
            book = core.staged
            found = [_view_staged(token, [*chunks.values()], book.expires_ms(token)) for token, chunks in book.writes.items()
                     if token not in book.publishing]
            found += [_view_published(_ended(underway.record)) for underway in book.publishing.values()]
            found += [_view_published(record) for record in core.store.last_published(_LISTED_PUBLISHED)]
        return sorted(found, key=lambda write: (write.staged_at, write.token))


def check_name(value: object, field: str) -> str:
    return check_text(value, field, MAX_STAGING_NAME_BYTES)


def _check_chunk_names(chunks: object) -> tuple[str, ...]:
    if isinstance(chunks, (str, bytes)) or not isinstance(chunks, Sequence):
        raise InvalidRequest("chunks", "a list of names", chunks)
    if len(chunks) > MAX_WRITE_CHUNKS:
        raise InvalidRequest("chunks", f"at most {MAX_WRITE_CHUNKS}", f"{len(chunks)} chunks")
    names = tuple([check_name(chunk, "chunks") for chunk in chunks])
    if len(set(names)) < len(names):
        raise InvalidRequest("chunks", "each name once", next(name for name in names if names.count(name) > 1))
    return names


def _check_room_to_stage(core: Core, queue: QueueState, made: StagedChunk) -> None:
    book = core.staged
    chunks = book.writes.get(made.token, {})
    before = chunks.get(made.chunk)
    if before is None:
        if len(chunks) >= MAX_WRITE_CHUNKS:
            raise LimitReached("chunks in one staged write", MAX_WRITE_CHUNKS)
        if book.chunk_count >= MAX_STAGED_CHUNKS:
            raise LimitReached("staged chunks", MAX_STAGED_CHUNKS)
    limit = core.settings.max_staged_bytes
    if book.stored_bytes - (before.stored_bytes if before else 0) + made.stored_bytes > limit:
        raise LimitReached("staged bytes", limit)
    check_queue_bounds(core, queue, made.count, made.bytes)
    core.store.check_room(made.stored_bytes)


def _decide(core: Core, token: str, names: tuple[str, ...]) -> Publishing:
    """The last moment at which a write can be refused: everything that could be in its way is looked at here."""
    known = core.staged.writes.get(token, {})
    totals: dict[int, list[int]] = {}
    for name in names:
        chunk = known.get(name)
        if chunk is None:
            raise StagedChunkMissing(token, name)
        if chunk.queue_id not in core.by_id:
            raise StagedQueueGone(token, name, chunk.queue)
        total = totals.setdefault(chunk.queue_id, [0, 0, 0])
        for at, more in enumerate((chunk.count, chunk.bytes, chunk.lanes)):
            total[at] += more
    for queue_id, (count, size, lanes) in totals.items():
        queue = core.by_id[queue_id]
        check_queue_bounds(core, queue, count, size)
        if not queue.scheduler.has_room_for(lanes):
            mine = [name for name in names if known[name].queue_id == queue_id]
            queue.scheduler.check_lanes({message.lane for name in mine for message in _read_chunk(core, token, name)})
    listed = [known[name] for name in names]
    size = sum(chunk.bytes for chunk in listed)
    core.store.check_room(size)
    now_ms = core.clock.now_ms()
    staged_ms = min((chunk.staged_ms for chunk in known.values()), default=now_ms)
    queues = tuple(sorted({chunk.queue for chunk in listed}))
    return Publishing(token, names, now_ms, staged_ms, len(names), sum(chunk.count for chunk in listed), size, queues)


def _read_chunk(core: Core, token: str, name: str) -> list[CheckedMessage]:
    body = core.store.staged_body(token, name)
    try:
        return unpack_chunk(b"" if body is None else body)
    except msgspec.DecodeError as why:
        raise StoreCorrupt(f"staged chunk {name!r} of {token!r}", f"it does not decode ({why})") from None


def _publish_step(core: Core, token: str) -> bool:
    """Without the lock: read what the next step needs, then make it in one commit. False when there is nothing left to do."""
    with core.lock:
        core.check_open()
        underway = core.staged.publishing.get(token)
        if underway is None:
            return False
        record, chunks = underway.record, core.staged.writes.get(token, {})
        wanted = _next_chunks(record, chunks)
    loaded = {name: underway.loaded.get(name) or _read_chunk(core, token, name) for name in wanted}
    with core.lock:
        core.check_open()
        if core.staged.publishing.get(token) is not underway or underway.record is not record:
            # Somebody else made this step, or a failed commit had everything read anew.
            return True
        underway.loaded = loaded
        _advance(core, underway, [(chunks[name], loaded[name]) for name in wanted])
        return token in core.staged.publishing


def _next_chunks(record: Publishing, chunks: dict[str, StagedChunk]) -> list[str]:
    """The first chunks to come, of one queue, that together make a step."""
    wanted: list[str] = []
    messages = size = 0
    for name in record.chunks:
        chunk = chunks[name]
        if wanted and (messages >= PUBLISH_STEP_MESSAGES or size >= PUBLISH_STEP_BYTES or chunk.queue_id != chunks[wanted[0]].queue_id):
            break
        messages += chunk.count - (0 if wanted else record.offset)
        wanted.append(name)
        size += chunk.bytes
    return wanted


def _advance(core: Core, underway: Underway, parts: list[tuple[StagedChunk, list[CheckedMessage]]]) -> None:
    """One commit: some messages, and the record of what is left."""
    record = underway.record
    token, offset = record.token, record.offset
    taken: list[CheckedMessage] = []
    done: list[str] = []
    room, size = PUBLISH_STEP_MESSAGES, 0
    for chunk, messages in parts:
        start = 0 if done else offset
        end = min(len(messages), start + room)
        if size + chunk.bytes > PUBLISH_STEP_BYTES:
            end = start
            while end < len(messages) and end - start < room and size < PUBLISH_STEP_BYTES:
                size += len(messages[end].payload) + len(messages[end].headers)
                end += 1
        else:
            size += chunk.bytes
        taken += messages[start:end]
        room -= end - start
        if end < len(messages):
            offset = end
            break
        done.append(chunk.chunk)
        offset = 0
    # As if all had been enqueued at the moment of the decision: delays, lives and windows are counted from there.
    moves = Moves(core, record.published_ms)
    queue = core.by_id.get(parts[0][0].queue_id) if parts else None
    prepared = None if queue is None or not taken else Prepared(queue.name, taken, bounded=False)
    if prepared is not None:
        prepared.add_to(core, moves, moves.places())
    left = record.chunks[len(done) :]
    dropped = done if left else [*core.staged.writes.get(token, {})][:STEP_MESSAGES]
    if dropped:
        moves.facts.append(ChunksDropped(token, dropped))
    after = msgspec.structs.replace(record, chunks=left, offset=offset)
    ended = len(dropped) == len(core.staged.writes.get(token, {}))
    moves.facts.append(PublishEnded(_ended(record)) if ended else PublishSaved(after))
    moves.commit()
    if prepared is not None:
        prepared.announce(core)
    if dropped:
        core.staged.drop(token, dropped)
    if ended:
        del core.staged.publishing[token]
        core.staged.next_forget_ms = min(core.staged.next_forget_ms, record.published_ms + PUBLISHED_KEPT_MS)
        core.wake_timer(core.staged.next_forget_ms)
    else:
        underway.record = after
        underway.loaded = {name: messages for name, messages in underway.loaded.items() if name in left}


def _ended(record: Publishing) -> Published:
    until_ms = record.published_ms + PUBLISHED_KEPT_MS
    return Published(record.token, record.chunk_count, record.count, record.bytes, record.queues, record.staged_ms, record.published_ms, until_ms)


def _drop_some(core: Core, token: str) -> int:
    names = [*core.staged.writes[token]][:STEP_MESSAGES]
    core.commit([ChunksDropped(token, names)])
    core.staged.drop(token, names)
    return len(names)


# What the timer does


def finish_publishes(core: Core) -> None:
    """Without the lock: a step of each write whose caller is gone."""
    with core.lock:
        if core.closed:
            return
        tokens = [token for token in core.staged.publishing if not core.staged.foreground[token]]
    for token in tokens:
        _publish_step(core, token)


def publishes_left(core: Core) -> bool:
    return any(not core.staged.foreground[token] for token in core.staged.publishing)


def run_staging_step(core: Core, now_ms: int) -> bool:
    """Writes nobody published in time go; tokens published long ago are forgotten."""
    book = core.staged
    worked = False
    if book.next_expiry_ms <= now_ms:
        late = book.expired(now_ms)
        if late:
            _drop_some(core, late[0])
        worked |= bool(late)
        book.look_ahead(core.store)
    if book.next_forget_ms <= now_ms:
        rows = core.store.published_over(now_ms, STEP_MESSAGES)
        if rows:
            core.commit([PublishesForgotten(rows)])
        worked |= bool(rows)
        book.look_ahead(core.store)
    return worked


def next_staging_ms(core: Core) -> int:
    """Wall-clock."""
    return min(core.staged.next_expiry_ms, core.staged.next_forget_ms)


def _view_staged(token: str, chunks: list[StagedChunk], expires_ms: int) -> StagedWrite:
    return StagedWrite(
        token=token,
        published=False,
        chunks=len(chunks),
        messages=sum(chunk.count for chunk in chunks),
        bytes=sum(chunk.bytes for chunk in chunks),
        queues=sorted({chunk.queue for chunk in chunks}),
        staged_at=min(chunk.staged_ms for chunk in chunks),
        expires_at=expires_ms,
    )


def _view_published(record: Published) -> StagedWrite:
    return StagedWrite(
        token=record.token,
        published=True,
        chunks=record.chunk_count,
        messages=record.count,
        bytes=record.bytes,
        queues=[*record.queues],
        staged_at=record.staged_ms,
        expires_at=record.until_ms,
    )
