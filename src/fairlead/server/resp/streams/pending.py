"""Leases as pending entries: XPENDING, and what other commands must know of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fairlead.errors import LimitReached, QueueNotFound
from fairlead.model.limits import MAX_ANSWER_BYTES
from fairlead.model.views import MessageInfo, QueueInfo
from fairlead.server.resp.replies import value_of
from fairlead.server.resp.streams.entry_ids import EntryId, entry_id_of_text
from fairlead.server.resp.streams.session import Session
from fairlead.server.resp.streams.steps import Steps
from fairlead.verbs.inspect import Peek
from fairlead.verbs.queues import ListQueues

#: Leases that one command looks at.
MAX_PENDING = 100_000
_PAGE = 1000


class Pending(NamedTuple):
    """`idle_ms`: how long ago the lease began, or was extended last. `info` is there where it was asked for."""

    entry_id: EntryId
    holder: str
    idle_ms: int
    deliveries: int
    info: MessageInfo | None


def find_queue_info(queue: str) -> Steps[QueueInfo | None]:
    listed: list[QueueInfo] = yield ListQueues(queue)
    return next((info for info in listed if info.name == queue), None)


def pending_entries(session: Session, queue: str, *, of_holder: str | None = None) -> Steps[list[Pending]]:
    """All that is leased, or what one holder has with its bodies, in the order of ids. Leases of the full visibility
    timeout are assumed: what was extended for another time has another idle time.
    """
    about = yield from find_queue_info(queue)
    if about is None:
        raise QueueNotFound(queue)
    timeout_ms = about.config.visibility_timeout_ms
    found: list[Pending] = []
    size, after = 0, None
    while page := (yield Peek(queue, _PAGE, "leased", after=after)):
        now_ms = session.now_ms()
        found += [
            _pending(info, timeout_ms, now_ms, is_whole=of_holder is not None)
            for info in page
            if of_holder in (None, info.consumer)
        ]
        if len(found) > MAX_PENDING:
            raise LimitReached("pending entries for this command", MAX_PENDING)
        if of_holder is not None:
            size += sum([len(info.payload) for info in page if info.consumer == of_holder])
        if size > MAX_ANSWER_BYTES:
            raise LimitReached("bytes of pending entries for this command", MAX_ANSWER_BYTES)
        after = page[-1].id
    return sorted(found, key=lambda one: one.entry_id)


def _pending(info: MessageInfo, timeout_ms: int, now_ms: int, *, is_whole: bool) -> Pending:
    idle_ms = max(0, timeout_ms - ((info.lease_until or now_ms) - now_ms))
    kept = info if is_whole else None
    return Pending(entry_id_of_text(info.id), info.consumer or "", idle_ms, info.deliveries, kept)


def summary_of(session: Session, found: Sequence[Pending]) -> bytes:
    if not found:
        return value_of([0, None, None, None], session.protocol)
    counts = Counter([session.own_name(one.holder) for one in found])
    by_name = [[name, str(count)] for name, count in sorted(counts.items())]
    return value_of(
        [len(found), found[0].entry_id.shown, found[-1].entry_id.shown, by_name], session.protocol
    )


def details_of(session: Session, found: Sequence[Pending]) -> bytes:
    rows = [[one.entry_id.shown, session.own_name(one.holder), one.idle_ms, one.deliveries] for one in found]
    return value_of(rows, session.protocol)
