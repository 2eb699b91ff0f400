"""The audit as rows: an entry is written before a call runs and completed after it, so no audited call goes
unrecorded. Entries are not in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from fairlead.decide.audit import MAX_ENTRY_BYTES, bounded_details
from fairlead.errors import StoreFull, Unavailable
from fairlead.model.access import AuditRecord
from fairlead.model.limits import MAX_AUDIT_RECORDS
from fairlead.records.facts import RecordsChanged
from fairlead.request import VERBS, Room
from fairlead.store.kv.port import Table

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine
    from fairlead.engine.transaction import Transaction

_log = logging.getLogger("fairlead.audit")

#: The oldest entries are deleted each time this many new ones were written.
_FORGET_EVERY = 1000


def entry_key(number: int) -> bytes:
    return number.to_bytes(8, "big")


class AuditTrail:
    """`broker.audit_trail`, which the verb `audit.read` reads.

    The sync that confirms a call covers the entry that was written before it. `finish` waits for a sync of
    its own, so that a refusal or a view of messages, too, is in the audit before its caller has the answer.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(
        self,
        who: str,
        name: str,
        source: str,
        verb: str,
        queue: str,
        details: Mapping[str, object] | None = None,
    ) -> AuditRecord:
        """Write an entry with the outcome "asked". Pass it to `finish` when the call ends.

        Below the disk reserve this raises `StoreFull`, so that the call is refused. The entry of a call that
        always fits, or of a view of messages, may use the upper part of the reserve. When that is used up
        too, a view is refused, and the entry of a call that always fits goes to the log and has the number 0.
        """
        at_ms = self._engine.clock.now_ms()
        asked = AuditRecord(
            0, at_ms, who, name, source, verb, queue, "asked", details=bounded_details(details)
        )
        with self._engine.transaction() as tx:
            if not _has_room(tx, verb):
                fields = {"fields": asdict(asked)}
                _log.warning("an act is recorded here only: the disk is below its reserve", extra=fields)
                return asked
            return _number(tx, asked)

    def finish(
        self,
        record: AuditRecord,
        outcome: str,
        count: int | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """Complete the entry. `details` are those that are known only after the call.

        On a full disk the entry keeps the outcome "asked": the call has ended, and its answer (a secret,
        drained messages) must not be lost because the entry cannot be completed.
        """
        told = record.details | bounded_details(details)
        over = replace(record, outcome=outcome, count=count, details=told)
        if not record.number:
            fields = {"fields": asdict(over)}
            _log.warning("an act that is recorded here only is over", extra=fields)
            return
        try:
            with self._engine.transaction() as tx:
                tx.add(RecordsChanged(Table.AUDIT, {entry_key(record.number): over}))
        except Unavailable as full:
            known = {"number": record.number, "outcome": outcome, "error": full.code}
            _log.warning("the audit could not be completed", extra={"fields": known})
        self._engine.confirm()


def add_entry(tx: Transaction, verb: str, queue: str, details: Mapping[str, object]) -> None:
    """Write an entry for a change that follows from a request of another kind, in the same transaction. On a
    full disk it goes to the log.
    """
    caller = tx.caller
    done = AuditRecord(
        0,
        tx.wall_ms,
        caller.who,
        caller.name,
        caller.source,
        verb,
        queue,
        "done",
        None,
        bounded_details(details),
    )
    try:
        tx.store.check_room(MAX_ENTRY_BYTES, in_reserve=True)
    except StoreFull:
        _log.warning(
            "an act is recorded here only: the disk is below its reserve", extra={"fields": asdict(done)}
        )
        return
    _number(tx, done)


def _number(tx: Transaction, record: AuditRecord) -> AuditRecord:
    """Add the record as the newest entry."""
    newest = tx.scan_records(Table.AUDIT, limit=1, reverse=True)
    numbered = replace(record, number=newest[0][1].number + 1 if newest else 1)
    forgotten = _too_old(tx, numbered.number)
    tx.add(RecordsChanged(Table.AUDIT, {entry_key(numbered.number): numbered, **forgotten}))
    return numbered


def _has_room(tx: Transaction, verb: str) -> bool:
    room = VERBS[verb].request.room if verb in VERBS else None
    try:
        tx.store.check_room(MAX_ENTRY_BYTES, in_reserve=room in (Room.FITS, Room.READS))
    except StoreFull:
        if room is not Room.FITS:
            raise
        return False
    return True


def _too_old(tx: Transaction, number: int) -> dict[bytes, Any]:
    """Entries to delete with this write: from time to time, twice as many as were added, so that a lowered
    bound is reached eventually.
    """
    if number % _FORGET_EVERY or number <= MAX_AUDIT_RECORDS:
        return {}
    end = entry_key(number - MAX_AUDIT_RECORDS)
    old = tx.scan_records(Table.AUDIT, end=end, limit=2 * _FORGET_EVERY)
    return dict.fromkeys([key for key, _ in old], None)
