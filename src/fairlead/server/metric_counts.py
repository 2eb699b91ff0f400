"""Counting what the old engine committed: facts in, numbers out.

`Counts.observe` runs under the engine lock for every commit, so it works on whole batches: messages enqueued
in the same millisecond are one observation with a weight, and so are leases of one claim that end together.
`tests/doors/http` holds that every kind of fact is either counted or named as bookkeeping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fairlead.clock import Clock
from fairlead.model import facts as f
from fairlead.model.lane import Flag
from fairlead.server import metric_names as names
from fairlead.server.metric_labels import QueueLabels
from fairlead.server.metric_series import MetricSeries, reason_word, tally

#: Facts that no message moves by.
BOOKKEEPING: frozenset[type] = frozenset(
    {
        f.ClaimEnded,
        f.Recounted,
        f.QueueSaved,
        f.QueueUnlinked,
        f.QueueCleared,
        f.StreamSaved,
        f.StreamEnded,
        f.StreamJoined,
        f.StreamLeft,
        f.RequestRemembered,
        f.RequestsForgotten,
        f.ConfigSet,
        f.ConfigDeleted,
        f.DedupForgotten,
        f.TtlForgotten,
        f.IntentSaved,
        f.IntentEnded,
        f.KeySaved,
        f.KeyDropped,
        f.AuditSaved,
        f.AuditForgotten,
        f.RunbookSaved,
        f.ConsumerSaved,
        f.ConsumerDropped,
        f.MembersPinned,
        f.OutcomesRecorded,
        f.PartsChosen,
        f.NumberedClaimForgotten,
        f.ClockMarked,
        f.BucketsSaved,
        f.ChunkStaged,
        f.ChunksDropped,
        f.PublishSaved,
        f.PublishEnded,
        f.PublishesForgotten,
    }
)

_STATE = Flag.STATE


class Counts(MetricSeries):
    def __init__(self, clock: Clock, labels: QueueLabels) -> None:
        super().__init__(clock, labels)
        self._cleared: list[int] = []

    def observe(self, facts: Sequence[f.Fact]) -> None:
        settled = 0
        for fact in facts:
            handler = _HANDLERS.get(type(fact))
            if handler is not None:
                settled += handler(self, fact) or 0
        if settled:
            self.settle_sizes.add(settled)
        while self._cleared:
            self.queue_is_gone(self._cleared.pop())

    # Facts

    def _enqueued(self, fact: f.Enqueued) -> None:
        count = len(fact.messages)
        self.count(names.ENQUEUED, count, self.labels.of(fact.queue_id))
        self.enqueue_sizes.add(count)

    def _quarantined(self, fact: f.Quarantined) -> None:
        self.count(names.QUARANTINED, len(fact.messages), self.labels.of_source(fact.queue_id))

    def _leased(self, fact: f.Leased) -> None:
        leases = fact.leases + fact.followers if fact.followers else fact.leases
        label, count = self.labels.of(leases[0].queue_id), len(leases)
        self.count(names.DELIVERED, count, label)
        self.claim_sizes.add(count)
        self.claimed(fact.claim.claim_id, label, count)
        # An id begins with its millisecond. Whatever happened to a message before (a delay, a release, a
        # redrive) is in its state.
        fresh = [row[8:14] for row in [lease.row for lease in leases] if not row[26] & _STATE]
        if fresh:
            latency, granted_ms = self.spread(names.DELIVERY_LATENCY, label), fact.claim.granted_ms
            for stamp, times in tally(fresh).items():
                latency.add(max(0, granted_ms - int.from_bytes(stamp, "big")) / 1000, times)

    def _completed(self, fact: f.Completed) -> int:
        for claim_id, count in tally([lease.claim_id for lease in fact.leases]).items():
            label = self.end_leases(claim_id, count)
            if label is not None:
                self.count(names.COMPLETED, count, label)
            else:
                for queue_id, times in tally(
                    [lease.queue_id for lease in fact.leases if lease.claim_id == claim_id]
                ).items():
                    self.count(names.COMPLETED, times, self.labels.of(queue_id))
        return len(fact.leases)

    def _moved(self, fact: f.Moved) -> int:
        leaves = fact.source
        label = self.labels.of(f.spot_queue_id(leaves))
        if fact.cause == "lease_expiry":
            self.count(names.LEASES_EXPIRED, 1, label)
        MOVES[fact.kind](self, fact, label)
        if not isinstance(leaves, f.InLease):
            return 0
        self.end_leases(leaves.lease.claim_id, 1)
        return 1

    def _restated(self, fact: f.Restated) -> None:
        self.count(names.PROGRESS_SAVED, 1, self.labels.of(fact.lease.queue_id))

    def _extended(self, fact: f.Extended) -> None:
        self.count(names.LEASES_EXTENDED, len(fact.leases), self.labels.of(fact.leases[0].queue_id))

    def _started(self, fact: f.Started) -> None:
        for queue_id, count in tally([lease.queue_id for lease in fact.leases]).items():
            self.count(names.LEASES_STARTED, count, self.labels.of(queue_id))

    def _queue_saved(self, fact: f.QueueSaved) -> None:
        self.labels.saved(fact.record)

    def _queue_cleared(self, fact: f.QueueCleared) -> None:
        # Its last leases may end in the same commit.
        self._cleared.append(fact.queue_id)

    # Moves of one message

    def _failed(self, fact: f.Moved, label: str) -> None:
        assert fact.state is not None
        self.count(names.FAILED, 1, label, reason_word(fact.state.failures[-1].reason))
        self.count(names.RETRIED, 1, label, "at_once" if fact.kind == "retried" else "later")

    def _buried(self, fact: f.Moved, label: str) -> None:
        assert fact.state is not None
        if f.ends_failed_try(fact):
            self.count(names.FAILED, 1, label, reason_word(fact.state.failures[-1].reason))
        self.count(names.DEAD, 1, label, reason_word(fact.state.reason))

    def _released(self, fact: f.Moved, label: str) -> None:
        self.count(names.RELEASED, 1, label, fact.cause or "asked")

    def _done(self, fact: f.Moved, label: str) -> None:
        self.count(names.COMPLETED, 1, label)

    def _due(self, fact: f.Moved, label: str) -> None:
        self.count(names.DUE, 1, label)

    def _held(self, fact: f.Moved, label: str) -> None:
        self.count(names.HELD, 1, label)

    def _redriven(self, fact: f.Moved, label: str) -> None:
        assert fact.target is not None
        self.count(names.REDRIVEN, 1, self.labels.of(f.spot_queue_id(fact.target)))

    def _dropped(self, fact: f.Moved, label: str) -> None:
        self.count(names.DROPPED, 1, label, fact.cause or "asked")

    def _expired(self, fact: f.Moved, label: str) -> None:
        # That a completed message is kept no longer is nothing to worry about, unlike the other two.
        cause = (
            "completed"
            if isinstance(fact.source, f.InDone)
            else "retention"
            if fact.cause == "retention"
            else "ttl"
        )
        self.count(names.EXPIRED, 1, label, cause)

    def _front_changed(self, fact: f.Moved, label: str) -> None:
        self.count(names.STREAM_FRONTS, 1, label, fact.kind)


#: What a move of each kind counts; a kind that is missing here fails a test.
MOVES: dict[str, Callable[[Counts, f.Moved, str], None]] = {
    "completed": Counts._done,
    "released": Counts._released,
    "retried": Counts._failed,
    "delayed": Counts._failed,
    "due": Counts._due,
    "held": Counts._held,
    "buried": Counts._buried,
    "redriven": Counts._redriven,
    "dropped": Counts._dropped,
    "expired": Counts._expired,
    "promoted": Counts._front_changed,
    "demoted": Counts._front_changed,
}

#: Returns how many leases ended by it, if it ends any.
Handler = Callable[[Counts, Any], int | None]

COUNTED: dict[type, Handler] = {
    f.Enqueued: Counts._enqueued,
    f.Quarantined: Counts._quarantined,
    f.Leased: Counts._leased,
    f.Completed: Counts._completed,
    f.Moved: Counts._moved,
    f.Restated: Counts._restated,
    f.Extended: Counts._extended,
    f.Started: Counts._started,
}

_HANDLERS: dict[type, Handler] = {
    **COUNTED,
    f.QueueSaved: Counts._queue_saved,
    f.QueueCleared: Counts._queue_cleared,
}
