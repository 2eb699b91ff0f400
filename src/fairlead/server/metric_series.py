"""Counters and distributions by the labels of a metric, the times of commits, and current claims."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fairlead.clock import Clock
from fairlead.model.distribution import Distribution
from fairlead.model.failure import FailureReason
from fairlead.model.timings import Timing
from fairlead.server import metric_names as names
from fairlead.server.metric_labels import QueueLabels
from fairlead.server.metric_names import Definition

#: The name of a metric and the values of its labels.
Series = tuple[str, tuple[str, ...]]

_BY_QUEUE = frozenset(definition.name for definition in names.METRICS if definition.labels[:1] == ("queue",))
_REASONS = {int(reason): reason.word for reason in FailureReason}


class _Granted:
    __slots__ = ("at_ms", "label", "live")

    def __init__(self, at_ms: int, label: str, live: int) -> None:
        self.at_ms = at_ms
        self.label = label
        self.live = live


class MetricSeries:
    """Counts for the queues with labels. A subclass knows the facts of an engine."""

    def __init__(self, clock: Clock, labels: QueueLabels) -> None:
        self.counters: dict[Series, int] = {}
        self.distributions: dict[Series, Distribution] = {}
        self._clock = clock
        self.labels = labels
        self._claims: dict[int, _Granted] = {}
        #: Syncs and hooks are timed in any thread.
        self._timing = threading.Lock()
        self._commit_seconds, self._sync_seconds = (
            self.spread(names.COMMIT_SECONDS),
            self.spread(names.SYNC_SECONDS),
        )
        self.enqueue_sizes, self.claim_sizes, self.settle_sizes = [
            self.spread(names.BATCH, verb) for verb in ("enqueue", "claim", "settle")
        ]

    def timed(self, timing: Timing) -> None:
        if timing.what == "commit":
            # Under the engine lock, like facts.
            self._commit_seconds.add(timing.seconds)
            return
        with self._timing:
            if timing.what == "sync":
                self._sync_seconds.add(timing.seconds)
            else:
                self.spread(names.HOOK_SECONDS, timing.what).add(timing.seconds)
                label = self.labels.of(timing.queue_id)
                for outcome, count in (
                    ("ran", timing.ran),
                    ("failed", timing.failed),
                    ("bypassed", timing.bypassed),
                ):
                    if count:
                        self.count(names.HOOK_CALLS, count, label, timing.what, outcome)

    def queue_is_gone(self, queue_id: int) -> None:
        gone = self.labels.cleared(queue_id)
        if gone is not None:
            self._forget(gone)

    def _forget(self, label: str) -> None:
        """A queue was deleted, and its series with it."""
        for series in [*self.counters, *self.distributions]:
            name, values = series
            if name in _BY_QUEUE and values[0] == label:
                self.counters.pop(series, None)
                self.distributions.pop(series, None)

    def claimed(self, claim_id: int, label: str, count: int) -> None:
        """A claim got more leases."""
        granted = self._claims.get(claim_id)
        if granted is None:
            self._claims[claim_id] = _Granted(self._clock.monotonic_ms(), label, count)
        else:
            # A numbered claim is assembled piece by piece.
            granted.live += count

    def end_leases(self, claim_id: int, count: int) -> str | None:
        """This many leases of one claim end together, with one age. Returns the label of its queue, which all
        leases of a claim share.

        Claims of another process are unknown.
        """
        claim = self._claims.get(claim_id)
        if claim is None:
            return None
        self.spread(names.LEASE_AGE, claim.label).add(
            (self._clock.monotonic_ms() - claim.at_ms) / 1000, count
        )
        claim.live -= count
        if claim.live <= 0:
            del self._claims[claim_id]
        return claim.label

    def count(self, definition: Definition, by: int, *values: str) -> None:
        series = definition.name, values
        self.counters[series] = self.counters.get(series, 0) + by

    def spread(self, definition: Definition, *values: str) -> Distribution:
        series = definition.name, values
        found = self.distributions.get(series)
        if found is None:
            found = self.distributions[series] = Distribution(definition.buckets)
        return found


def reason_word(number: int) -> str:
    return _REASONS.get(number, "unknown")


def tally(values: list[Any]) -> Mapping[Any, int]:
    """The number of occurrences of each value. Usually there is one message, claim or millisecond, and a
    Counter is slow.
    """
    count = len(values)
    return {values[0]: count} if values and values.count(values[0]) == count else Counter(values)
