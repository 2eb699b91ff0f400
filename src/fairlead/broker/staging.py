"""Staged writes: chunks that nobody sees until one record makes all of them messages.

Whatever can be wrong with a message is found when it is staged: limits, sizes, what the queue's hook says, a
queue that is not there or full. What is left to go wrong is looked at when it is published (publish.py),
before anything changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from fairlead.broker.core import Core
from fairlead.broker.enqueue import ask_hook, check_queue_bounds
from fairlead.broker.publish import drop_some, publish
from fairlead.broker.queue_state import QueueState
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
from fairlead.errors import InvalidRequest, LimitReached
from fairlead.model.checks import check_each, check_messages
from fairlead.model.durations import Duration
from fairlead.model.facts import ChunkStaged
from fairlead.model.limits import MAX_STAGED_CHUNKS, MAX_WRITE_CHUNKS
from fairlead.model.message import NewMessage
from fairlead.model.staging import (
    ChunkBody,
    Dead,
    Published,
    PublishResult,
    Refusal,
    StagedChunk,
    StagedWrite,
    StageResult,
    pack_chunk,
    read_deaths,
)

_LISTED_PUBLISHED = 1000


def stage(
    core: Core,
    token: str,
    chunk: str,
    queue: str,
    messages: Sequence[NewMessage],
    *,
    ttl: Duration = "1d",
    skip_invalid: bool = False,
    dead: Dead | Sequence[Dead] | None = None,
) -> StageResult:
    write, chunk = read_write(token, queue), check_name(chunk, "chunk")
    ttl_ms = read_staging_ttl(ttl)
    checked, refused = (
        check_each(messages) if check_bool(skip_invalid, "skip_invalid") else (check_messages(messages), [])
    )
    deaths = [] if dead is None else read_deaths(dead, len(messages))
    if len(deaths) > 1 and refused:
        left_out = {row for row, _ in refused}
        deaths = [death for row, death in enumerate(deaths) if row not in left_out]
    elif not deaths:
        checked = ask_hook(core, queue, checked)
    packed = pack_chunk(ChunkBody(checked, deaths))
    size = sum([len(message.payload) + len(message.headers) for message in checked])
    lanes = len({message.lane for message in checked})
    with core.lock:
        state = core.queue(queue)
        if state.is_dead_letter_queue:
            raise InvalidRequest(
                "queue", "the queue the messages belong to, not its dead-letter queue", queue
            )
        now_ms = core.now_ms()
        if write not in core.staged.publishing and core.store.published(write) is None:
            made = StagedChunk(
                write.name,
                chunk,
                state.queue_id,
                write.queue,
                len(checked),
                size,
                len(packed),
                lanes,
                now_ms,
                now_ms + ttl_ms,
                bool(deaths),
            )
            _check_room_to_stage(core, state, made)
            core.commit([ChunkStaged(made, packed)])
            core.staged.add(made)
            core.wake_timer(made.expires_ms)
        commit = core.store.last_commit
    core.confirm(commit)
    return StageResult(len(checked), size, [Refusal(row, error.message) for row, error in refused])


def publish_write(core: Core, token: str, queue: str, chunks: Sequence[str]) -> PublishResult:
    return publish(core, read_write(token, queue), check_chunk_names(chunks))


def discard(core: Core, token: str, queue: str) -> int:
    write = read_write(token, queue)
    dropped = 0
    with core.lock:
        core.check_open()
        if write not in core.staged.publishing:
            while write in core.staged.writes:
                dropped += drop_some(core, write)
        commit = core.store.last_commit
    core.confirm(commit)
    return dropped


def kinds_of(core: Core, token: str, queue: str) -> set[bool]:
    write = read_write(token, queue)
    with core.lock:
        core.check_open()
        if write in core.staged.publishing:
            return set()
        return {chunk.dead for chunk in core.staged.writes.get(write, {}).values()}


def list_writes(core: Core, sees: Callable[[str], bool]) -> list[StagedWrite]:
    with core.lock:
        core.check_open()
        book = core.staged
        staged = [write for write in book.writes if write not in book.publishing and sees(write.queue)]
        found = [view_staged(write, [*book.writes[write].values()]) for write in staged]
        found += [
            view_published(ended_record(one.record))
            for write, one in book.publishing.items()
            if sees(write.queue)
        ]
    found += map(view_published, islice(_published(core, sees), _LISTED_PUBLISHED))
    return sorted(found, key=lambda write: (write.staged_at, write.queue, write.token))


def _published(core: Core, sees: Callable[[str], bool]) -> Iterator[Published]:
    """Page by page, with the lock let go in between: what others have published only takes longer to pass
    over.
    """
    before = None
    while True:
        with core.lock:
            core.check_open()
            page = core.store.last_published(_LISTED_PUBLISHED, before)
        if not page:
            return
        yield from (record for record in page if sees(record.queue))
        before = (page[-1].until_ms, page[-1].write)


def _check_room_to_stage(core: Core, queue: QueueState, made: StagedChunk) -> None:
    book = core.staged
    chunks = book.writes.get(made.write, {})
    before = chunks.get(made.chunk)
    if before is None:
        if len(chunks) >= MAX_WRITE_CHUNKS:
            raise LimitReached("chunks in one staged write", MAX_WRITE_CHUNKS)
        if book.chunk_count >= MAX_STAGED_CHUNKS:
            raise LimitReached("staged chunks", MAX_STAGED_CHUNKS)
    limit = core.settings.max_staged_bytes
    if book.stored_bytes - (before.stored_bytes if before else 0) + made.stored_bytes > limit:
        raise LimitReached("staged bytes", limit)
    if not made.dead:
        check_queue_bounds(core, queue, made.count, made.bytes)
    core.store.check_room(made.stored_bytes)
