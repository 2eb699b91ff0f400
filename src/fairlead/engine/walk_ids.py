"""Every message of a queue in the order of ids, in pages, wherever it is and moves meanwhile.

    for page in walk_ids(engine, queue_id):
        for met in page:
            ...                                  # no lock: others continue, `met` stays as it was met

A message that exists throughout is met exactly once, because an id never changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairlead.engine.met import STEP_MESSAGES, Met, find_queue, meet, step
from fairlead.engine.queue import Queue
from fairlead.engine.transaction import Transaction
from fairlead.records.chunk import Chunk
from fairlead.records.facts import ChunksRead
from fairlead.records.ids import BLOCK_SHIFT, COMMIT_SHIFT, find_number
from fairlead.store.cold_rows import find_cold_from, scan_cold_chunks

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

_MAX_NUMBER = (1 << 64) - 1
_HALF_ID = 8
#: The part of an id that is a time.
_TIME_BYTES = 6
#: Cold chunks that one step reads.
_STEP_CHUNKS = 16


def walk_ids(
    engine: Engine,
    queue_id: int,
    low: bytes = b"",
    high: bytes | None = None,
    *,
    after: bytes = b"",
    only_own: bool = False,
) -> Iterator[list[Met]]:
    """Every message of the queue with `low <= id < high`, after `after`.

    The bounds may be the ids of messages that are gone. Ids with the same first half are in the order of
    their enqueues. `only_own`: only messages with rows of their own, because something happened to them
    alone.
    """
    start, end = _position(low), None if high is None else _position(high)
    at: int | None = None
    while True:
        with step(engine) as tx:
            queue = find_queue(tx, queue_id)
            if queue is None:
                return
            home = tx.memory.by_id[queue.home_id]
            if at is None:
                at = _first_number(tx, home, low, after)
            chunks, at = _next_chunks(tx, home, at)
            wanted = only_own or queue.is_dead_letter_queue
            numbers = [
                number
                for chunk, first in chunks
                for number in (chunk.with_own_rows() if wanted else chunk.numbers)
                if number >= first
            ]
            if len(numbers) > STEP_MESSAGES:
                at = numbers[STEP_MESSAGES]
            met = meet(tx, numbers[:STEP_MESSAGES])
        yield [
            one
            for one in met
            if one.state.queue_id == queue_id
            and start <= (one.chunk.prefix, one.number)
            and (end is None or (one.chunk.prefix, one.number) < end)
        ]
        if at is None or (end is not None and chunks and _is_behind(chunks[-1][0], end[0])):
            return


def _first_number(tx: Transaction, home: Queue, low: bytes, after: bytes) -> int:
    """Where a walk begins: after a message, or at the first chunk with the time of an id. Chunks are in the
    order of their times.
    """
    number = find_number(after) if after else None
    if number is not None:
        return number + 1
    time = low[:_TIME_BYTES]
    hot = (block for block in home.blocks if tx.memory.chunks[block].prefix[:_TIME_BYTES] >= time)
    first = next(hot, tx.commit << COMMIT_SHIFT - BLOCK_SHIFT) << BLOCK_SHIFT
    if not time:
        return 0
    return find_cold_from(tx.store, home.home_id, time, first) if home.counts.cold else first


def _is_behind(chunk: Chunk, prefix: bytes) -> bool:
    return chunk.prefix[:_TIME_BYTES] > prefix[:_TIME_BYTES]


def _next_chunks(tx: Transaction, home: Queue, at: int) -> tuple[list[tuple[Chunk, int]], int | None]:
    """The next chunks, each with the number to begin at, and where to continue; None at the end."""
    chunks, following = home.blocks.chunks_from(at >> BLOCK_SHIFT, STEP_MESSAGES)
    found = {chunk.block: chunk for chunk in chunks}
    if home.counts.cold:
        cold = scan_cold_chunks(tx.store, home.home_id, at, _STEP_CHUNKS)
        tx.memory.apply(ChunksRead([one for one in cold if one.block not in tx.memory.changes.ended_blocks]))
        found.update(
            {one.block: tx.memory.chunks[one.block] for one in cold if one.block in tx.memory.chunks}
        )
        if len(cold) == _STEP_CHUNKS:
            behind = cold[-1].block + 1
            following = behind if following is None else min(following, behind)
    messages = 0
    some: list[tuple[Chunk, int]] = []
    for block in sorted(found):
        if following is not None and block >= following:
            break
        if messages >= STEP_MESSAGES:
            following = block
            break
        chunk = found[block]
        some.append((chunk, at))
        messages += chunk.count
    return some, None if following is None else following << BLOCK_SHIFT


def _position(raw_id: bytes) -> tuple[bytes, int]:
    """The position of an id in the order of a walk, whether or not a message has it."""
    if len(raw_id) < 2 * _HALF_ID:
        return raw_id[:_HALF_ID], 0
    number = find_number(raw_id)
    if number is None:
        number = _MAX_NUMBER if raw_id[_HALF_ID] & 0x80 else 0
    return raw_id[:_HALF_ID], number
