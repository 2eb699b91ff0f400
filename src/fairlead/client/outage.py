"""Log messages when a server has not answered for a while, and when it answers again. Without them a program
that waits seems to hang.
"""

from __future__ import annotations

import logging
import threading

from fairlead.clock import Clock
from fairlead.errors import FairleadError, Overloaded

#: Shorter outages are not logged, such as a connection that breaks and is made again at once.
QUIET_MS = 1000

_log = logging.getLogger("fairlead.client")


class ConnectionBroken(Exception):
    """Used inside the client only. `sent`: the request may have arrived, so it may have been carried out."""

    def __init__(self, what: str, *, sent: bool) -> None:
        super().__init__(what)
        self.sent = sent

    def for_another(self) -> ConnectionBroken:
        """The same failure for a call of which nothing was sent: each thread raises an error of its own."""
        return ConnectionBroken(str(self), sent=False)


class MayBeMended(ConnectionBroken):
    """No attempt succeeds in the present situation. An earlier one succeeded, so a later one may succeed
    again.
    """

    def __init__(self, error: FairleadError) -> None:
        super().__init__(error.message, sent=False)
        self.error = error

    def for_another(self) -> ConnectionBroken:
        return MayBeMended(self.error)


class Outage:
    """The outage of one server, met by many threads and logged once."""

    def __init__(self, address: str, clock: Clock) -> None:
        self.address = address
        self._clock = clock
        self._lock = threading.Lock()
        self._since_ms: int | None = None
        self._said = False

    def met(self, trouble: Exception) -> None:
        """Note a failed attempt that another will follow. An overloaded server did answer, so this is no
        outage.
        """
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
        """Note that the server has answered. Logged at the same level as the beginning, for readers who saw
        that.
        """
        if self._since_ms is None:
            return
        with self._lock:
            said, self._said, self._since_ms = self._said, False, None
        if said:
            _log.warning("the fairlead server at %s answers again", self.address)
