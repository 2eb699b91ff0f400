"""Opening and closing a session."""

from __future__ import annotations

from fairlead.decide.sessions import check_session
from fairlead.engine.sessions import close_session, open_session
from fairlead.engine.transaction import Transaction, WorkTable
from fairlead.model.session import SessionInfo
from fairlead.verbs.sessions import CloseSession, OpenSession

#: The approximate size of a session's rows.
_SESSION_BYTES = 256


def open_named(tx: Transaction, request: OpenSession) -> SessionInfo:
    name = check_session(request.session)
    tx.store.check_room(_SESSION_BYTES, in_reserve=True)
    session = open_session(tx, name)
    return SessionInfo(name, session.arrived, session.last)


def close_named(tx: Transaction, request: CloseSession) -> bool:
    return close_session(tx, check_session(request.session))


WORK: WorkTable = {
    CloseSession: close_named,
    OpenSession: open_named,
}
