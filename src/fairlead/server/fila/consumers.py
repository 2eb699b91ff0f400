"""The number of consume streams of each queue."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable


class Consumers:
    """Thread-safe. A queue without consumers takes no memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def enter(self, queue: str) -> Callable[[], None]:
        """Count one more consumer of a queue. Returns the call that subtracts it, which is safe to repeat."""
        with self._lock:
            self._counts[queue] += 1
        left = False

        def leave() -> None:
            nonlocal left
            with self._lock:
                if not left:
                    left = True
                    self._counts[queue] -= 1
                    if not self._counts[queue]:
                        del self._counts[queue]

        return leave

    def of(self, queue: str) -> int:
        with self._lock:
            return self._counts[queue]
