"""Messages that memory does not hold: what is read when they are wanted, and how much memory holds at most.

Reading writes nothing, and stores nothing about what is in memory: a reopened engine reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fairlead.model.limits import MAX_READ_AHEAD_ROWS
from fairlead.records.chunk import OWN, Chunk, LaneName
from fairlead.records.facts import ChunksRead, LaneFound, LaneRead, StatesRead, StreamRead
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT
from fairlead.store.cold_rows import Run, read_cold_chunks, read_lanes, read_last_run, read_runs, read_states
from fairlead.store.stream_rows import Members, read_members

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory, Queue
    from fairlead.records.stream import Stream
    from fairlead.store.kv.port import KeyValueStore

#: Messages of hot chunks, and with rows of their own, that memory holds at most. A chunk that finds no room is
#: stored cold.
HOT_MESSAGES = MAX_READ_AHEAD_ROWS
#: How much of that a message of a stream takes: the stream is an object of its own in memory.
WEIGHT_IN_STREAM = 8
#: Messages of cold chunks, and messages of streams, that stay in memory after their transaction, in case they are
#: wanted again.
CACHED_MESSAGES = 100_000
#: Messages that a lane is read ahead by, and all lanes of a queue together.
WINDOW_MESSAGES = 256
READ_AHEAD_MESSAGES = 400_000
#: Lanes, or streams, that one hold of the lock reads from disk: each is a look-up of its own. And how many messages
#: it reads ahead of all of them together.
STEP_LANES = 50
STEP_READ_AHEAD = 1000
#: Messages that a stream is read ahead by. They may be in as many chunks.
STREAM_MESSAGES = 16


def bring_chunks(
    memory: Memory, store: KeyValueStore, numbers: Iterable[int], home_id: int | None = None
) -> None:
    """Have the chunks of these messages in memory, in one read."""
    if not memory.cold_count:
        return
    known, ended = memory.chunks, memory.changes.ended_blocks
    # Not a difference with the keys of the chunks, which would walk over all of them.
    wanted = {number >> BLOCK_SHIFT for number in numbers}
    blocks = [block for block in wanted if block not in known and block not in ended]
    if not blocks:
        return
    homes = memory.homes_with_cold() if home_id is None else [home_id]
    chunks = read_cold_chunks(store, homes, sorted(blocks))
    if chunks:
        memory.apply(ChunksRead(chunks))


def bring(memory: Memory, store: KeyValueStore, numbers: Sequence[int], home_id: int | None = None) -> None:
    """Have these messages in memory until the transaction ends, in one read of each kind."""
    bring_chunks(memory, store, numbers, home_id)
    wanted = []
    for number in numbers:
        chunk = memory.chunks.get(number >> BLOCK_SHIFT)
        if chunk is None or chunk.states is None or number in memory.own:
            continue
        if number & BLOCK_MASK < chunk.count and chunk.state_of(number) == OWN:
            wanted.append((chunk.queue_id, number))
    if wanted:
        memory.apply(StatesRead(read_states(store, wanted)))


class Part(NamedTuple):
    """Messages of a lane or a stream in order, and the place where it goes on; 0: nowhere."""

    numbers: list[int]
    next_place: int


def read_lane(
    memory: Memory,
    store: KeyValueStore,
    queue: Queue,
    lane: LaneName,
    start: int,
    limit: int,
    end: int | None = None,
) -> Part:
    """The next messages of a lane on disk from a place on, about `limit` of them and perhaps none."""
    home_id, queue_id, held = queue.home_id, queue.record.queue_id, memory.held
    rows = read_runs(store, memory.changes, home_id, queue_id, lane, start, limit=limit + 2, end=end)

    def find(chunk: Chunk, last: int | None) -> list[int]:
        if chunk.queue_id != queue_id:
            return []
        found = chunk.in_lane(lane, start, last, is_ordered=queue.is_ordered)
        return [number for number in found if number not in held]

    return _read_part(memory, store, home_id, rows, find, start, limit, end)


def read_members_of(
    memory: Memory, store: KeyValueStore, queue: Queue, stream: str, start: int, limit: int
) -> Part:
    """The next messages of a stream on disk from a seq on, about `limit` of them and perhaps none."""
    rows = read_members(store, memory.changes, queue.home_id, stream, start, limit=limit + 2)

    def find(chunk: Chunk, last: int | None) -> list[int]:
        return chunk.in_stream(stream, start, last)

    return _read_part(memory, store, queue.home_id, rows, find, start, limit, None)


def _read_part(
    memory: Memory,
    store: KeyValueStore,
    home_id: int,
    rows: Sequence[Run | Members],
    find: Callable[[Chunk, int | None], list[int]],
    start: int,
    limit: int,
    end: int | None,
) -> Part:
    """`find` names the messages of a chunk before a place; the others have rows of their own."""
    count = total = 0
    # The first message of a chunk may have a row of its own, at the same place.
    while count < len(rows) and (total < limit or rows[count].place == rows[count - 1].place):
        total += rows[count].row.count or 1
        count += 1
    # Rows behind this place are not known, so messages of chunks behind it must wait.
    horizon = rows[count].place if count < len(rows) else None
    singles = [(one.place, one.row.number) for one in rows[:count] if not one.row.count]
    blocks = {one.place >> BLOCK_SHIFT for one in rows[:count] if one.row.count}
    if start & BLOCK_MASK:
        # It goes on in the middle of a chunk, whose row stands before.
        blocks.add(start >> BLOCK_SHIFT)
    wanted = [*(number for _, number in singles), *(block << BLOCK_SHIFT for block in blocks)]
    bring(memory, store, wanted, home_id)
    last = horizon if end is None or (horizon is not None and horizon < end) else end
    entries = list(singles)
    for block in blocks:
        chunk = memory.chunks.get(block)
        if chunk is not None and chunk.is_cold and chunk.has_runs:
            entries += [(number, number) for number in find(chunk, last)]
    entries.sort()
    if len(entries) > limit:
        return Part([number for _, number in entries[:limit]], entries[limit][0])
    return Part([number for _, number in entries], horizon or 0)


def read_stream_on(memory: Memory, store: KeyValueStore, queue: Queue, stream: Stream, wanted: int) -> None:
    """Have at least some of the next messages of a stream in memory, or know that there are none."""
    part = read_members_of(memory, store, queue, stream.name, stream.cold_from, wanted)
    memory.apply(StreamRead(queue.record.queue_id, stream, part.numbers, part.next_place))


def read_on(
    memory: Memory, store: KeyValueStore, queue: Queue, lane: LaneName, wanted: int, lanes: int = 1
) -> None:
    """Have at least some of the next messages of a cold lane in memory, or know that there are none. `lanes`: how many
    are read in this step.
    """
    shared = min(READ_AHEAD_MESSAGES // max(1, queue.schedule.cold_lanes), STEP_READ_AHEAD // lanes)
    window = min(WINDOW_MESSAGES, shared)
    part = read_lane(memory, store, queue, lane, queue.schedule.cold_from(lane), max(wanted, window))
    memory.apply(LaneRead(queue.record.queue_id, lane, part.numbers, part.next_place))


def load_lanes(memory: Memory, store: KeyValueStore, home_id: int) -> None:
    """At open, before fronts of streams stand in their lanes: lanes with messages on disk, in memory up to their last
    hot message.
    """
    for queue_id, lane, first in read_lanes(store, home_id):
        queue = memory.by_id[queue_id]
        last = read_last_run(store, home_id, queue_id, lane)
        last_hot = queue.schedule.last_place(lane)
        numbers: list[int] = []
        place = first.place
        while 0 < place <= last_hot:
            part = read_lane(memory, store, queue, lane, place, WINDOW_MESSAGES)
            numbers += part.numbers
            place = part.next_place
        weight = last.row.weight if last.place > last_hot else 0
        memory.apply(LaneFound(queue_id, lane, weight, numbers, place))
