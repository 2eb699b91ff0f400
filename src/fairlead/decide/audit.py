"""What an entry of the audit keeps of a request, and which entries a reader asks for."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.model.access import AuditRecord

#: What an entry takes at most; it is written twice.
MAX_ENTRY_BYTES = 8 * 1024
_MAX_DETAIL = 200


def bounded_details(details: Mapping[str, object] | None) -> dict[str, str]:
    """Names too: a caller may send options whose names are no text, and an entry with one could not be read."""
    return {str(field)[:_MAX_DETAIL]: str(value)[:_MAX_DETAIL] for field, value in (details or {}).items()}


def is_asked_for(record: AuditRecord, *, who: str | None, verb: str | None, queue: str | None) -> bool:
    """`who` is the id or the name of a key; None asks for every value."""
    return (
        who in (None, record.who, record.name)
        and verb in (None, record.verb)
        and queue in (None, record.queue)
    )
