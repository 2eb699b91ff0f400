"""Makes room for hot chunks: chunks whose messages cannot be claimed become cold, newest first.

When memory is full, a new chunk is stored cold at once (`reduce/hot_room.py`); this search then frees room
for later ones. Otherwise, messages of paused queues, of lanes that wait for tokens or of blocked streams
would eventually fill memory, and every new chunk of active queues would be stored cold. A chunk becomes cold
once and never hot again, so nothing moves back and forth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from fairlead.engine.reduce.lanes import find_in_lanes
from fairlead.engine.room import is_low
from fairlead.records.chunk import IMPLIED, Chunk, LaneName
from fairlead.records.facts import ChunkDemoted
from fairlead.records.ids import BLOCK_SHIFT
from fairlead.records.stream import Stream

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory
    from fairlead.engine.queue import Queue
    from fairlead.engine.transaction import Transaction

#: The part of the bound on messages in memory that is free when the search ends, so that it does not begin
#: again soon.
FREE_PART = 1 / 4
#: A queue without a claim for this time is not served; and a lane that needs longer for the messages before a
#: chunk does not need the chunk in memory.
IDLE_MS = 10_000
#: Messages that one step visits, where a chunk counts for some more.
LOOK_MESSAGES = 4_000
LOOK_CHUNK = 16
#: The cost of one step, see `_cost_of`: a few milliseconds. A chunk that costs more stays hot.
STEP_COST = 8_000
#: The pause after a step that found nothing; and after a search that ended, or whose write failed.
PAUSE_MS = 100
LONG_PAUSE_MS = 10_000
#: Messages after those of a chunk in a lane or a stream that are visited. With more, the chunk stays hot.
MAX_BEHIND = 1_000
_LAST_BLOCK = 1 << 63


class DemotionSearch:
    """The progress of the search for chunks that can become cold. A hint: a reopening forgets it."""

    __slots__ = ("_block", "_not_before_ms", "_queue_ids", "next_look_ms", "tried_commit")

    def __init__(self) -> None:
        #: When the search begins or continues; None: there is room.
        self.next_look_ms: int | None = None
        self._not_before_ms = 0
        #: The remaining queues, the next one last, and the last visited chunk of it.
        self._queue_ids: list[int] = []
        self._block = _LAST_BLOCK
        #: The commit of the last step. If its number returns, it was not written.
        self.tried_commit = 0

    def found_no_room(self, queue: Queue, enqueued_ms: int, lanes: Sequence[LaneName]) -> None:
        """A new chunk with messages of these lanes is cold. A search begins if other chunks wait for this one
        and only room is missing.
        """
        if not self.may_begin(queue, enqueued_ms):
            return
        schedule = queue.schedule
        if schedule.cold_lanes and any(map(schedule.cold_from, lanes)):
            return
        if schedule.parked_lanes and all(schedule.parked_on(lane) is not None for lane in lanes):
            return
        self.next_look_ms = max(enqueued_ms, self._not_before_ms)

    def may_begin(self, queue: Queue, enqueued_ms: int) -> bool:
        """Whether a new chunk of the queue may begin a search."""
        return self.next_look_ms is None and not is_unserved(queue, enqueued_ms)

    def end(self, not_before_ms: int = 0) -> None:
        """Stop until the next chunk finds no room, and at least until that time."""
        self.next_look_ms, self._not_before_ms = None, not_before_ms
        self._queue_ids, self._block = [], _LAST_BLOCK

    def look_again(self, chunk: Chunk) -> None:
        """Begin the next step with this chunk."""
        self._block = chunk.block + 1

    def next_chunk(self, memory: Memory) -> Chunk | None:
        """The next chunk: newest first, in the queue with the most ready messages first; None at the end."""
        if not self._queue_ids and self._block == _LAST_BLOCK:
            queues = [queue for queue in memory.by_id.values() if len(queue.blocks)]
            queues.sort(key=lambda queue: queue.counts.ready)
            self._queue_ids = [queue.record.queue_id for queue in queues]
        while self._queue_ids:
            queue = memory.by_id.get(self._queue_ids[-1])
            block = None if queue is None else queue.blocks.last_before(self._block)
            if block is not None:
                self._block = block
                return memory.chunks[block]
            self._queue_ids.pop()
            self._block = _LAST_BLOCK
        return None


def is_unserved(queue: Queue, now_ms: int) -> bool:
    """Whether consumers may not, or do not, claim from the queue."""
    return queue.record.paused or queue.served_ms + IDLE_MS <= now_ms


def demote_idle(tx: Transaction) -> bool:
    """One bounded step of the search; False if it made nothing cold."""
    memory, search = tx.memory, tx.memory.demotion
    if search.next_look_ms is None or tx.now_ms < search.next_look_ms:
        return False
    if _has_room(memory):
        search.end()
        return False
    if search.tried_commit == tx.commit or is_low(tx):
        # A failed write loads the queue anew, which takes long.
        search.end(tx.now_ms + LONG_PAUSE_MS)
        return False
    looked = cost = 0
    while looked < LOOK_MESSAGES and not _has_room(memory):
        chunk = search.next_chunk(memory)
        if chunk is None:
            search.end(tx.now_ms + LONG_PAUSE_MS)
            return cost > 0
        looked += LOOK_CHUNK + (0 if chunk.is_cold else chunk.count)
        its_cost = _cost_of(chunk)
        if its_cost > STEP_COST or not (is_idle(memory, chunk, tx.now_ms) and may_be_demoted(memory, chunk)):
            continue
        if cost + its_cost > STEP_COST:
            search.look_again(chunk)
            break
        cost += its_cost
        search.tried_commit = tx.commit
        tx.add(ChunkDemoted(chunk))
    search.next_look_ms = tx.now_ms if cost else tx.now_ms + PAUSE_MS
    return cost > 0


def _cost_of(chunk: Chunk) -> int:
    """The cost of making a chunk cold: rows for its lanes and streams cost far more than messages."""
    rows = len(chunk.columns.lanes) + len(set(chunk.columns.streams or ()))
    return chunk.count // 2 + 6 * rows


def _has_room(memory: Memory) -> bool:
    return memory.used_room <= memory.max_hot_messages * (1 - FREE_PART)


# Whether nobody takes messages of a chunk soon


def is_idle(memory: Memory, chunk: Chunk, now_ms: int) -> bool:
    if chunk.is_cold:
        return False
    queue = memory.by_id[chunk.queue_id]
    if is_unserved(queue, now_ms):
        return True
    if not queue.schedule.parked_lanes and not queue.streams.has_any:
        return False
    in_lanes = find_in_lanes(memory, queue, chunk)
    if not all(_waits_long(memory, queue, lane, numbers) for lane, numbers in in_lanes.items()):
        return False
    names = set(chunk.columns.streams or ()) - {""} if queue.is_ordered else set()
    return all(_is_blocked(memory, queue, name) for name in names & queue.streams.by_name.keys())


def _waits_long(memory: Memory, queue: Queue, lane: LaneName, numbers: Sequence[int]) -> bool:
    """Whether a lane waits for tokens, and for long before it reaches these messages."""
    throttle_key = queue.schedule.parked_on(lane)
    bucket = None if throttle_key is None else memory.buckets.get(throttle_key)
    if bucket is None:
        return False
    before = queue.schedule.count_ready(lane) - len(numbers)
    return before + 1 >= bucket.rate * IDLE_MS / 1000


def _is_blocked(memory: Memory, queue: Queue, name: str) -> bool:
    """Whether the first message of a stream in memory waits and nothing passes it, or its front is in a lane
    that waits long.
    """
    front = queue.streams.front_of(name)
    if front:
        return _waits_long(memory, queue, memory.lane_and_weight(front)[0], [front])
    known = queue.streams.by_name[name]
    if isinstance(known, Stream):
        return bool(known.numbers) and memory.waits(known.numbers[0])
    return memory.waits(known)


# Whether a chunk may become cold


def may_be_demoted(memory: Memory, chunk: Chunk) -> bool:
    """Whether no message of a hot chunk is leased, and no hot message of its lanes and streams comes after
    them.
    """
    if chunk.is_cold or not chunk.has_implied():
        return False
    if memory.held and not memory.held.keys().isdisjoint(chunk.numbers):
        return False
    queue = memory.by_id[chunk.queue_id]
    streams = chunk.columns.streams if queue.is_ordered else None

    def is_plain_hot(number: int) -> bool:
        known = memory.chunks.get(number >> BLOCK_SHIFT)
        if known is None or known.is_cold or known.state_of(number) != IMPLIED:
            return False
        return not (queue.is_ordered and known.stream_of(number))

    def is_hot_member(number: int) -> bool:
        return number >> BLOCK_SHIFT in memory.chunks and not memory.is_cold_member(number)

    last = chunk.numbers[-1]
    for lane in find_in_lanes(memory, queue, chunk):
        behind = takewhile(lambda number: memory.place_of(number) > last, queue.schedule.latest(lane))
        if _has_any(behind, is_plain_hot):
            return False
    for stream in map(queue.streams.by_name.get, set(streams or ())):
        numbers = reversed(stream.numbers) if isinstance(stream, Stream) else ()
        if _has_any(takewhile(lambda number: memory.seq_of(number) > last, numbers), is_hot_member):
            return False
    return True


def _has_any(behind: Iterable[int], is_hot: Callable[[int], bool]) -> bool:
    """Whether a message after those of a chunk is hot, or may be because there are many."""
    some = list(islice(behind, MAX_BEHIND + 1))
    return len(some) > MAX_BEHIND or any(map(is_hot, some))
