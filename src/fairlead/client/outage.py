"""Says in the log when a server has not answered for a while, and when it does again: else a program that
waits looks hung.
"""

from __future__ import annotations

import logging
import threading

from fairlead.clock import Clock
from fairlead.errors import FairleadError, Overloaded

#: A connection that breaks and is made again at once is not worth a word.
QUIET_MS = 1000

_log = logging.getLogger("fairlead.client")


class ConnectionBroken(Exception):
    """Inside the client only. `sent`: the request may have arrived, so it may have been carried out."""

    def __init__(self, what: str, *, sent: bool) -> None:
        super().__init__(what)
        self.sent = sent

    def for_another(self) -> ConnectionBroken:
        """The same, for a call of which nothing was sent: each thread raises one of its own."""
        return ConnectionBroken(str(self), sent=False)


class MayBeMended(ConnectionBroken):
    """No attempt will succeed as things are. They were otherwise before, so they may be again."""

    def __init__(self, error: FairleadError) -> None:
        super().__init__(error.message, sent=False)
        self.error = error

    def for_another(self) -> ConnectionBroken:
        return MayBeMended(self.error)


class Outage:
    """Of one server, met by many threads and told of once."""

    def __init__(self, address: str, clock: Clock) -> None:
        self.address = address
        self._clock = clock
        self._lock = threading.Lock()
        self._since_ms: int | None = None
        self._said = False

    def met(self, trouble: Exception) -> None:
        """A try has failed, and another will follow. One that was overloaded did answer."""
        if isinstance(trouble, Overloaded):
            return
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            if self._since_ms is None:
                self._since_ms = now_ms
            if self._said or now_ms - self._since_ms < QUIET_MS:
                return
            self._said = True
        _log.warning("no answer from the fairlead server at %s, trying again: %s", self.address, trouble)

    def over(self) -> None:
        """It has answered. Said as loudly as the beginning, for those who saw that."""
        if self._since_ms is None:
            return
        with self._lock:
            said, self._said, self._since_ms = self._said, False, None
        if said:
            _log.warning("the fairlead server at %s answers again", self.address)
