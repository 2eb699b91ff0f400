"""Reading the audit: who did what, to how many messages, from where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.model.access import AuditRecord, Right
from fairlead.request import Request, verb

if TYPE_CHECKING:
    from fairlead.broker.transaction import Transaction
    from fairlead.middleware.rights import Rights


@verb("audit.read")
class AuditRead(Request[list[AuditRecord]], frozen=True):
    """Entries of the audit, the newest first. `before` is the number of the last entry seen; `since` a time
    in epoch milliseconds.

    A filter looks through the 100,000 entries before that.
    """

    repeatable = True
    queue_field = ""

    limit: int = 100
    before: int | None = None
    who: str | None = None
    verb: str | None = None
    queue: str | None = None
    since: int | None = None

    def run(self, tx: Transaction) -> list[AuditRecord]:
        return tx.core.audit.read(
            limit=self.limit,
            before=self.before,
            who=self.who,
            verb=self.verb,
            queue=self.queue,
            since=self.since,
        )

    def authorize(self, rights: Rights) -> AuditRead:
        rights.need_everywhere(Right.ADMIN)
        return self
