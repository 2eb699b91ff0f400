"""Messages of a chunk are gone, and the chunk ends with the last of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.engine import cold
from fairlead.engine.queue import Queue
from fairlead.engine.reduce.kept_chunks import count_cold, drop_body, drop_cold
from fairlead.engine.reduce.states import mark
from fairlead.engine.thinning import is_sparse
from fairlead.records.chunk import GONE, Chunk

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def messages_gone(memory: Memory, chunk: Chunk, members: Sequence[int], size: int) -> None:
    """End messages that have left their places. `size`: the bytes of all of them."""
    chunk.live -= len(members)
    chunk.dead_bytes += size
    columns = chunk.columns
    if not chunk.is_cold:
        weight = 1 if columns.streams is None else cold.WEIGHT_IN_STREAM
        memory.hot_messages -= weight * len(members)
    mark(memory, chunk, members, GONE)
    if chunk.live:
        if is_sparse(chunk):
            memory.sparse[chunk.block] = chunk.queue_id
    else:
        if chunk.body != chunk.first and not chunk.is_inline:
            memory.changes.staged_pages[chunk.queue_id, chunk.body] = None
        if columns.expires is not None:
            for end_ms in chunk.ends_of_life():
                memory.changes.lives[chunk.queue_id, end_ms, chunk.first] = False
        _end_chunk(memory, chunk)


def is_untouched(chunk: Chunk, numbers: Sequence[int]) -> bool:
    """Whether these numbers are all messages of the chunk, nothing has happened to them but the claim that
    held them, and no other row depends on them.
    """
    columns = chunk.columns
    if chunk.states is not None or chunk.is_cold or chunk.body != chunk.first:
        return False
    if columns.streams is not None or columns.expires is not None or columns.live_keys is not None:
        return False
    if chunk.count == 1:
        return numbers[0] == chunk.first
    return min(numbers) >= chunk.first and max(numbers) < chunk.first + chunk.count


def end_untouched(memory: Memory, home: Queue, chunk: Chunk) -> None:
    """The same as `messages_gone` for all messages of a chunk, without its checks."""
    size = chunk.payload_bytes if chunk.columns.headers is None else chunk.total_bytes
    home.counts.bytes -= size
    chunk.live, chunk.dead_bytes = 0, size
    chunk.states = bytearray((GONE,)) * chunk.count
    memory.hot_messages -= chunk.count
    if chunk.kept_bytes:
        drop_body(memory, chunk)
    del memory.chunks[chunk.block]
    home.blocks.discard(chunk.block)
    memory.changes.chunks.add(chunk)
    memory.changes.ended_blocks.add(chunk.block)


def _end_chunk(memory: Memory, chunk: Chunk) -> None:
    memory.changes.ended_blocks.add(chunk.block)
    home = memory.by_id[chunk.queue_id]
    if not chunk.is_cold:
        if chunk.kept_bytes:
            drop_body(memory, chunk)
        del memory.chunks[chunk.block]
        home.blocks.discard(chunk.block)
        return
    drop_cold(memory, chunk)
    count_cold(memory, home, -1)
