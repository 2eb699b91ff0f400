"""Messages join their streams and are leased in them, and the fronts of streams enter and leave their lanes.

Facts say only where messages are. The front of a stream follows from that once all facts of a request are
known: `update_fronts` is called then, live and at open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fairlead.engine.queue import Queue
from fairlead.engine.reduce.lanes import end_dry_lanes, enter_lane_as_front, leave_lane_as_front
from fairlead.engine.reduce.stream_members import add_members
from fairlead.records.chunk import Chunk
from fairlead.records.facts import PassAllowed, StreamRead

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def stream_read(memory: Memory, fact: StreamRead) -> None:
    memory.by_id[fact.queue_id].streams.read(fact.stream, fact.numbers, fact.cold_from)


def pass_allowed(memory: Memory, fact: PassAllowed) -> None:
    memory.by_id[fact.queue_id].streams.allow_to_pass(fact.stream, fact.numbers, fact.all_after)


def join_streams_at_open(queue: Queue, chunk: Chunk, ready: Sequence[int]) -> Sequence[int]:
    """At open: add messages to their streams, and return those without a stream. The order of the streams is
    known when all messages are: `update_fronts` computes the fronts.
    """
    for number in chunk.implied():
        if name := chunk.stream_of(number):
            queue.streams.found(name, number)
    return [number for number in ready if not chunk.stream_of(number)]


def open_streams(memory: Memory, queue: Queue, chunk: Chunk, numbers: Sequence[int]) -> Sequence[int]:
    """Add new messages to their streams. Returns those that enter their lanes: messages without a stream, and
    the first of a new one.
    """
    if not chunk.is_cold:
        return queue.streams.open(chunk, numbers)
    begun = queue.streams.prepare(chunk)
    add_members(memory, chunk, numbers)
    return queue.streams.open_on_disk(chunk, numbers, begun)


def is_member(memory: Memory, queue: Queue, chunk: Chunk, number: int) -> bool:
    """Whether a stream orders the message."""
    return chunk.columns.streams is not None and memory.stream_of(number, queue.record.queue_id) != ""


def lease_in_streams(memory: Memory, queue: Queue, numbers: Sequence[int], *, is_new: bool) -> None:
    for number in numbers:
        stream = memory.stream_of(number, queue.record.queue_id)
        if not stream:
            continue
        stood = queue.streams.lease(stream, number)
        if stood and is_new and memory.is_cold_member(number):
            lane = memory.lane_and_weight(number)[0]
            memory.changes.runs[queue.home_id, queue.home_id, lane, memory.place_of(number), True] = None


def update_fronts(memory: Memory) -> None:
    """Once all facts of a request are known: let other messages of the same keys take the place of settled
    ones, and add the front of each changed stream to its lane.
    """
    if memory.thinned_lanes:
        # A key whose last lane is on disk takes no more turns than one whose lanes are in memory.
        end_dry_lanes(memory)
    if memory.ended_deliveries:
        for _, queue_id, key in sorted(memory.ended_deliveries):
            memory.by_id[queue_id].schedule.settled(key)
        memory.ended_deliveries = []
    if memory.touched_streams:
        _move_fronts(memory)


def _move_fronts(memory: Memory) -> None:
    entering: list[tuple[int, int, int]] = []
    for (queue_id, name), stream in memory.touched_streams.items():
        queue = memory.by_id[queue_id]
        before, after = queue.streams.move_front(stream)
        if before:
            leave_lane_as_front(memory, queue, before)
        if after:
            entering.append((memory.seq_of(after), queue_id, after))
        row = stream.row()
        if row is not None or stream.has_row:
            memory.changes.streams[queue_id, name] = row
            stream.has_row = row is not None
    if memory.thinned_lanes:
        # A lane without messages is gone before the next front enters it, as it is where memory has all of
        # it.
        end_dry_lanes(memory)
    for _, queue_id, number in sorted(entering):
        enter_lane_as_front(memory, memory.by_id[queue_id], number)
    memory.touched_streams.clear()


def place_fronts(memory: Memory, queues: Iterable[Queue]) -> None:
    """At open, once lanes are in memory up to their last hot message. Rows of lanes lead to the fronts that
    memory need not hold.
    """
    for (queue_id, _), stream in memory.touched_streams.items():
        memory.by_id[queue_id].streams.move_front(stream)
    memory.touched_streams.clear()
    for queue in queues:
        hot = [number for number in queue.streams.fronts() if not memory.is_cold_member(number)]
        for number in sorted(hot, key=memory.seq_of):
            queue.schedule.insert(*memory.lane_and_weight(number), number)
