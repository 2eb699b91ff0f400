"""What all doors together have in hand: refuses what would be too much, and knows when nothing is in flight.

One `Limits` for a server. A door wraps every call in `with limits.call(size):` or `waiting_call()`, and what a client keeps
open in `channel()` (Flight) or `stream()` (gRPC); they raise before anything was carried out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

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
        self._streams = 0
        self._closed = False
        #: How often something was too much.
        self.refused = 0

    @contextmanager
    def call(self, size: int = 0) -> Iterator[None]:
        """For as long as one call is worked on; `size` is what its request holds in memory."""
        with self._changed:
            self._check_open()
            if self._calls >= self._settings.max_calls:
                self._refuse("calls at a time", self._settings.max_calls)
            # A request larger than the limit must pass when it is alone, or it never would.
            if self._bytes and self._bytes + size > self._settings.max_inflight_bytes:
                self._refuse("bytes in flight", self._settings.max_inflight_bytes)
            self._calls += 1
            self._bytes += size
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1
                self._bytes -= size
                self._changed.notify_all()

    @contextmanager
    def waiting_call(self) -> Iterator[None]:
        """For a claim that may wait. In flight like any other, but as it costs only its thread it takes no place of `max_calls`."""
        with self._changed:
            self._check_open()
            self._waiting += 1
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    @contextmanager
    def channel(self) -> Iterator[None]:
        """For as long as a client keeps one open. An open channel with no call on it is not in flight."""
        with self._changed:
            self._check_open()
            if self._channels >= self._settings.max_channels:
                self._refuse("open channels", self._settings.max_channels)
            self._channels += 1
        try:
            yield
        finally:
            with self._changed:
                self._channels -= 1

    @contextmanager
    def stream(self) -> Iterator[None]:
        """For as long as a client keeps one open. It ends by itself once the waits of the broker are over, so it is not in flight."""
        with self._changed:
            self._check_open()
            if self._streams >= self._settings.max_streams:
                self._refuse("open streams", self._settings.max_streams)
            self._streams += 1
        try:
            yield
        finally:
            with self._changed:
                self._streams -= 1
                self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise ServerStopping()

    def _refuse(self, what: str, limit: int) -> NoReturn:
        self.refused += 1
        raise Overloaded(what, limit, RETRY_AFTER_MS)

    @property
    def in_flight(self) -> int:
        """Calls being worked on, those that wait included."""
        return self._calls + self._waiting

    @property
    def channels(self) -> int:
        """What clients keep open, streams included."""
        return self._channels + self._streams

    @property
    def max_streams(self) -> int:
        return self._settings.max_streams

    @property
    def bytes_in_flight(self) -> int:
        return self._bytes

    def close(self) -> None:
        """From now on every new call and channel gets `ServerStopping`."""
        with self._changed:
            self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    def wait_until_idle(self, grace_ms: int, hurry: Callable[[], bool] = lambda: False) -> bool:
        """After `close`: True when the last call in flight has ended, False when the grace was over or `hurry()` said so."""
        deadline = time.monotonic() + grace_ms / 1000
        with self._changed:
            while self.in_flight:
                left = deadline - time.monotonic()
                if left <= 0 or hurry():
                    return False
                # In slices: a second signal only sets a flag, because a handler that took this lock could wait for itself.
                self._changed.wait(min(left, 0.1))
            return True

    def wait_until_no_stream(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._streams, timeout_s)
