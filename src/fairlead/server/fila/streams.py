"""How many streams are open, in all and per queue."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fairlead.errors import Overloaded

_RETRY_AFTER_MS = 1000


class OpenStreams:
    """Every open stream holds a thread for as long as it lasts, so their number has a limit below that of the threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._threads = 0
        self._consumers: Counter[str] = Counter()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Raises `Overloaded` at the limit."""
        with self._changed:
            if self._threads >= self._most:
                raise Overloaded("open streams", self._most, _RETRY_AFTER_MS)
            self._threads += 1
        try:
            yield
        finally:
            with self._changed:
                self._threads -= 1
                self._changed.notify_all()

    def wait_for_none(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, timeout_s)

    def enter(self, queue: str) -> Callable[[], None]:
        """Count one more consumer of a queue; returns the call that takes it back, which may be made twice."""
        with self._changed:
            self._consumers[queue] += 1
        left = False

        def leave() -> None:
            nonlocal left
            with self._changed:
                if not left:
                    left = True
                    self._consumers[queue] -= 1
                    if not self._consumers[queue]:
                        del self._consumers[queue]

        return leave

    def consumers(self, queue: str) -> int:
        with self._changed:
            return self._consumers[queue]
