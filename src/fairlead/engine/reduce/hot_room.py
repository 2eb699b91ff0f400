"""Whether new messages fit in memory: whether their chunk is hot, cold, or scattered into chunks of one
message.

Only the end of a lane or of a stream is cold, so nothing new is hot after something cold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.engine import cold
from fairlead.engine.queue import Queue
from fairlead.records.chunk import MAX_SHARED_BYTES, Chunk, Columns
from fairlead.records.ids import MAX_CHUNK_MESSAGES

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def fits_as_it_is(memory: Memory, queue: Queue, chunk: Chunk) -> bool:
    """Whether a new chunk of implied messages is hot, and has neither streams nor ends of lives: the usual
    case.
    """
    columns = chunk.columns
    if columns.streams is not None or columns.expires is not None or queue.schedule.has_cold():
        return False
    used = memory.hot_messages + len(memory.own) + chunk.count
    return used <= memory.wanted_hot_messages and used <= cold.HOT_MESSAGES


def must_be_cold(memory: Memory, queue: Queue, chunk: Chunk, weight: int) -> bool:
    """Whether a new chunk is cold. It is hot while there is room, unless it comes after a cold one in a lane
    or a stream.
    """
    if not chunk.has_implied():
        return True
    if _fits(memory, queue, weight, chunk.columns):
        return False
    if not has_room_for(memory, weight):
        memory.demotion.found_no_room(queue, chunk.enqueued_ms, chunk.columns.lanes)
    return True


def must_scatter(memory: Memory, queue: Queue, columns: Columns) -> bool:
    """Whether new messages with these columns become chunks of one message each. Behind a backlog in many
    lanes, the messages of a batch are claimed at such different times that their chunk would be read again
    for each of them.
    """
    count, lanes = len(columns.sizes), len(columns.lanes)
    if count == 1 or count >= cold.MIN_IN_LANE * lanes:
        return False
    if columns.streams is not None or columns.expires is not None:
        # They have more rows, and few queues have so many streams or lives behind a backlog.
        return False
    if queue.counts.ready * queue.schedule.cold_lanes < cold.MAX_READY_TIMES_LANES:
        return False
    return not _fits(memory, queue, count, columns)


def may_grow(memory: Memory, chunk: Chunk, more: Columns) -> bool:
    """Whether messages with these columns may join a chunk of their own transaction, which may have ended
    since.
    """
    if memory.chunks.get(chunk.block) is not chunk or chunk.is_cold:
        return False
    count, size = len(more.sizes), sum(more.sizes)
    if chunk.count + count > MAX_CHUNK_MESSAGES or chunk.payload_bytes + size > MAX_SHARED_BYTES:
        return False
    return _fits(memory, memory.by_id[chunk.queue_id], memory.hot_weight(more) * count, more)


def has_room_to_gather(memory: Memory, chunk: Chunk, count: int, size: int) -> bool:
    """`may_grow` for this many plain messages in any lanes; False for a queue with lanes on disk."""
    if memory.chunks.get(chunk.block) is not chunk or chunk.is_cold:
        return False
    if chunk.count + count > MAX_CHUNK_MESSAGES or chunk.payload_bytes + size > MAX_SHARED_BYTES:
        return False
    return has_room_for(memory, count) and not memory.by_id[chunk.queue_id].schedule.cold_lanes


def _fits(memory: Memory, queue: Queue, weight: int, columns: Columns) -> bool:
    """Whether new messages of this weight may be hot."""
    if not has_room_for(memory, weight):
        return False
    schedule, streams = queue.schedule, queue.streams
    if schedule.cold_lanes > 0 and any(map(schedule.cold_from, columns.lanes)):
        return False
    if columns.streams is None or not queue.is_ordered or not streams.may_be_on_disk:
        return True
    return not any(map(streams.goes_on_on_disk, set(columns.streams) - {""}))


def has_room_for(memory: Memory, weight: int) -> bool:
    return memory.used_room + weight <= memory.max_hot_messages


def has_room_at_tail(memory: Memory, queue: Queue) -> bool:
    """Whether one more message at the tail of a lane may be in memory. Of dead letters only the first ones
    are, because the others may never be needed.
    """
    if queue.is_dead_letter_queue and queue.schedule.held >= cold.WINDOW_MESSAGES:
        return False
    return memory.used_room <= memory.max_hot_messages
