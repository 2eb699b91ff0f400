"""Everything that happens to a worker, in one line: what threads post, and what pipes have to say."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any


class Mailbox:
    """`post` from any thread; the rest is for the loop alone. What is registered with `selector` has its data
    called when it is ready.
    """

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self._events: deque[Any] = deque()
        self._asleep = False
        self._woken, self._wakes = socket.socketpair()
        self._woken.setblocking(False)
        self._wakes.setblocking(False)
        self.selector.register(self._woken, selectors.EVENT_READ, self._swallow)

    def post(self, event: Any) -> None:
        self._events.append(event)
        # Read after the event is in line, and written before the line is looked at: so none is slept through.
        if self._asleep:
            with contextlib.suppress(OSError):
                self._wakes.send(b"!")

    def wait(self, max_s: float) -> None:
        self._asleep = True
        try:
            ready = self.selector.select(0 if self._events else max_s)
        finally:
            self._asleep = False
        for key, _ in ready:
            key.data()

    def take(self) -> Iterator[Any]:
        while self._events:
            yield self._events.popleft()

    def close(self) -> None:
        self.selector.close()
        self._woken.close()
        self._wakes.close()

    def _swallow(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
