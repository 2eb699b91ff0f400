"""The audit: who did what to how many, from where. Written before an act and completed after it, so no act
goes unrecorded.

The entry is committed before the act and not synced by itself: the sync that confirms the act covers every
commit before it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import msgspec

from fairlead.broker.core import Core
from fairlead.decide.arguments import check_count
from fairlead.decide.audit import MAX_ENTRY_BYTES, bounded_details, is_asked_for
from fairlead.errors import InvalidRequest, StoreFull, Unavailable
from fairlead.model.access import AuditRecord
from fairlead.model.facts import AuditForgotten, AuditSaved, Fact
from fairlead.model.limits import MAX_AUDIT_RECORDS, MAX_NUMBER, MAX_PAGE, SCAN_LIMIT
from fairlead.request import VERBS, Room

_log = logging.getLogger("fairlead.audit")

_PAGE = 1000


class AuditTrail:
    """`broker.audit_trail`. The verb `audit.read` reads it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._last = core.store.last_audit()

    def begin(
        self,
        who: str,
        name: str,
        source: str,
        verb: str,
        queue: str,
        details: Mapping[str, object] | None = None,
    ) -> AuditRecord:
        """An entry with the outcome "asked"; give it to `finish` when the act is over.

        Below the disk reserve it raises `StoreFull`, so that the act is refused. The entry of an act that
        always fits, or of a look at messages, may use the upper part of the reserve. When that is used too, a
        look is refused, and the entry of an act that always fits goes to the log and has the number 0.
        """
        told = bounded_details(details)
        core = self._core
        with core.lock:
            core.check_open()
            if not self._has_room(verb):
                record = AuditRecord(
                    0, core.clock.now_ms(), who, name, source, verb, queue, "asked", details=told
                )
                _log.warning(
                    "an act is recorded here only: the disk is below its reserve",
                    extra={"fields": msgspec.structs.asdict(record)},
                )
                return record
            number = self._last + 1
            record = AuditRecord(
                number, core.clock.now_ms(), who, name, source, verb, queue, "asked", details=told
            )
            facts: list[Fact] = [AuditSaved(record)]
            if number % _PAGE == 0 and number > MAX_AUDIT_RECORDS:
                facts.append(AuditForgotten(number - MAX_AUDIT_RECORDS))
            core.commit(facts)
            self._last = number
        return record

    def finish(
        self,
        record: AuditRecord,
        outcome: str,
        count: int | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """`details` are those that only the act itself could tell.

        On a full disk the entry stays as it was asked: the act is over, and what it gave (a secret, drained
        messages) must not be lost for want of a word about it.
        """
        core = self._core
        over = msgspec.structs.replace(
            record, outcome=outcome, count=count, details=record.details | bounded_details(details)
        )
        if not record.number:
            _log.warning(
                "an act that is recorded here only is over", extra={"fields": msgspec.structs.asdict(over)}
            )
            return
        with core.lock:
            core.check_open()
            try:
                core.commit([AuditSaved(over)])
            except Unavailable as full:
                _log.warning(
                    "the audit could not be completed",
                    extra={"fields": {"number": record.number, "outcome": outcome, "error": full.code}},
                )

    def read(
        self,
        *,
        limit: int = 100,
        before: int | None = None,
        who: str | None = None,
        verb: str | None = None,
        queue: str | None = None,
        since: int | None = None,
    ) -> list[AuditRecord]:
        """The newest first. `before` is the number of the last one seen; `since` a time in epoch
        milliseconds.

        A filter looks through the 100,000 entries before that.
        """
        check_count(limit, "limit", most=MAX_PAGE)
        if since is not None and type(since) is not int:
            raise InvalidRequest("since", "a time in epoch milliseconds", since)
        found: list[AuditRecord] = []
        for record in self._backwards(
            self._last + 1 if before is None else check_count(before, "before", most=MAX_NUMBER)
        ):
            if since is not None and record.at_ms < since:
                break
            if is_asked_for(record, who=who, verb=verb, queue=queue):
                found.append(record)
                if len(found) == limit:
                    break
        return found

    def _has_room(self, verb: str) -> bool:
        room = VERBS[verb].request.room if verb in VERBS else None
        try:
            self._core.store.check_room(MAX_ENTRY_BYTES, in_reserve=room in (Room.FITS, Room.READS))
        except StoreFull:
            if room is not Room.FITS:
                raise
            return False
        return True

    def _backwards(self, before: int) -> Iterator[AuditRecord]:
        for end in range(before, max(1, before - SCAN_LIMIT), -_PAGE):
            start = max(0, end - 1 - _PAGE)
            with self._core.lock:
                self._core.check_open()
                page = self._core.store.audit(start, end - 1 - start)
            # Where the oldest were forgotten, a page reaches into the one before it, which has been seen.
            yield from (record for record in reversed(page) if record.number < end)
