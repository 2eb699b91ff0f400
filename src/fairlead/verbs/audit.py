"""Reading the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fairlead.fields import PageLimit
from fairlead.model.access import AuditRecord, Right
from fairlead.model.limits import MAX_NUMBER
from fairlead.request import Request, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


@verb("audit.read")
class AuditRead(Request[list[AuditRecord]], frozen=True):
    """Entries of the audit, the newest first. `before` is the number of the last entry seen; `since` a time
    in epoch milliseconds.

    A filter searches the 100,000 entries before that number.
    """

    repeatable = True
    queue_field = ""
    slow = True

    limit: PageLimit = 100
    before: Annotated[
        int | None, Meta(description="Only entries before the one of this number.", ge=1, le=MAX_NUMBER)
    ] = None
    who: Annotated[str | None, Meta(description="Only what this key did, by its id or name.")] = None
    verb: Annotated[str | None, Meta(description="Only this act, such as `purge` or `keys.create`.")] = None
    queue: Annotated[str | None, Meta(description="Only what was done to this queue.")] = None
    since: Annotated[
        int | None, Meta(description="Only entries from this time on, in epoch milliseconds.")
    ] = None

    def authorize(self, rights: Rights) -> AuditRead:
        rights.need_everywhere(Right.ADMIN)
        return self
