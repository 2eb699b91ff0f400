"""What a worker has to tell the broker. What somebody waits for goes at once; what can go together does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fairlead.model.settle import Complete, Settlement
from fairlead.worker.broker_threads import Purpose, SettleRequest
from fairlead.worker.items import WorkItem

#: While slots have enough to do, outcomes of quick steps wait for so long, or until there are so many.
_HOLD_S = 0.005
_GATHERED = 500


class Outbox:
    def __init__(self) -> None:
        self._unsent: list[SettleRequest] = []
        self._since = 0.0
        self._urgent = False
        #: Sent, and not answered.
        self.unanswered = 0

    @property
    def is_empty(self) -> bool:
        """Everything that was said has been answered."""
        return not self._unsent and not self.unanswered

    def add(self, settlement: Settlement, purpose: Purpose, item: WorkItem) -> None:
        if not self._unsent:
            self._since = time.monotonic()
        self._unsent.append(SettleRequest(settlement, purpose, item))
        if purpose not in ("complete", "progress") or item.rest:
            self._urgent = True

    def add_completions(self, items: Sequence[WorkItem], progress: int) -> None:
        """All of them are completed."""
        if not self._unsent:
            self._since = time.monotonic()
        self._unsent += [SettleRequest(Complete(item.delivery, progress), "complete", item) for item in items]
        self._urgent = self._urgent or any(item.rest for item in items)

    def flush(self, send: Callable[[list[SettleRequest]], None], *, may_wait: bool) -> None:
        if not self._unsent:
            return
        if (
            may_wait
            and not self._urgent
            and len(self._unsent) < _GATHERED
            and time.monotonic() - self._since < _HOLD_S
        ):
            return
        self.unanswered += len(self._unsent)
        send(self._unsent)
        self._unsent, self._urgent = [], False

    def until_due(self, max_s: float) -> float:
        return min(max_s, max(0.0, self._since + _HOLD_S - time.monotonic())) if self._unsent else max_s
