"""The settle requests of a worker: sent at once if somebody waits for the result, otherwise gathered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fairlead.model.settle import Complete, Settlement
from fairlead.worker.broker_threads import Purpose, SettleRequest
from fairlead.worker.items import WorkItem

#: While slots have enough to do, outcomes of quick steps wait this long, or until there are this many.
_HOLD_S = 0.005
_MAX_HELD = 500


class Outbox:
    def __init__(self) -> None:
        self._unsent: list[SettleRequest] = []
        self._since = 0.0
        self._is_urgent = False
        #: Requests sent and not answered.
        self.unanswered = 0

    @property
    def is_empty(self) -> bool:
        """Whether every request was sent and answered."""
        return not self._unsent and not self.unanswered

    def add(self, settlement: Settlement, purpose: Purpose, item: WorkItem) -> None:
        if not self._unsent:
            self._since = time.monotonic()
        self._unsent.append(SettleRequest(settlement, purpose, item))
        if purpose not in ("complete", "progress") or item.rest:
            self._is_urgent = True

    def add_completions(self, items: Sequence[WorkItem], progress: int) -> None:
        if not self._unsent:
            self._since = time.monotonic()
        self._unsent += [SettleRequest(Complete(item.delivery, progress), "complete", item) for item in items]
        self._is_urgent = self._is_urgent or any(item.rest for item in items)

    def flush(self, send: Callable[[list[SettleRequest]], None], *, may_wait: bool) -> None:
        """Send everything, unless `may_wait` and gathering more is worth the delay."""
        if not self._unsent or (may_wait and self._should_wait()):
            return
        self.unanswered += len(self._unsent)
        send(self._unsent)
        self._unsent, self._is_urgent = [], False

    def _should_wait(self) -> bool:
        if self._is_urgent or len(self._unsent) >= _MAX_HELD:
            return False
        return time.monotonic() - self._since < _HOLD_S

    def until_due(self, max_s: float) -> float:
        """Seconds until the next `flush` sends what is gathered now, at most `max_s`."""
        if not self._unsent:
            return max_s
        return min(max_s, max(0.0, self._since + _HOLD_S - time.monotonic()))
