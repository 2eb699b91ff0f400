"""What passed each queue since the broker was opened, counted from facts. For looking only: nothing decides
by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fairlead.model.facts import (
    Completed,
    Enqueued,
    Fact,
    Leased,
    Moved,
    QueueCleared,
    ends_failed_try,
    spot_queue_id,
)
from fairlead.model.lease import Lease
from fairlead.model.views import Totals

_ENQUEUED, _DELIVERED, _COMPLETED, _FAILED = range(4)


class Tally:
    def __init__(self) -> None:
        self._counts: dict[int, list[int]] = {}

    def of(self, queue_id: int) -> Totals:
        return Totals(*self._counts.get(queue_id, ()))

    def note(self, facts: Sequence[Fact]) -> None:
        """Under the engine lock for every commit: a batch is one step, except for completions of several
        queues.
        """
        for fact in facts:
            kind = type(fact)
            if kind is Enqueued:
                self._add(fact.queue_id, _ENQUEUED, len(fact.messages))  # type: ignore[union-attr]
            elif kind is Leased:
                leases = fact.leases or fact.followers  # type: ignore[union-attr]
                self._add(leases[0].queue_id, _DELIVERED, len(fact.leases) + len(fact.followers))  # type: ignore[union-attr]
            elif kind is Completed:
                self._completed(fact.leases)  # type: ignore[union-attr]
            elif kind is Moved:
                self._moved(fact)  # type: ignore[arg-type]
            elif kind is QueueCleared:
                self._counts.pop(fact.queue_id, None)  # type: ignore[union-attr]

    def _completed(self, leases: Sequence[Lease]) -> None:
        if len(leases) == 1:
            # A counter for one lease would cost more than all else here.
            self._add(leases[0].queue_id, _COMPLETED, 1)
            return
        for queue_id, count in Counter([lease.queue_id for lease in leases]).items():
            self._add(queue_id, _COMPLETED, count)

    def _moved(self, fact: Moved) -> None:
        if fact.kind == "completed":
            self._add(spot_queue_id(fact.source), _COMPLETED, 1)
        elif ends_failed_try(fact):
            self._add(spot_queue_id(fact.source), _FAILED, 1)

    def _add(self, queue_id: int, what: int, count: int) -> None:
        counts = self._counts.get(queue_id)
        if counts is None:
            counts = self._counts[queue_id] = [0, 0, 0, 0]
        counts[what] += count
