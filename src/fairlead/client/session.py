"""Sessions of a client, without I/O. Each request that changes something gets a number, so that it takes
effect once, however often it is sent.
"""

from __future__ import annotations

import secrets
import threading

from fairlead.decide.sessions import check_numbers, check_session
from fairlead.wire.numbered import Numbered

#: The most sessions of one client. Usually a session has one request under way; more concurrent calls than
#: this share sessions.
MAX_SESSIONS = 64
#: How far the numbers of a shared session may be ahead of its oldest request. The server remembers 1,024
#: answers.
_MAX_AHEAD = 512


class ClientSession:
    """A session of a client. Each request states that all before the oldest one under way were answered or
    given up.
    """

    __slots__ = ("_last", "name", "under_way")

    def __init__(self) -> None:
        self.name = secrets.token_hex(12)
        self.under_way: set[int] = set()
        self._last = 0

    def next(self) -> Numbered:
        self._last += 1
        self.under_way.add(self._last)
        oldest = self._last if len(self.under_way) == 1 else min(self.under_way)
        return Numbered(session=self.name, number=self._last, arrived=oldest - 1)

    def has_room(self) -> bool:
        """Whether a session in use may be shared."""
        return self._last - min(self.under_way) < _MAX_AHEAD


class Sessions:
    """The sessions that the server has opened for this client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, ClientSession] = {}
        self._idle: list[ClientSession] = []
        self._shared = 0
        #: Whether a copy of a request may still be under way. If so, sessions are left to expire, so that the
        #: copy finds its session or is refused because there was none.
        self.has_copies = False

    def take(self, *, is_opening: bool = False) -> Numbered | None:
        """A place for a request; None: open a session for it. `is_opening`: another call is opening a
        session, so a session in use is better than waiting.
        """
        with self._lock:
            if self._idle:
                session: ClientSession | None = self._idle.pop()
            else:
                session = self._find_shared() if is_opening or len(self._open) >= MAX_SESSIONS else None
            return None if session is None else session.next()

    def add(self, session: ClientSession) -> Numbered:
        """The first place in a session that the server has opened."""
        with self._lock:
            self._open[session.name] = session
            return session.next()

    def give_back(self, place: Numbered | None) -> None:
        """The request at this place was answered or given up."""
        if place is None:
            return
        with self._lock:
            session = self._open.get(place.session)
            if session is not None:
                session.under_way.discard(place.number)
                if not session.under_way:
                    self._idle.append(session)

    def forget(self, place: Numbered) -> None:
        """The server does not know this session, and will not know it again."""
        with self._lock:
            self._open.pop(place.session, None)

    def end(self) -> list[str]:
        """The sessions that the server may forget. The others expire."""
        with self._lock:
            return [] if self.has_copies else [session.name for session in self._idle]

    def _find_shared(self) -> ClientSession | None:
        """A session in use, by rotation: a search for the best one would cost time in each call."""
        sessions = list(self._open.values())
        for _ in sessions:
            self._shared = (self._shared + 1) % len(sessions)
            if sessions[self._shared].has_room():
                return sessions[self._shared]
        return None


def place_of(session: object, number: object, arrived: object) -> Numbered:
    """A place in a session that the caller manages. Raises the errors that the engine would raise."""
    check_session(session)
    check_numbers(number, arrived)
    return Numbered(session=session, number=number, arrived=arrived)
