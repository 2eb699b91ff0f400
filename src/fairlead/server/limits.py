"""What all doors together have in hand: refuses what would be too much, and knows when nothing is in flight.

One `Limits` for a server. A door wraps every call in `with limits.call(size):` and every long-lived channel or stream in
`with limits.channel():`; both raise before anything was carried out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fairlead.config import LimitSettings
from fairlead.errors import Overloaded, ServerStopping

#: Long enough for a few calls to finish, short enough to be no outage.
RETRY_AFTER_MS = 50


class Limits:
    def __init__(self, settings: LimitSettings | None = None) -> None:
        self._settings = settings or LimitSettings()
        self._changed = threading.Condition()
        self._calls = 0
        self._waiting = 0
        self._bytes = 0
        self._channels = 0
        self._draining = False

    @contextmanager
    def call(self, size: int = 0, *, waits: bool = False) -> Iterator[None]:
        """For as long as one call is worked on; `size` is what its request and answer hold in memory.

        A call that only `waits` (a claim with nothing to hand out yet) is in flight like any other, but as it costs
        nothing it does not count against `max_calls`: idle consumers are bounded by `max_channels`.
        """
        with self._changed:
            self._admit(size, waits)
        try:
            yield
        finally:
            with self._changed:
                self._calls -= not waits
                self._waiting -= waits
                self._bytes -= size
                if self._draining:
                    self._changed.notify_all()

    @contextmanager
    def channel(self) -> Iterator[None]:
        """For as long as a client keeps a channel or stream open. An open channel with no call on it is not in flight."""
        with self._changed:
            if self._draining:
                raise ServerStopping()
            if self._channels >= self._settings.max_channels:
                raise Overloaded("open channels", self._settings.max_channels, RETRY_AFTER_MS)
            self._channels += 1
        try:
            yield
        finally:
            with self._changed:
                self._channels -= 1

    def _admit(self, size: int, waits: bool) -> None:
        if self._draining:
            raise ServerStopping()
        if not waits and self._calls >= self._settings.max_calls:
            raise Overloaded("calls at a time", self._settings.max_calls, RETRY_AFTER_MS)
        # A request larger than the limit must pass when it is alone, or it never would.
        if self._bytes and self._bytes + size > self._settings.max_inflight_bytes:
            raise Overloaded("bytes in flight", self._settings.max_inflight_bytes, RETRY_AFTER_MS)
        self._calls += not waits
        self._waiting += waits
        self._bytes += size

    @property
    def in_flight(self) -> int:
        """Calls being worked on, those that wait included."""
        return self._calls + self._waiting

    @property
    def channels(self) -> int:
        return self._channels

    @property
    def bytes_in_flight(self) -> int:
        return self._bytes

    def drain(self) -> None:
        """From now on every new call and channel gets `ServerStopping`."""
        with self._changed:
            self._draining = True

    def wait_until_idle(self, grace_ms: int, hurry: Callable[[], bool] = lambda: False) -> bool:
        """After `drain`: True when the last call in flight has ended, False when the grace was over or `hurry()` said so."""
        deadline = time.monotonic() + grace_ms / 1000
        with self._changed:
            while self.in_flight:
                left = deadline - time.monotonic()
                if left <= 0 or hurry():
                    return False
                # In slices: a second signal only sets a flag, because a handler that took this lock could wait for itself.
                self._changed.wait(min(left, 0.1))
            return True
