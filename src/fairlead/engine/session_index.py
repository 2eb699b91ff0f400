"""What memory knows of sessions: those that were used lately, without their answers."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.records.session import RememberedAnswer
from fairlead.store.rows import number_of_answer, session_of_answer

#: Answers of all sessions that memory knows; past it the session that was read first is forgotten, and read again
#: when it is used. About 100 bytes each.
MAX_KNOWN_ANSWERS = 50_000


class Session:
    """A session, from its rows. One without rows does not exist."""

    __slots__ = ("arrived", "bytes", "sizes", "used_ms")

    def __init__(self) -> None:
        self.arrived = 0
        self.used_ms = 0
        #: The size of each remembered answer by its number; the row of number 0 has none.
        self.sizes: dict[int, int] = {}
        self.bytes = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Session):
            return NotImplemented
        return (self.arrived, self.used_ms, self.sizes) == (other.arrived, other.used_ms, other.sizes)

    __hash__ = None  # type: ignore[assignment]

    @property
    def last(self) -> int:
        return max(self.arrived, *self.sizes)

    def up_to(self, arrived: int) -> list[int]:
        """Numbers with rows up to there, 0 included."""
        if arrived - self.arrived >= len(self.sizes):
            return [number for number in self.sizes if number <= arrived]
        # Rows up to where answers had arrived before are gone.
        later = [number for number in range(self.arrived + 1, arrived + 1) if number in self.sizes]
        return [0, *later] if 0 in self.sizes else later

    def changed(self, number: int, record: RememberedAnswer | None) -> None:
        self.bytes -= self.sizes.pop(number, 0)
        if record is not None:
            self.sizes[number] = len(record.answer)
            self.bytes += len(record.answer)
            self.arrived = max(self.arrived, record.arrived)
            self.used_ms = max(self.used_ms, record.used_ms)


class SessionIndex:
    """By the keys of sessions. A cache of rows: `Memory.apply` keeps it up to date, and it may be cleared at any time."""

    def __init__(self) -> None:
        self.sessions: dict[bytes, Session] = {}
        self._answers = 0

    def add(self, key: bytes, session: Session) -> None:
        self._answers += len(session.sizes)
        self._make_room()
        self.sessions[key] = session

    def answers_changed(self, rows: Mapping[bytes, RememberedAnswer | None]) -> None:
        for row_key, record in rows.items():
            key = session_of_answer(row_key)
            session = self.sessions.get(key)
            if session is None:
                continue
            before = len(session.sizes)
            session.changed(number_of_answer(row_key), record)
            self._answers += len(session.sizes) - before
            if not session.sizes:
                del self.sessions[key]
        if self._answers > MAX_KNOWN_ANSWERS:
            self._make_room()

    def clear(self) -> None:
        self.sessions.clear()
        self._answers = 0

    def _make_room(self) -> None:
        while self._answers > MAX_KNOWN_ANSWERS and self.sessions:
            gone = self.sessions.pop(next(iter(self.sessions)))
            self._answers -= len(gone.sizes)
