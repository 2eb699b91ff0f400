"""What a worker has to tell the broker. What somebody waits for goes at once; what can go together does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fairlead.model.settle import Complete, Settlement
from fairlead.worker.items import Item
from fairlead.worker.voice import Said

#: While slots have enough to do, outcomes of quick steps wait for so long, or until there are so many.
_HOLD_S = 0.005
_GATHERED = 500


class Outbox:
    def __init__(self) -> None:
        self._saying: list[Said] = []
        self._since = 0.0
        self._urgent = False
        #: Sent, and not answered.
        self.untold = 0

    @property
    def is_empty(self) -> bool:
        """Everything that was said has been answered."""
        return not self._saying and not self.untold

    def say(self, settlement: Settlement, kind: str, item: Item) -> None:
        if not self._saying:
            self._since = time.monotonic()
        self._saying.append(Said(settlement, kind, item))
        if kind not in ("done", "step") or item.rest:
            self._urgent = True

    def say_done(self, items: Sequence[Item], progress: int) -> None:
        """All of them are completed."""
        if not self._saying:
            self._since = time.monotonic()
        self._saying += [Said(Complete(item.delivery, progress), "done", item) for item in items]
        self._urgent = self._urgent or any(item.rest for item in items)

    def flush(self, send: Callable[[list[Said]], None], *, may_wait: bool) -> None:
        if not self._saying:
            return
        if (
            may_wait
            and not self._urgent
            and len(self._saying) < _GATHERED
            and time.monotonic() - self._since < _HOLD_S
        ):
            return
        self.untold += len(self._saying)
        send(self._saying)
        self._saying, self._urgent = [], False

    def until_due(self, most_s: float) -> float:
        return min(most_s, max(0.0, self._since + _HOLD_S - time.monotonic())) if self._saying else most_s
