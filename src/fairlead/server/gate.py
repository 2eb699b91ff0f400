"""How much a server has in hand: the bound that turns too much work into `Overloaded`, and the count that a stop waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.errors import Overloaded, ServerStopping

#: What an overloaded server asks for: about the time in which it works off what it has.
_RETRY_AFTER_MS = 50


class Gate:
    """Shared by all doors of a server. A claim that waits for messages is let in unbounded: it costs nothing but its thread."""

    def __init__(self, *, max_calls: int = 512, max_bytes: int = 512 * 1024 * 1024) -> None:
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._calls = 0
        self._waiting = 0
        self._bytes = 0
        self._stopping = False
        self.refused = 0

    @property
    def calls(self) -> int:
        """Those at work now, waiting claims not counted."""
        return self._calls

    @contextmanager
    def call(self, size: int = 0) -> Iterator[None]:
        with self._changed:
            if self._stopping:
                raise ServerStopping
            if self._calls >= self._max_calls:
                self.refused += 1
                raise Overloaded("calls at a time", self._max_calls, _RETRY_AFTER_MS)
            # One request that is too big by itself still goes through when nothing else is in hand.
            if self._bytes and self._bytes + size > self._max_bytes:
                self.refused += 1
                raise Overloaded("bytes of requests at a time", self._max_bytes, _RETRY_AFTER_MS)
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
        with self._changed:
            if self._stopping:
                raise ServerStopping
            self._waiting += 1
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """From now on every new call is refused with `ServerStopping`."""
        with self._changed:
            self._stopping = True

    @property
    def closed(self) -> bool:
        return self._stopping

    def wait_until_idle(self, timeout_s: float) -> bool:
        """False when calls are still at work after that time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls and not self._waiting, timeout_s)
