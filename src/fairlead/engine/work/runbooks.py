"""The runbooks in force. Their texts are rows that are not in memory. The engine uses one fact of them: an
external queue is elsewhere, and a request for it is refused with that reason (`Transaction.queue`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.engine.transaction import StepsTable, Transaction, WorkTable
from fairlead.errors import InvalidRequest, RunbookNotFound
from fairlead.model.checks import check_text
from fairlead.model.limits import MAX_RUNBOOK_BYTES
from fairlead.model.names import check_project
from fairlead.records.facts import RecordsChanged
from fairlead.request import Caller
from fairlead.runbook.model import external_queues, load_runbook
from fairlead.store.kv.port import Table
from fairlead.verbs.runbooks import RunbooksGet, RunbooksList, RunbooksSave

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Texts that one read of a listing returns.
_PAGE = 16


def save(engine: Engine, request: RunbooksSave, _: Caller) -> None:
    """Parses the text without the lock, because it may be long."""
    project = check_project(request.project)
    text = check_text(request.text, "text", MAX_RUNBOOK_BYTES)
    runbook = load_runbook(text)
    if (runbook.project or "") != project:
        raise InvalidRequest("text", f"the runbook of project {project!r}", runbook.project)
    external = external_queues(runbook)
    with engine.transaction() as tx:
        tx.add(RecordsChanged(Table.RUNBOOKS, {_key(project): text}))
        tx.add(RecordsChanged(Table.EXTERNAL_QUEUES, {_key(project): external or None}))
    engine.confirm()


def get(tx: Transaction, request: RunbooksGet) -> str:
    project = check_project(request.project)
    text: str | None = tx.record(Table.RUNBOOKS, _key(project))
    if text is None:
        raise RunbookNotFound(project)
    return text


def list_all(tx: Transaction, _: RunbooksList) -> dict[str, str]:
    found: dict[str, str] = {}
    start = b""
    while rows := tx.scan_records(Table.RUNBOOKS, start, limit=_PAGE):
        found.update({key[1:].decode(): text for key, text in rows})
        start = rows[-1][0] + b"\0"
    return found


def _key(project: str) -> bytes:
    """The key of a project. "" stands for no project, and a key is not empty."""
    return b"/" + project.encode()


WORK: WorkTable = {
    RunbooksGet: get,
    RunbooksList: list_all,
}

WORK_IN_STEPS: StepsTable = {
    RunbooksSave: save,
}
