"""Counting what was committed: facts in, numbers out.

`Counts.observe` runs under the engine lock for every commit, so it works on whole batches: messages enqueued
in the same millisecond are one observation with a weight, and so are leases of one claim that end together.
`tests/doors/http` holds that every kind of fact is either counted or named as bookkeeping.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairlead.clock import Clock
from fairlead.model import facts as f
from fairlead.model.distribution import Distribution
from fairlead.model.failure import FailureReason
from fairlead.model.lane import Flag
from fairlead.model.timings import Timing
from fairlead.server import metric_names as names
from fairlead.server.metric_labels import QueueLabels
from fairlead.server.metric_names import Definition

#: The name of a metric and the values of its labels.
Series = tuple[str, tuple[str, ...]]

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

_BY_QUEUE = frozenset(definition.name for definition in names.METRICS if definition.labels[:1] == ("queue",))
_REASONS = {int(reason): reason.word for reason in FailureReason}
_STATE = Flag.STATE


class _Granted:
    __slots__ = ("at_ms", "label", "live")

    def __init__(self, at_ms: int, label: str, live: int) -> None:
        self.at_ms = at_ms
        self.label = label
        self.live = live


class Counts:
    def __init__(self, clock: Clock, labels: QueueLabels) -> None:
        self.counters: dict[Series, int] = {}
        self.distributions: dict[Series, Distribution] = {}
        self._clock = clock
        self._labels = labels
        self._claims: dict[int, _Granted] = {}
        self._cleared: list[int] = []
        #: Syncs and hooks are timed in any thread.
        self._timing = threading.Lock()
        self._commit_seconds, self._sync_seconds = (
            self._spread(names.COMMIT_SECONDS),
            self._spread(names.SYNC_SECONDS),
        )
        self._enqueue_sizes, self._claim_sizes, self._settle_sizes = [
            self._spread(names.BATCH, verb) for verb in ("enqueue", "claim", "settle")
        ]

    def observe(self, facts: Sequence[f.Fact]) -> None:
        settled = 0
        for fact in facts:
            handler = _HANDLERS.get(type(fact))
            if handler is not None:
                settled += handler(self, fact) or 0
        if settled:
            self._settle_sizes.add(settled)
        while self._cleared:
            gone = self._labels.cleared(self._cleared.pop())
            if gone is not None:
                self.forget(gone)

    def timed(self, timing: Timing) -> None:
        if timing.what == "commit":
            # Under the engine lock, as facts are.
            self._commit_seconds.add(timing.seconds)
            return
        with self._timing:
            if timing.what == "sync":
                self._sync_seconds.add(timing.seconds)
            else:
                self._spread(names.HOOK_SECONDS, timing.what).add(timing.seconds)
                label = self._labels.of(timing.queue_id)
                for outcome, count in (
                    ("ran", timing.ran),
                    ("failed", timing.failed),
                    ("bypassed", timing.bypassed),
                ):
                    if count:
                        self._count(names.HOOK_CALLS, count, label, timing.what, outcome)

    def forget(self, label: str) -> None:
        """A queue is gone, and with it its series."""
        for series in [*self.counters, *self.distributions]:
            name, values = series
            if name in _BY_QUEUE and values[0] == label:
                self.counters.pop(series, None)
                self.distributions.pop(series, None)

    # Facts

    def _enqueued(self, fact: f.Enqueued) -> None:
        count = len(fact.messages)
        self._count(names.ENQUEUED, count, self._labels.of(fact.queue_id))
        self._enqueue_sizes.add(count)

    def _quarantined(self, fact: f.Quarantined) -> None:
        self._count(names.QUARANTINED, len(fact.messages), self._labels.of_source(fact.queue_id))

    def _leased(self, fact: f.Leased) -> None:
        leases = fact.leases + fact.followers if fact.followers else fact.leases
        label, count = self._labels.of(leases[0].queue_id), len(leases)
        self._count(names.DELIVERED, count, label)
        self._claim_sizes.add(count)
        granted = self._claims.get(fact.claim.claim_id)
        if granted is None:
            self._claims[fact.claim.claim_id] = _Granted(self._clock.monotonic_ms(), label, count)
        else:
            # A numbered claim is put together piece by piece.
            granted.live += count
        # An id begins with its millisecond. Whatever happened to a message before (a delay, a release, a
        # redrive) is in its state.
        fresh = [row[8:14] for row in [lease.row for lease in leases] if not row[26] & _STATE]
        if fresh:
            latency, granted_ms = self._spread(names.DELIVERY_LATENCY, label), fact.claim.granted_ms
            for stamp, times in _tally(fresh).items():
                latency.add(max(0, granted_ms - int.from_bytes(stamp, "big")) / 1000, times)

    def _completed(self, fact: f.Completed) -> int:
        for claim_id, count in _tally([lease.claim_id for lease in fact.leases]).items():
            label = self._end_leases(claim_id, count)
            if label is not None:
                self._count(names.COMPLETED, count, label)
            else:
                for queue_id, times in _tally(
                    [lease.queue_id for lease in fact.leases if lease.claim_id == claim_id]
                ).items():
                    self._count(names.COMPLETED, times, self._labels.of(queue_id))
        return len(fact.leases)

    def _moved(self, fact: f.Moved) -> int:
        leaves = fact.source
        label = self._labels.of(f.spot_queue_id(leaves))
        if fact.cause == "lease_expiry":
            self._count(names.LEASES_EXPIRED, 1, label)
        MOVES[fact.kind](self, fact, label)
        if not isinstance(leaves, f.InLease):
            return 0
        self._end_leases(leaves.lease.claim_id, 1)
        return 1

    def _restated(self, fact: f.Restated) -> None:
        self._count(names.PROGRESS_SAVED, 1, self._labels.of(fact.lease.queue_id))

    def _extended(self, fact: f.Extended) -> None:
        self._count(names.LEASES_EXTENDED, len(fact.leases), self._labels.of(fact.leases[0].queue_id))

    def _started(self, fact: f.Started) -> None:
        for queue_id, count in _tally([lease.queue_id for lease in fact.leases]).items():
            self._count(names.LEASES_STARTED, count, self._labels.of(queue_id))

    def _queue_saved(self, fact: f.QueueSaved) -> None:
        self._labels.saved(fact.record)

    def _queue_cleared(self, fact: f.QueueCleared) -> None:
        # Its last leases may end in the same commit.
        self._cleared.append(fact.queue_id)

    # Moves of one message

    def _failed(self, fact: f.Moved, label: str) -> None:
        assert fact.state is not None
        self._count(names.FAILED, 1, label, _reason(fact.state.failures[-1].reason))
        self._count(names.RETRIED, 1, label, "at_once" if fact.kind == "retried" else "later")

    def _buried(self, fact: f.Moved, label: str) -> None:
        assert fact.state is not None
        if f.ends_failed_try(fact):
            self._count(names.FAILED, 1, label, _reason(fact.state.failures[-1].reason))
        self._count(names.DEAD, 1, label, _reason(fact.state.reason))

    def _released(self, fact: f.Moved, label: str) -> None:
        self._count(names.RELEASED, 1, label, fact.cause or "asked")

    def _done(self, fact: f.Moved, label: str) -> None:
        self._count(names.COMPLETED, 1, label)

    def _due(self, fact: f.Moved, label: str) -> None:
        self._count(names.DUE, 1, label)

    def _held(self, fact: f.Moved, label: str) -> None:
        self._count(names.HELD, 1, label)

    def _redriven(self, fact: f.Moved, label: str) -> None:
        assert fact.target is not None
        self._count(names.REDRIVEN, 1, self._labels.of(f.spot_queue_id(fact.target)))

    def _dropped(self, fact: f.Moved, label: str) -> None:
        self._count(names.DROPPED, 1, label, fact.cause or "asked")

    def _expired(self, fact: f.Moved, label: str) -> None:
        # That a completed message is kept no longer is nothing to worry about, unlike the other two.
        cause = (
            "completed"
            if isinstance(fact.source, f.InDone)
            else "retention"
            if fact.cause == "retention"
            else "ttl"
        )
        self._count(names.EXPIRED, 1, label, cause)

    def _front_changed(self, fact: f.Moved, label: str) -> None:
        self._count(names.STREAM_FRONTS, 1, label, fact.kind)

    # Details

    def _end_leases(self, claim_id: int, count: int) -> str | None:
        """So many of one claim end together, with one age. Returns the label of its queue: all leases of a
        claim are of one.

        Nothing is known of a claim that another process granted.
        """
        claim = self._claims.get(claim_id)
        if claim is None:
            return None
        self._spread(names.LEASE_AGE, claim.label).add(
            (self._clock.monotonic_ms() - claim.at_ms) / 1000, count
        )
        claim.live -= count
        if claim.live <= 0:
            del self._claims[claim_id]
        return claim.label

    def _count(self, definition: Definition, by: int, *values: str) -> None:
        series = definition.name, values
        self.counters[series] = self.counters.get(series, 0) + by

    def _spread(self, definition: Definition, *values: str) -> Distribution:
        series = definition.name, values
        found = self.distributions.get(series)
        if found is None:
            found = self.distributions[series] = Distribution(definition.buckets)
        return found


def _reason(number: int) -> str:
    return _REASONS.get(number, "unknown")


def _tally(values: list[Any]) -> Mapping[Any, int]:
    """How often each occurs. Mostly there is one message, or one claim, or one millisecond, and a Counter is
    dear.
    """
    count = len(values)
    return {values[0]: count} if values and values.count(values[0]) == count else Counter(values)


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
