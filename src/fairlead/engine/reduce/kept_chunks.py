"""What memory keeps of chunks beside the hot ones: cold chunks, payloads, and the list of sparse chunks.

A function that keeps something adds it to the count of its limit, and the function that drops it subtracts
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.engine.cold import cached_weight
from fairlead.engine.queue import Queue
from fairlead.engine.thinning import is_sparse
from fairlead.records.chunk import Chunk
from fairlead.records.facts import ChunksRead
from fairlead.records.ids import BLOCK_MASK

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def chunks_read(memory: Memory, fact: ChunksRead) -> None:
    for chunk in fact.chunks:
        keep_cold(memory, chunk)


def keep_cold(memory: Memory, chunk: Chunk) -> None:
    """Keep a cold chunk in memory until there is no room for it."""
    if chunk.block not in memory.chunks:
        memory.chunks[chunk.block] = memory.cold_chunks[chunk.block] = chunk
        memory.cached_messages += cached_weight(chunk)
        memory.by_id[chunk.queue_id].blocks.add(chunk.block)
        note_sparse(memory, chunk)


def drop_cold(memory: Memory, chunk: Chunk) -> None:
    if memory.cold_chunks.pop(chunk.block, None) is not None:
        memory.cached_messages -= cached_weight(chunk)
        drop_body(memory, chunk)
        del memory.chunks[chunk.block]
        memory.by_id[chunk.queue_id].blocks.discard(chunk.block)


def count_cold(memory: Memory, home: Queue, chunks: int) -> None:
    """Change the number of stored cold chunks."""
    memory.counts_to_change(home).cold += chunks
    memory.cold_count += chunks


def keep_body(memory: Memory, chunk: Chunk) -> None:
    """Keep the payloads of a chunk in memory if there is room for them."""
    if chunk.is_inline or chunk.payloads is None or chunk.kept_bytes:
        return
    size = chunk.payload_bytes
    if memory.chunks.get(chunk.block) is not chunk:
        return
    if memory.body_bytes + size > memory.max_body_bytes:
        chunk.payloads = None
        return
    chunk.kept_bytes = size
    memory.body_bytes += size


def drop_body(memory: Memory, chunk: Chunk) -> None:
    """The chunk leaves memory."""
    memory.body_bytes -= chunk.kept_bytes
    chunk.kept_bytes = 0


def note_sparse(memory: Memory, chunk: Chunk) -> None:
    if chunk.dead_bytes and is_sparse(chunk):
        memory.sparse[chunk.block] = chunk.queue_id


def may_be_thinned(memory: Memory, chunk: Chunk) -> bool:
    """Whether a chunk is worth rewriting, and no numbered claim holds one of its messages."""
    if not is_sparse(chunk):
        return False
    held = memory.held
    return not any(held[number].is_numbered for number in held.keys() & chunk.numbers)


def bytes_of(chunk: Chunk, numbers: Sequence[int]) -> int:
    """The bytes of these messages of a chunk together."""
    columns = chunk.columns
    if len(numbers) == chunk.count:
        return chunk.payload_bytes if columns.headers is None else columns.total_bytes()
    return sum([columns.size_of(number & BLOCK_MASK) for number in numbers])
