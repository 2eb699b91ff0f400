"""Remembered answers: where they are, and when they are forgotten. They are rows that are not in memory."""

from __future__ import annotations

from fairlead.clock import Clock
from fairlead.decide.exchange import REQUEST_KEPT_MS
from fairlead.engine.transaction import Transaction
from fairlead.model.ids import first_id_of
from fairlead.records.facts import RecordsChanged
from fairlead.request import Caller
from fairlead.store.kv.port import Table

_SWEEP_EVERY_MS = 60_000
#: Answers that one step forgets.
_STEP = 1000
#: A smaller difference between the clocks is the work of those who keep them right.
_MIN_STEP_MS = 1000


def answer_key(caller: Caller, request_id: bytes) -> bytes:
    """Begins with the time of the id. The same id from another key is another request, so that nobody gets the
    answer of somebody else.
    """
    return request_id + (caller.key_id or "").encode()


class AnswerSweep:
    """Forgets answers whose requests are too old to be repeated. Looks once a minute, and not soon after an opening
    or a step of the wall clock: ids are by the clocks of their callers, and by a clock that is wrong for a while they
    would be forgotten too early. An id from ahead is kept until its own time is over.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = clock.now_ms() - clock.monotonic_ms()
        self._next_ms = clock.monotonic_ms() + REQUEST_KEPT_MS

    def is_due(self) -> bool:
        """Whether it is time for a step."""
        steady_ms = self._clock.monotonic_ms()
        ahead_ms = self._clock.now_ms() - steady_ms
        if abs(ahead_ms - self._ahead_ms) >= _MIN_STEP_MS:
            self._ahead_ms = ahead_ms
            self._next_ms = steady_ms + REQUEST_KEPT_MS
        return steady_ms >= self._next_ms

    def run(self, tx: Transaction) -> bool:
        """One bounded step; False when there is nothing to forget."""
        if not self.is_due():
            return False
        steady_ms = self._clock.monotonic_ms()
        end = first_id_of(max(0, self._clock.now_ms() - REQUEST_KEPT_MS))
        old = tx.scan_records(Table.ANSWERS, end=end, limit=_STEP)
        if not old:
            self._next_ms = steady_ms + _SWEEP_EVERY_MS
            return False
        tx.add(RecordsChanged(Table.ANSWERS, dict.fromkeys([key for key, _ in old], None)))
        return True
