"""Invariants of sessions: no answer is kept after it has arrived, each session is forgotten in time, and
memory agrees with its rows.
"""

from __future__ import annotations

from fairlead.decide.sessions import session_ends_ms
from fairlead.engine.memory import Memory
from fairlead.engine.session_index import Session
from fairlead.engine.sessions import session_of_rows
from fairlead.model.limits import MAX_SESSION_ANSWERS
from fairlead.store.kv.port import KeyValueStore
from fairlead.store.rows import read_answers, read_session_ends, session_end_key


def broken_session_laws(memory: Memory, store: KeyValueStore) -> list[str]:
    stored = stored_sessions(store)
    broken = []
    for key, session in stored.items():
        numbers = session.rows.keys() - {0}
        if min(numbers, default=session.arrived + 1) <= session.arrived:
            broken.append(f"session {key!r} has kept an answer that has arrived")
        if len(numbers) > MAX_SESSION_ANSWERS:
            broken.append(f"session {key!r} has {len(numbers)} answers")
    ends = [session_end_key(session_ends_ms(session.used_ms), key) for key, session in stored.items()]
    if sorted(ends) != read_session_ends(store):
        broken.append("sessions are not forgotten when they should be")
    broken += [
        f"session {key!r} in memory is not what is stored"
        for key, session in memory.sessions.sessions.items()
        if stored.get(key) != session
    ]
    return broken


def stored_sessions(store: KeyValueStore) -> dict[bytes, Session]:
    found = {key: session_of_rows(rows.items()) for key, rows in read_answers(store).items()}
    return {key: session for key, session in found.items() if session is not None}
