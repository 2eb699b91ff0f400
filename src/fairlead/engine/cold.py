"""Messages that memory does not hold: reading them on demand, and the bounds of memory.

Reading writes nothing, and what is in memory is stored nowhere: a reopened engine reads again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fairlead.model.limits import MAX_READ_AHEAD_ROWS
from fairlead.records.chunk import IMPLIED, OWN, Chunk, LaneName
from fairlead.records.facts import ChunksRead, LaneFound, LaneRead, StatesRead, StreamRead
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT, MAX_CHUNK_MESSAGES
from fairlead.records.state import MemberRow, OwnState, RunRow
from fairlead.store.cold_rows import Run, read_cold_chunks, read_lanes, read_runs, read_states
from fairlead.store.stream_rows import StreamMembers, read_members

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory
    from fairlead.engine.queue import Queue
    from fairlead.records.stream import Stream
    from fairlead.store.kv.port import KeyValueStore

#: Messages of hot chunks, and messages with rows of their own, that memory holds at most. A chunk without
#: room is stored cold.
HOT_MESSAGES = MAX_READ_AHEAD_ROWS
#: The weight of a stream's message in that bound: the stream is an object of its own in memory.
WEIGHT_IN_STREAM = 8
#: Messages of cold chunks and of streams that stay in memory after their transaction, in case they are needed
#: again.
CACHED_MESSAGES = 100_000
#: The additional weight of a cold chunk there, because it costs memory beside its messages.
WEIGHT_OF_CHUNK = 8
#: Behind a backlog, a batch with fewer messages than this for each lane is stored message by message, if its
#: queue has so many messages in so many lanes that those of one chunk are claimed at very different times.
MIN_IN_LANE = 4
MAX_READY_TIMES_LANES = 1e10
#: Messages that are read ahead for one lane, and for all lanes of a queue together.
WINDOW_MESSAGES = 256
READ_AHEAD_MESSAGES = 400_000
#: Lanes or streams that one hold of the lock reads from disk, each of which is a look-up; and messages that
#: it reads ahead of all of them together.
STEP_LANES = 30
STEP_READ_AHEAD = 500
#: Chunks that one hold reads at most. One with many messages counts for several: one more for each multiple
#: of this.
STEP_CHUNKS = 200
MESSAGES_OF_STEP = 64
#: Messages that are read ahead for a stream. They may be in as many chunks.
STREAM_MESSAGES = 16


def cached_weight(chunk: Chunk) -> int:
    """The weight of a cold chunk in `CACHED_MESSAGES`."""
    return chunk.count + WEIGHT_OF_CHUNK


def bring_chunks(
    memory: Memory, store: KeyValueStore, numbers: Iterable[int], home_id: int | None = None
) -> None:
    """Load the chunks of these messages into memory, in one read."""
    if memory.cold_count and (blocks := unknown_blocks(memory, numbers)):
        bring_blocks(memory, store, blocks, home_id)


def unknown_blocks(memory: Memory, numbers: Iterable[int]) -> list[int]:
    """The blocks of these messages' chunks that memory lacks, in order."""
    known, ended = memory.chunks, memory.changes.ended_blocks
    # Not a difference of sets, which would visit all chunks.
    wanted = {number >> BLOCK_SHIFT for number in numbers}
    return sorted([block for block in wanted if block not in known and block not in ended])


def bring_blocks(
    memory: Memory, store: KeyValueStore, blocks: Sequence[int], home_id: int | None = None
) -> None:
    homes = memory.homes_with_cold() if home_id is None else [home_id]
    chunks = read_cold_chunks(store, homes, blocks)
    if chunks:
        memory.apply(ChunksRead(chunks))
    for chunk in chunks:
        if chunk.has_runs and chunk.count > 1:
            # Counted here, where a hold reads few chunks: one hold may settle messages of hundreds.
            chunk.count_in_lanes(is_ordered=memory.by_id[chunk.queue_id].is_ordered)


def most_chunks(memory: Memory, queue: Queue) -> int:
    """How many chunks of a queue one hold may read, from their average number of messages."""
    counts = memory.by_id[queue.home_id].counts
    average = min(MAX_CHUNK_MESSAGES, counts.messages // max(1, counts.cold))
    return max(1, STEP_CHUNKS // (1 + average // MESSAGES_OF_STEP))


def bring(memory: Memory, store: KeyValueStore, numbers: Sequence[int], home_id: int | None = None) -> None:
    """Load these messages into memory until the transaction ends, in one read of each kind."""
    bring_chunks(memory, store, numbers, home_id)
    wanted, known = [], dict[int, OwnState]()
    chunks, own, find_state = memory.chunks, memory.own, memory.known_waits.find_state
    for number in numbers:
        chunk = chunks.get(number >> BLOCK_SHIFT)
        if chunk is None or chunk.states is None or number in own:
            continue
        if number & BLOCK_MASK < chunk.count and chunk.states[number & BLOCK_MASK] == OWN:
            state = find_state(chunk.queue_id, number)
            if state is None:
                wanted.append((chunk.queue_id, number))
            else:
                known[number] = state
    if wanted:
        known |= read_states(store, wanted)
    if known:
        memory.apply(StatesRead(known))


def is_quick(memory: Memory, queue: Queue, needs: Mapping[LaneName, int]) -> bool:
    """Whether one hold may read this many messages of these lanes, each of which may be in a chunk of its
    own.
    """
    return len(needs) <= STEP_LANES and sum(needs.values()) <= most_chunks(memory, queue)


class Part(NamedTuple):
    """Messages of a lane or a stream in order, and the place where it continues; 0: it does not."""

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
    """The next messages of a lane on disk from a place on: about `limit`, or none."""
    return read_parts(memory, store, queue, {lane: start}, limit, end)[lane]


def read_parts(
    memory: Memory,
    store: KeyValueStore,
    queue: Queue,
    starts: Mapping[LaneName, int],
    limit: int,
    end: int | None = None,
    needs: Mapping[LaneName, int] | None = None,
) -> dict[LaneName, Part]:
    """`read_lane` for several lanes, in one read of each kind. `needs`: how many messages of each lane are
    needed now; others are read only if they need few chunks. None: all are needed.
    """
    queue_id, is_ordered, held = queue.record.queue_id, queue.is_ordered, memory.held
    runs = read_runs(store, memory.changes, queue.home_id, queue_id, starts, limit=limit + 2, end=end)
    brought = set[int]()
    pieces = {}
    for lane, rows in runs.items():
        most = (
            len(rows)
            if needs is None
            else _count_rows(rows, needs[lane], memory.chunks, brought, most_chunks(memory, queue))
        )
        pieces[lane] = _piece(rows, starts[lane], limit, end, most)
    bring(memory, store, [number for piece in pieces.values() for number in piece.wanted()], queue.home_id)

    def is_free(number: int) -> bool:
        """Of a message that is alone: whether a claim holds it, or this transaction moved it."""
        chunk = memory.chunks.get(number >> BLOCK_SHIFT)
        return number not in held and (chunk is None or chunk.state_of(number) == IMPLIED)

    found: dict[LaneName, Part] = {}
    for lane, piece in pieces.items():
        entries = [*piece.singles, *((number, number) for number in piece.alone if is_free(number))]
        start, last, leading = starts[lane], piece.last, piece.blocks
        for chunk in piece.chunks_in(memory):
            if chunk.queue_id == queue_id:
                row = leading[chunk.block]
                assert not isinstance(row, MemberRow)
                numbers = chunk.in_lane(lane, start, last, row, is_ordered=is_ordered)
                entries += [(number, number) for number in numbers if number not in held]
        found[lane] = piece.part(entries, limit)
    return found


def read_members_of(
    memory: Memory, store: KeyValueStore, queue: Queue, stream: str, start: int, limit: int
) -> Part:
    """The next messages of a stream on disk from a seq on: about `limit`, or none."""
    rows = read_members(store, memory.changes, queue.home_id, stream, start, limit=limit + 2)
    piece = _piece(rows, start, limit, None, len(rows))
    bring(memory, store, piece.wanted(), queue.home_id)
    entries = list(piece.singles)
    for chunk in piece.chunks_in(memory):
        entries += [(number, number) for number in chunk.in_stream(stream, start, piece.last)]
    return piece.part(entries, limit)


class _Piece(NamedTuple):
    """Rows of a lane or a stream that are read together."""

    #: (place, number) of messages with rows of their own.
    singles: list[tuple[int, int]]
    #: Blocks of chunks with the others, and the row that leads there; None: the row comes earlier.
    blocks: dict[int, RunRow | MemberRow | None]
    #: Messages that are alone in their chunks, which need not be read to know that they are ready.
    alone: list[int]
    #: Rows after this place are not known, so messages of chunks after it must wait; None: there are none.
    horizon: int | None
    #: Messages from here on do not count.
    last: int | None

    def wanted(self) -> list[int]:
        return [*(number for _, number in self.singles), *(block << BLOCK_SHIFT for block in self.blocks)]

    def chunks_in(self, memory: Memory) -> list[Chunk]:
        chunks = [memory.chunks.get(block) for block in self.blocks]
        return [chunk for chunk in chunks if chunk is not None and chunk.is_cold and chunk.has_runs]

    def part(self, entries: list[tuple[int, int]], limit: int) -> Part:
        """`entries` are (place, number)."""
        entries.sort()
        if len(entries) > limit:
            return Part([number for _, number in entries[:limit]], entries[limit][0])
        return Part([number for _, number in entries], self.horizon or 0)


def _count_rows(rows: Sequence[Run], wanted: int, known: Container[int], brought: set[int], most: int) -> int:
    """How many rows a read takes: those of the needed messages, and more until they lead to `most` unknown
    chunks. `brought` has the chunks of all lanes so far.
    """
    total = 0
    for count, one in enumerate(rows):
        block, row = one.place >> BLOCK_SHIFT, one.row
        if row.count and not row.is_alone and block not in known and block not in brought:
            is_next_place = count > 0 and rows[count - 1].place < one.place
            if len(brought) >= most and total >= wanted and is_next_place:
                return count
            brought.add(block)
        total += row.count or 1
    return len(rows)


def _piece(rows: Sequence[Run | StreamMembers], start: int, limit: int, end: int | None, most: int) -> _Piece:
    """As many of the first `most` rows as lead to about `limit` messages."""
    count = total = 0
    # The first message of a chunk may have a row of its own at the same place.
    while count < most and (total < limit or rows[count].place == rows[count - 1].place):
        total += rows[count].row.count or 1
        count += 1
    horizon = rows[count].place if count < len(rows) else None
    singles = [(one.place, one.row.number) for one in rows[:count] if not one.row.count]
    alone = list[int]()
    blocks: dict[int, RunRow | MemberRow | None] = {}
    for one in rows[:count]:
        if isinstance(one.row, RunRow) and one.row.is_alone:
            alone.append(one.row.number)
        elif one.row.count:
            blocks[one.place >> BLOCK_SHIFT] = one.row
    if start & BLOCK_MASK:
        # The lane continues in the middle of a chunk, whose row comes earlier.
        blocks.setdefault(start >> BLOCK_SHIFT, None)
    last = horizon if end is None or (horizon is not None and horizon < end) else end
    return _Piece(singles, blocks, alone, horizon, last)


def read_stream_on(memory: Memory, store: KeyValueStore, queue: Queue, stream: Stream, wanted: int) -> None:
    """Load at least some of the next messages of a stream, or establish that there are none."""
    part = read_members_of(memory, store, queue, stream.name, stream.cold_from, wanted)
    memory.apply(StreamRead(queue.record.queue_id, stream, part.numbers, part.next_place))


def read_on(memory: Memory, store: KeyValueStore, queue: Queue, needs: Mapping[LaneName, int]) -> None:
    """Load at least some of the next messages of these cold lanes, or establish that there are none."""
    shared = min(READ_AHEAD_MESSAGES // max(1, queue.schedule.cold_lanes), STEP_READ_AHEAD // len(needs))
    window = min(WINDOW_MESSAGES, shared)
    starts = {lane: queue.schedule.cold_from(lane) for lane in needs}
    parts = read_parts(memory, store, queue, starts, max(window, *needs.values()), needs=needs)
    for lane, part in parts.items():
        memory.apply(LaneRead(queue.record.queue_id, lane, part.numbers, part.next_place))


def load_lanes(memory: Memory, store: KeyValueStore, home_id: int) -> None:
    """At open, before the fronts of streams enter their lanes: load lanes with messages on disk up to their
    last hot message.
    """
    for queue_id, lane, first, last in read_lanes(store, home_id):
        queue = memory.by_id[queue_id]
        last_hot = queue.schedule.last_place(lane)
        numbers: list[int] = []
        place = first.place
        while 0 < place <= last_hot:
            part = read_lane(memory, store, queue, lane, place, WINDOW_MESSAGES)
            numbers += part.numbers
            place = part.next_place
        weight = last.row.weight if last.place > last_hot else 0
        memory.apply(LaneFound(queue_id, lane, weight, numbers, place))
