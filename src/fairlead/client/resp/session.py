"""Numbers under which a server remembers answers, so that a request whose answer was lost may be sent again."""

from __future__ import annotations

import threading
from typing import NamedTuple


class Numbered(NamedTuple):
    """What makes a command one that takes effect once, however often it is sent."""

    session: bytes
    number: int
    #: All answers up to this number have arrived, and may be forgotten.
    arrived: int


class Session:
    """The numbers of one client. Thread-safe."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._last = 0
        self._arrived = 0
        #: Beyond `_arrived`, because an earlier answer is missing.
        self._early: set[int] = set()

    def next(self) -> Numbered:
        with self._lock:
            self._last += 1
            return Numbered(self._name, self._last, self._arrived)

    def has_arrived(self, number: int) -> None:
        """Also when its caller has given up: nobody will ask for the answer again."""
        with self._lock:
            self._early.add(number)
            while self._arrived + 1 in self._early:
                self._arrived += 1
                self._early.discard(self._arrived)
