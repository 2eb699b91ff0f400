"""Reading the audit, the newest entries first, a page in each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairlead.decide.arguments import check_count
from fairlead.decide.audit import is_asked_for
from fairlead.engine.audit_trail import entry_key
from fairlead.engine.transaction import StepsTable
from fairlead.errors import InvalidRequest
from fairlead.model.access import AuditRecord
from fairlead.model.limits import MAX_NUMBER, MAX_PAGE, SCAN_LIMIT
from fairlead.request import Caller
from fairlead.store.kv.port import Table
from fairlead.verbs.audit import AuditRead

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

_PAGE = 1000


def read(engine: Engine, request: AuditRead, _: Caller) -> list[AuditRecord]:
    limit = check_count(request.limit, "limit", most=MAX_PAGE)
    since = request.since
    if since is not None and type(since) is not int:
        raise InvalidRequest("since", "a time in epoch milliseconds", since)
    before = None if request.before is None else check_count(request.before, "before", most=MAX_NUMBER)
    found: list[AuditRecord] = []
    for record in _backwards(engine, before):
        if since is not None and record.at_ms < since:
            break
        if is_asked_for(record, who=request.who, verb=request.verb, queue=request.queue):
            found.append(record)
            if len(found) == limit:
                break
    return found


def _backwards(engine: Engine, before: int | None) -> Iterator[AuditRecord]:
    """At most `SCAN_LIMIT` entries, the newest first."""
    end = None if before is None else entry_key(before)
    for _ in range(SCAN_LIMIT // _PAGE):
        with engine.transaction() as tx:
            page = tx.scan_records(Table.AUDIT, end=end, limit=_PAGE, reverse=True)
        yield from (record for _, record in page)
        if len(page) < _PAGE:
            return
        end = page[-1][0]


WORK_IN_STEPS: StepsTable = {
    AuditRead: read,
}
