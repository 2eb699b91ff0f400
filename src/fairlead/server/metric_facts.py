"""Counts of committed facts.

`FactCounts.observe` runs under the engine lock for every commit, so it works on whole batches: the messages
of a chunk were enqueued at one time, and members of one claim that end together are one observation with a
weight. `tests/doors/http` checks that every kind of fact is either counted or listed as bookkeeping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fairlead.records import facts as f
from fairlead.records.chunk import by_chunk
from fairlead.server import metric_names as names
from fairlead.server.metric_series import MetricSeries, reason_word

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory

#: Facts that move no message. Allowing messages to pass moves fronts of streams, which are measured; messages
#: that join a chunk are counted with it, because the chunk has grown when its facts are counted.
BOOKKEEPING: frozenset[type] = frozenset(
    {
        f.ChunkGrown,
        f.ChunkDemoted,
        f.ChunkThinned,
        f.QueueStored,
        f.QueueDeleted,
        f.ConfigChanged,
        f.BucketChanged,
        f.PassAllowed,
        f.KeysRemembered,
        f.KeysForgotten,
        f.WindowsEnded,
        f.LivesEnded,
        f.RecordsChanged,
        f.AnswerRemembered,
        f.PagesStaged,
    }
)

#: The label of a message that expired. A completed message that is no longer retained is not a problem.
_EXPIRED = {"retention": "retention", "kept_long_enough": "completed"}


class FactCounts(MetricSeries):
    def observe(self, facts: Sequence[f.StateFact], memory: Memory) -> None:
        settled = 0
        for fact in facts:
            handler = _HANDLERS.get(type(fact))
            if handler is not None:
                settled += handler(self, fact, memory) or 0
        if settled:
            self.settle_sizes.add(settled)

    # Facts

    def _enqueued(self, fact: f.ChunkEnqueued, memory: Memory) -> None:
        label = self.labels.of(fact.chunk.queue_id)
        dead = sum([state.source_queue_id != 0 for state in fact.own.values()]) if fact.own else 0
        if dead:
            self.count(names.QUARANTINED, dead, label)
        count = fact.chunk.count - fact.duplicates - dead
        if count:
            self.count(names.ENQUEUED, count, label)
            self.enqueue_sizes.add(count)

    def _scattered(self, fact: f.ScatteredEnqueued, memory: Memory) -> None:
        self.count(names.ENQUEUED, len(fact.numbers), self.labels.of(fact.queue_id))
        self.enqueue_sizes.add(len(fact.numbers))

    def _claimed(self, fact: f.Claimed, memory: Memory) -> None:
        terms, numbers = fact.lease.terms, fact.numbers
        label = self.labels.of(terms.queue_id)
        self.count(names.DELIVERED, len(numbers), label)
        self.claim_sizes.add(len(numbers))
        self.claimed(terms.claim_id, label, len(numbers))
        # A message with a delay, a release or a redrive has a row of its own.
        fresh = [number for number in numbers if number not in memory.own] if memory.own else numbers
        for block, members in by_chunk(fresh):
            chunk = memory.find_touched_chunk(block)
            if chunk is not None:
                waited_ms = max(0, terms.claimed_ms - chunk.enqueued_ms)
                self.spread(names.DELIVERY_LATENCY, label).add(waited_ms / 1000, len(members))

    def _completed(self, fact: f.LeaseCompleted, memory: Memory) -> int:
        terms, count = fact.lease.terms, len(fact.numbers)
        self.end_leases(terms.claim_id, count)
        self.count(names.COMPLETED, count, self.labels.of(terms.queue_id))
        return count

    def _split(self, fact: f.LeaseSplit, memory: Memory) -> None:
        before, after = fact.before.terms, fact.after.terms
        label, count = self.labels.of(after.queue_id), len(fact.numbers)
        if after.expires_ms != before.expires_ms:
            self.count(names.LEASES_EXTENDED, count, label)
        if after.started != before.started:
            self.count(names.LEASES_STARTED, count, label)

    def _moved(self, fact: f.MessageMoved, memory: Memory) -> int:
        queue_id = fact.state.source_queue_id if fact.why == "buried" else fact.state.queue_id
        label = self.labels.of(queue_id)
        assert fact.why is not None, "expected a move of a live engine"
        MOVES[fact.why](self, fact, label)
        return self._ended(fact, label)

    def _moved_together(self, fact: f.MessagesMoved, memory: Memory) -> int:
        return sum([self._moved(one, memory) for one in fact.one_by_one()])

    def _gone(self, fact: f.MessageGone, memory: Memory) -> int:
        label = self.labels.of(fact.queue_id)
        match fact.why:
            case "completed":
                self.count(names.COMPLETED, 1, label)
            case "dropped":
                self.count(names.DROPPED, 1, label, fact.cause or "asked")
            case "expired":
                self.count(names.EXPIRED, 1, label, _EXPIRED.get(fact.cause, "ttl"))
        return self._ended(fact, label)

    def _restated(self, fact: f.MessageRestated, memory: Memory) -> None:
        # An operator may restate a message that no claim holds.
        if fact.state.claim_id:
            self.count(names.PROGRESS_SAVED, 1, self.labels.of(fact.state.queue_id))

    def _queue_stored(self, fact: f.QueueStored, memory: Memory) -> None:
        self.labels.saved(fact.record)

    def _queue_deleted(self, fact: f.QueueDeleted, memory: Memory) -> None:
        gone = [record for record in memory.changes.deleted_queues if record.queue_id == fact.queue_id]
        for record in gone:
            self.queue_is_gone(record.dlq_id)
            self.queue_is_gone(record.queue_id)

    # Moves of one message

    def _failed(self, fact: f.MessageMoved, label: str) -> None:
        self.count(names.FAILED, 1, label, reason_word(fact.state.failures[-1].reason))
        self.count(names.RETRIED, 1, label, "at_once" if fact.why == "retried" else "later")

    def _buried(self, fact: f.MessageMoved, label: str) -> None:
        if fact.ends_failed_try:
            self.count(names.FAILED, 1, label, reason_word(fact.state.failures[-1].reason))
        self.count(names.DEAD, 1, label, reason_word(fact.state.reason))

    def _released(self, fact: f.MessageMoved, label: str) -> None:
        self.count(names.RELEASED, 1, label, fact.cause or "asked")

    def _returned(self, fact: f.MessageMoved, label: str) -> None:
        self.count(names.RETURNED, 1, label)

    def _due(self, fact: f.MessageMoved, label: str) -> None:
        self.count(names.DUE, 1, label)

    def _held(self, fact: f.MessageMoved, label: str) -> None:
        self.count(names.HELD, 1, label)

    def _redriven(self, fact: f.MessageMoved, label: str) -> None:
        self.count(names.REDRIVEN, 1, label)

    def _done(self, fact: f.MessageMoved, label: str) -> None:
        self.count(names.COMPLETED, 1, label)

    def _ended(self, fact: f.MessageMoved | f.MessageGone, label: str) -> int:
        """How many leases ended with it."""
        if fact.cause == "lease_expiry":
            self.count(names.LEASES_EXPIRED, 1, label)
        if not fact.claim_id:
            return 0
        self.end_leases(fact.claim_id, 1)
        return 1


#: What a move of each kind counts; a test fails if a kind is missing here.
MOVES: dict[str, Callable[[FactCounts, f.MessageMoved, str], None]] = {
    "released": FactCounts._released,
    "returned": FactCounts._returned,
    "retried": FactCounts._failed,
    "delayed": FactCounts._failed,
    "due": FactCounts._due,
    "held": FactCounts._held,
    "buried": FactCounts._buried,
    "redriven": FactCounts._redriven,
    "completed": FactCounts._done,
}

#: Returns how many leases ended with it, if any.
Handler = Callable[[FactCounts, Any, "Memory"], int | None]

COUNTED: dict[type, Handler] = {
    f.ChunkEnqueued: FactCounts._enqueued,
    f.ScatteredEnqueued: FactCounts._scattered,
    f.Claimed: FactCounts._claimed,
    f.LeaseCompleted: FactCounts._completed,
    f.LeaseSplit: FactCounts._split,
    f.MessageMoved: FactCounts._moved,
    f.MessagesMoved: FactCounts._moved_together,
    f.MessageRestated: FactCounts._restated,
    f.MessageGone: FactCounts._gone,
}

_HANDLERS: dict[type, Handler] = {
    **COUNTED,
    f.QueueStored: FactCounts._queue_stored,
    f.QueueDeleted: FactCounts._queue_deleted,
}
