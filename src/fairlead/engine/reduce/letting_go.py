"""After a transaction, memory drops what it need not hold: states, streams, cold chunks and payloads.

Nothing here changes a row: dropped data is read again on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from fairlead.engine import cold
from fairlead.engine.own_states import is_hot_member, own_lane
from fairlead.engine.queue import DEAD_LANE, Queue
from fairlead.engine.reduce.kept_chunks import drop_cold, keep_body
from fairlead.engine.reduce.lanes import is_behind_memory, stands_in_memory
from fairlead.records.chunk import PAGE_BYTES, Chunk
from fairlead.records.ids import BLOCK_SHIFT
from fairlead.records.state import OwnState

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory

#: Cold chunks, or streams, that are visited at once when too many are in memory.
_LET_GO_AT_ONCE = 500


def let_go(
    memory: Memory, new_chunks: Sequence[Chunk] = (), thinned: Iterable[tuple[Chunk, Chunk]] = ()
) -> None:
    """After a transaction: drop messages that memory need not hold, and payloads for which there is no room.
    The oldest messages of a queue are needed first, so nothing makes room for those of new chunks.
    """
    for chunk in new_chunks:
        if chunk.payload_bytes > PAGE_BYTES:
            keep_body(memory, chunk)
    for before, after in thinned:
        if before.payloads is None and not after.is_inline:
            # They were read to be written, and are not needed.
            after.payloads = None
        keep_body(memory, after)
    while memory.read_bodies:
        keep_body(memory, memory.read_bodies.popleft())
    if memory.used_streams:
        _let_streams_go(memory)
    if memory.touched_states:
        for number in memory.touched_states:
            state = memory.own.get(number)
            if state is not None and not is_kept(memory, number, state):
                del memory.own[number]
        memory.touched_states.clear()
    if memory.demoted:
        for chunk in memory.demoted:
            drop_cold(memory, chunk)
        memory.demoted.clear()
    if memory.cached_messages <= cold.CACHED_MESSAGES:
        return
    # While a backlog drains, cold chunks use the room that the hot ones before them leave.
    room = cold.CACHED_MESSAGES + max(0, memory.max_hot_messages - memory.used_room)
    if memory.cached_messages > room:
        for chunk in new_chunks:
            drop_cold(memory, chunk)
    if memory.cached_messages > room:
        _let_cold_chunks_go(memory, room - room // 256)


def _let_cold_chunks_go(memory: Memory, left: int) -> None:
    """Drop some more than necessary, so that not every transaction with a full cache has to search for the
    first one.
    """
    while memory.cached_messages > left and memory.cold_chunks:
        for chunk in list(islice(memory.cold_chunks.values(), _LET_GO_AT_ONCE)):
            if memory.cached_messages <= left:
                return
            drop_cold(memory, chunk)


def _let_streams_go(memory: Memory) -> None:
    """Streams of which memory need not hold any message stay while there is room."""
    for queue_id, name in memory.used_streams:
        queue = memory.by_id.get(queue_id)
        if queue is not None:
            _count_stream(memory, queue, name)
    memory.used_streams.clear()
    if memory.cached_members <= cold.CACHED_MESSAGES:
        return
    left = cold.CACHED_MESSAGES - cold.CACHED_MESSAGES // 256
    while memory.cached_members > left and memory.cold_streams:
        for queue_id, name in list(islice(memory.cold_streams, _LET_GO_AT_ONCE)):
            if memory.cached_members <= left:
                return
            stream = memory.cold_streams.pop((queue_id, name))
            memory.cached_members -= stream.counted
            stream.counted = 0
            _let_stream_go(memory, memory.by_id[queue_id], name, stream.numbers)


def _count_stream(memory: Memory, queue: Queue, name: str) -> None:
    """Count the messages of a stream that memory need not hold; a single one is not kept."""
    known = memory.cold_streams.pop((queue.record.queue_id, name), None)
    if known is not None:
        memory.cached_members -= known.counted
        known.counted = 0
    stream = queue.streams.by_name.get(name)
    if isinstance(stream, int):
        if memory.is_cold_member(stream):
            _let_stream_go(memory, queue, name, [stream])
    elif stream is not None and stream.numbers and memory.is_cold_member(stream.numbers[0]):
        memory.cold_streams[queue.record.queue_id, name] = stream
        # A stream costs memory beside its messages.
        stream.counted = len(stream.numbers) + 1
        memory.cached_members += stream.counted


def _let_stream_go(memory: Memory, queue: Queue, name: str, numbers: Sequence[int]) -> None:
    queue.streams.let_go(name)
    for number in numbers:
        state = memory.own.get(number)
        if state is not None and not is_kept(memory, number, state):
            del memory.own[number]


def is_kept(memory: Memory, number: int, state: OwnState) -> bool:
    """Whether a lease, or the part of a stream or a lane in memory, holds the message."""
    if number in memory.held:
        return True
    chunk = memory.chunks.get(number >> BLOCK_SHIFT)
    if state.done_ms or (state.due_ms and chunk is not None and chunk.columns.streams is None):
        return False
    queue = memory.by_id[state.queue_id]
    if stream := memory.stream_of(number, state.queue_id):
        is_hot = is_hot_member(memory.chunk_of(number), state)
        is_known = is_hot or queue.streams.knows(stream, number, state.seq or number)
        return is_known or stands_in_memory(memory, queue, number, state)
    if state.due_ms:
        return False
    is_dead = queue.is_dead_letter_queue
    lane = DEAD_LANE if is_dead else own_lane(memory.chunk_of(number), number, state)
    return not is_behind_memory(queue, lane, state)
