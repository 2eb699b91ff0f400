"""Sessions of a client, without I/O: each request that changes something gets a number, so that it takes effect once,
however often it is sent.
"""

from __future__ import annotations

import secrets
import threading

from fairlead.decide.sessions import check_numbers, check_session
from fairlead.wire.numbered import Numbered


class Session:
    """Has one request under way at a time. The next one says that all before it were answered, or given up."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(12)
        self._number = 0

    def next(self) -> Numbered:
        self._number += 1
        return Numbered(session=self.name, number=self._number, arrived=self._number - 1)


class IdleSessions:
    """Those that the server has opened and no request uses. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Session] = []

    def take(self) -> Session | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def give_back(self, session: Session | None) -> None:
        if session is not None:
            with self._lock:
                self._idle.append(session)


def place_of(session: object, number: object, arrived: object) -> Numbered:
    """In a session of the caller's own. Raises what the engine would raise."""
    check_session(session)
    check_numbers(number, arrived)
    return Numbered(session=session, number=number, arrived=arrived)
