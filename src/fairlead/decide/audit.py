"""Which details of a request an audit entry keeps, and which entries a query selects."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.model.access import AuditRecord

#: The largest audit entry. Each entry is written twice.
MAX_ENTRY_BYTES = 8 * 1024
_MAX_DETAIL = 200


def bounded_details(details: Mapping[str, object] | None) -> dict[str, str]:
    """The details as text, within the size bound.

    Names become text too: a caller can send options whose names are no text, and an entry with such a name
    could not be read back.
    """
    return {str(field)[:_MAX_DETAIL]: str(value)[:_MAX_DETAIL] for field, value in (details or {}).items()}


def is_asked_for(record: AuditRecord, *, who: str | None, verb: str | None, queue: str | None) -> bool:
    """Whether a query for these values selects the entry. `who` is the id or the name of a key; None selects
    every value.
    """
    return (
        who in (None, record.who, record.name)
        and verb in (None, record.verb)
        and queue in (None, record.queue)
    )
