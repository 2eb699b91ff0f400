"""The events of a worker in one queue: posted by threads, or read from the pipes of step processes."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any


class Mailbox:
    """`post` may be called from any thread; everything else belongs to the thread of the loop.

    A descriptor registered with `selector` has a callable as its data; `wait` calls it when the descriptor is
    ready.
    """

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self._events: deque[Any] = deque()
        self._is_waiting = False
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self.selector.register(self._woken, selectors.EVENT_READ, self._drain)

    def post(self, event: Any) -> None:
        self._events.append(event)
        # The event is queued before this flag is read, and the loop sets the flag before it looks at the
        # queue: so no event is left waiting while the loop sleeps.
        if self._is_waiting:
            with contextlib.suppress(OSError):
                self._waker.send(b"!")

    def wait(self, max_s: float) -> None:
        self._is_waiting = True
        try:
            ready = self.selector.select(0 if self._events else max_s)
        finally:
            self._is_waiting = False
        for key, _ in ready:
            key.data()

    def take(self) -> Iterator[Any]:
        while self._events:
            yield self._events.popleft()

    def close(self) -> None:
        self.selector.close()
        self._woken.close()
        self._waker.close()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
