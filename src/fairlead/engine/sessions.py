"""Sessions as they are stored, and when they are forgotten. The rule itself, one effect and the first answer,
is in `work/remembered.py`.

The rows of a session are its remembered answers; the row that was written last also holds everything else
about the session (`records/session.py`). A request takes the row of an answer that has arrived, so it writes
one row, and a session exists while it has a row. It must be opened: if its first request created it, a late
copy of that request would have a second effect once the session is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.clock import Clock
from fairlead.decide.sessions import session_ends_ms
from fairlead.engine.session_index import Session
from fairlead.engine.transaction import Transaction
from fairlead.model.limits import MAX_SESSION_ANSWERS
from fairlead.records.facts import AnswerRemembered, RecordsChanged, StateFact
from fairlead.records.session import RememberedAnswer
from fairlead.store.kv.port import Table
from fairlead.store.rows import (
    answer_key,
    end_of_session_rows,
    row_of_answer,
    session_end_key,
    session_key,
    session_of_end,
)

_SWEEP_EVERY_MS = 60_000
#: Sessions, and about how many answers, that one step forgets.
_STEP_SESSIONS = 100
_STEP_ANSWERS = 1000


def open_session(tx: Transaction, name: str) -> Session:
    """The session of that name, created if there is none."""
    key = session_key(tx.caller.key_id, name)
    session = find_session(tx, key)
    if session is None:
        session = Session()
        tx.memory.sessions.add(key, session)
    use_session(tx, key, session)
    return session


def close_session(tx: Transaction, name: str) -> bool:
    """Forget the session of that name. Returns whether there was one."""
    key = session_key(tx.caller.key_id, name)
    session = find_session(tx, key)
    if session is None:
        return False
    answers = {answer_key(key, row): None for row in session.rows.values()}
    ends = {session_end_key(session_ends_ms(session.used_ms), key): None}
    tx.add(RecordsChanged(Table.ANSWERS, answers))
    tx.add(RecordsChanged(Table.SESSION_ENDS, ends))
    return True


def find_session(tx: Transaction, key: bytes) -> Session | None:
    known = tx.memory.sessions
    session = known.sessions.get(key)
    if session is None:
        session = session_of_rows(
            tx.scan_records(Table.ANSWERS, key, end_of_session_rows(key), limit=MAX_SESSION_ANSWERS + 2)
        )
        if session is not None:
            known.add(key, session)
    return session


def session_of_rows(rows: Iterable[tuple[bytes, RememberedAnswer]]) -> Session | None:
    session = Session()
    for key, record in rows:
        session.keep(row_of_answer(key), record)
    return session if session.rows else None


def use_session(tx: Transaction, key: bytes, session: Session, arrived: int = 0) -> None:
    """Store that it was used, and which answers have arrived, if that is news."""
    if arrived > session.arrived or not session.rows or tx.now_ms >= session.renews_ms:
        for fact in facts_of_answer(key, session, 0, arrived, tx.now_ms):
            tx.add(fact)


def facts_of_answer(
    key: bytes,
    session: Session,
    number: int,
    arrived: int,
    now_ms: int,
    verb: str = "",
    answer: bytes = b"",
) -> tuple[StateFact, ...]:
    """The facts that store the answer in the row of one that has arrived, or in a new one."""
    arrived, used_ms = max(session.arrived, arrived), max(session.used_ms, now_ms)
    gone = session.up_to(arrived)
    rows = [session.rows[one] for one in gone]
    row = rows.pop() if rows else session.next_row
    record = RememberedAnswer(number, arrived, used_ms, verb, answer)
    remembered = AnswerRemembered(key, row, record, gone, rows)
    if used_ms < session.renews_ms:
        return (remembered,)
    ends: dict[bytes, bool | None] = {session_end_key(session_ends_ms(used_ms), key): True}
    if session.rows:
        ends[session_end_key(session_ends_ms(session.used_ms), key)] = None
    return remembered, RecordsChanged(Table.SESSION_ENDS, ends)


class SessionSweep:
    """Forgets sessions that were not used for long. Runs once a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_ms = clock.monotonic_ms() + _SWEEP_EVERY_MS

    def is_due(self) -> bool:
        """Whether it is time for a step."""
        return self._clock.monotonic_ms() >= self._next_ms

    def run(self, tx: Transaction) -> bool:
        """One bounded step; False if there is nothing to forget."""
        if not self.is_due():
            return False
        ended = tx.scan_records(
            Table.SESSION_ENDS, end=session_end_key(tx.now_ms + 1, b""), limit=_STEP_SESSIONS
        )
        if not ended:
            self._next_ms = self._clock.monotonic_ms() + _SWEEP_EVERY_MS
            return False
        answers: dict[bytes, None] = {}
        ends: dict[bytes, None] = {}
        for end_key, _ in ended:
            key = session_of_end(end_key)
            rows = tx.scan_records(
                Table.ANSWERS, key, end_of_session_rows(key), limit=MAX_SESSION_ANSWERS + 2
            )
            answers.update(dict.fromkeys([row_key for row_key, _ in rows]))
            ends[end_key] = None
            if len(answers) >= _STEP_ANSWERS:
                break
        tx.add(RecordsChanged(Table.ANSWERS, answers))
        tx.add(RecordsChanged(Table.SESSION_ENDS, ends))
        return True
