"""Counts of each queue since the engine was opened, from the facts of each commit. They are only shown: no
decision uses them, and they are not stored.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.engine.memory import Memory
from fairlead.engine.queue import DEAD_LANE
from fairlead.model.views import Totals
from fairlead.records.chunk import by_chunk
from fairlead.records.facts import (
    ChunkEnqueued,
    Claimed,
    LeaseCompleted,
    MessageGone,
    MessageMoved,
    MessagesMoved,
    QueueDeleted,
    ScatteredEnqueued,
    StateFact,
)
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT

#: Keys of a queue whose deliveries are counted; beyond it their counts restart.
_MAX_KEYS = 10_000


class Passed:
    """The counts of one queue."""

    __slots__ = ("by_key", "completed", "delivered", "enqueued", "failed")

    def __init__(self) -> None:
        self.enqueued = self.delivered = self.completed = self.failed = 0
        self.by_key: Counter[str] = Counter()

    def totals(self) -> Totals:
        return Totals(self.enqueued, self.delivered, self.completed, self.failed)


class Tally:
    def __init__(self) -> None:
        self._queues: defaultdict[int, Passed] = defaultdict(Passed)

    def of(self, queue_id: int) -> Passed:
        found = self._queues.get(queue_id)
        return Passed() if found is None else found

    def note(self, facts: Sequence[StateFact], memory: Memory) -> None:
        """Under the lock, once the facts are written and before memory forgets what they changed."""
        for fact in facts:
            note = _NOTES.get(type(fact))
            if note is not None:
                note(self, fact, memory)

    def _enqueued(self, fact: ChunkEnqueued, memory: Memory) -> None:
        # Quarantined messages never were messages of the queue.
        dead = sum([state.source_queue_id != 0 for state in fact.own.values()]) if fact.own else 0
        self._queues[fact.chunk.queue_id].enqueued += fact.chunk.count - fact.duplicates - dead

    def _scattered(self, fact: ScatteredEnqueued, memory: Memory) -> None:
        self._queues[fact.queue_id].enqueued += len(fact.numbers)

    def _completed(self, fact: LeaseCompleted, memory: Memory) -> None:
        self._queues[fact.lease.terms.queue_id].completed += len(fact.numbers)

    def _moved(self, fact: MessageMoved, memory: Memory) -> None:
        if fact.why == "completed":
            self._queues[fact.state.queue_id].completed += 1
        elif fact.ends_failed_try:
            self._queues[fact.state.source_queue_id or fact.state.queue_id].failed += 1

    def _moved_together(self, fact: MessagesMoved, memory: Memory) -> None:
        if fact.lease is not None:
            self._queues[fact.queue_id].failed += len(fact.numbers)

    def _gone(self, fact: MessageGone, memory: Memory) -> None:
        if fact.why == "completed":
            self._queues[fact.queue_id].completed += 1

    def _deleted(self, fact: QueueDeleted, memory: Memory) -> None:
        for queue_id in self._queues.keys() - memory.by_id.keys():
            del self._queues[queue_id]

    def _delivered(self, fact: Claimed, memory: Memory) -> None:
        queue_id, numbers = fact.lease.terms.queue_id, fact.numbers
        queue = memory.by_id.get(queue_id)
        if queue is None:
            # A later fact has deleted it.
            return
        passed = self._queues[queue_id]
        passed.delivered += len(numbers)
        by_key = passed.by_key
        if len(by_key) > _MAX_KEYS:
            by_key.clear()
        if queue.is_dead_letter_queue:
            by_key[DEAD_LANE[0]] += len(numbers)
            return
        only = memory.chunks.get(numbers[0] >> BLOCK_SHIFT) if len(numbers) == 1 else None
        if only is not None and only.columns.lane_at is None:
            by_key[only.columns.lanes[0][0]] += 1
            return
        if memory.cold_count and len({number >> BLOCK_SHIFT for number in numbers}) > len(numbers) // 4:
            by_key.update(_keys_of(memory, numbers))
            return
        for block, members in by_chunk(numbers):
            chunk = memory.find_touched_chunk(block)
            if chunk is None:
                continue
            columns = chunk.columns
            if columns.lane_at is None or len(members) == 1:
                by_key[chunk.lane_of(members[0])[0]] += len(members)
                continue
            if len(members) == len(columns.lanes) == chunk.count:
                for name in columns.lanes:
                    by_key[name[0]] += 1
                continue
            if len(members) == chunk.count:
                lanes = Counter(columns.lane_at)
            else:
                lanes = Counter([columns.lane_at[number & BLOCK_MASK] for number in members])
            for lane, count in lanes.items():
                by_key[columns.lanes[lane][0]] += count


def _keys_of(memory: Memory, numbers: Sequence[int]) -> list[str]:
    """The keys of messages that are scattered over many chunks."""
    chunks, found = memory.chunks, memory.find_touched_chunk
    pairs = [
        (chunks.get(number >> BLOCK_SHIFT) or found(number >> BLOCK_SHIFT), number) for number in numbers
    ]
    return [chunk.lane_of(number)[0] for chunk, number in pairs if chunk is not None]


_NOTES: dict[type, Callable[[Tally, Any, Memory], None]] = {
    ChunkEnqueued: Tally._enqueued,
    ScatteredEnqueued: Tally._scattered,
    Claimed: Tally._delivered,
    LeaseCompleted: Tally._completed,
    MessageMoved: Tally._moved,
    MessagesMoved: Tally._moved_together,
    MessageGone: Tally._gone,
    QueueDeleted: Tally._deleted,
}
