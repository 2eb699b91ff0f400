"""Recently used sessions in memory, without their answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.decide.sessions import renews_from_ms
from fairlead.records.session import RememberedAnswer

#: Rows of all sessions that memory knows, about 100 bytes each. Above this number the session that was read
#: first is dropped, and read again on its next use.
MAX_KNOWN_ANSWERS = 50_000


class Session:
    """A session, from its rows. A session without rows does not exist."""

    __slots__ = ("arrived", "bytes", "next_row", "renews_ms", "rows", "sizes", "used_ms")

    def __init__(self) -> None:
        self.arrived = 0
        self.used_ms = 0
        #: When a use extends the session again.
        self.renews_ms = 0
        #: By the number of each remembered request, including number 0: its row, and the size of its answer.
        self.rows: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.bytes = 0
        #: Higher than the existing rows.
        self.next_row = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Session):
            return NotImplemented
        return (self.arrived, self.used_ms, self.rows, self.sizes) == (
            other.arrived,
            other.used_ms,
            other.rows,
            other.sizes,
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def last(self) -> int:
        return max(self.arrived, *self.rows)

    def up_to(self, arrived: int) -> list[int]:
        """Remembered numbers up to that one, including 0."""
        if arrived - self.arrived >= len(self.rows):
            return [number for number in self.rows if number <= arrived]
        # Numbers that had arrived before have no rows.
        later = [number for number in range(self.arrived + 1, arrived + 1) if number in self.rows]
        return [0, *later] if 0 in self.rows else later

    def keep(self, row: int, record: RememberedAnswer) -> None:
        number, size = record.number, len(record.answer)
        self.rows[number] = row
        self.sizes[number] = size
        self.bytes += size
        if record.arrived > self.arrived:
            self.arrived = record.arrived
        if record.used_ms > self.used_ms:
            self.used_ms = record.used_ms
            if record.used_ms >= self.renews_ms:
                self.renews_ms = renews_from_ms(record.used_ms)
        if row >= self.next_row:
            self.next_row = row + 1


class SessionIndex:
    """By the keys of sessions. A cache of rows: `Memory.apply` keeps it up to date, and it may be cleared at
    any time.
    """

    def __init__(self) -> None:
        self.sessions: dict[bytes, Session] = {}
        self._answers = 0

    def add(self, key: bytes, session: Session) -> None:
        self._answers += len(session.rows)
        self._make_room()
        self.sessions[key] = session

    def remembered(self, key: bytes, row: int, record: RememberedAnswer, arrived: Sequence[int]) -> None:
        session = self.sessions.get(key)
        if session is None:
            return
        for number in arrived:
            del session.rows[number]
            session.bytes -= session.sizes.pop(number)
        session.keep(row, record)
        self._answers += 1 - len(arrived)
        if self._answers > MAX_KNOWN_ANSWERS:
            self._make_room()

    def forget(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            session = self.sessions.pop(key, None)
            if session is not None:
                self._answers -= len(session.rows)

    def clear(self) -> None:
        self.sessions.clear()
        self._answers = 0

    def _make_room(self) -> None:
        while self._answers > MAX_KNOWN_ANSWERS and self.sessions:
            gone = self.sessions.pop(next(iter(self.sessions)))
            self._answers -= len(gone.rows)
