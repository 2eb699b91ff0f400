"""Opening a session."""

from __future__ import annotations

from fairlead.decide.sessions import check_session
from fairlead.engine.sessions import open_session
from fairlead.engine.transaction import Transaction, WorkTable
from fairlead.model.session import SessionInfo
from fairlead.verbs.sessions import OpenSession

#: About what the rows of a session take.
_SESSION_BYTES = 256


def open_named(tx: Transaction, request: OpenSession) -> SessionInfo:
    name = check_session(request.session)
    tx.store.check_room(_SESSION_BYTES, in_reserve=True)
    session = open_session(tx, name)
    return SessionInfo(name, session.arrived, session.last)


WORK: WorkTable = {
    OpenSession: open_named,
}
