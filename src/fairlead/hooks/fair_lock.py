"""A lock that lets in whoever has waited longest."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class FairLock:
    """A plain lock may be taken again at once by the thread that let it go; one queue's endless turns would
    starve the rest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[threading.Lock] = deque()
        self._busy = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._busy:
                self._busy = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._line.append(mine)
        mine.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._line:
                self._line.popleft().release()
            else:
                self._busy = False
