"""Opening a session."""

from __future__ import annotations

from fairlead.decide.sessions import check_session
from fairlead.engine.sessions import open_session
from fairlead.engine.transaction import Transaction, WorkTable
from fairlead.model.session import SessionInfo
from fairlead.verbs.sessions import OpenSession


def open_named(tx: Transaction, request: OpenSession) -> SessionInfo:
    name = check_session(request.session)
    session = open_session(tx, name)
    return SessionInfo(name, session.arrived, session.last)


WORK: WorkTable = {
    OpenSession: open_named,
}
