"""Leases as pending entries: XPENDING, and the data about leases that other commands need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from typing import NamedTuple

from fairlead.errors import LimitReached, QueueNotFound
from fairlead.model.limits import MAX_ANSWER_BYTES, MAX_DURATION_MS
from fairlead.model.views import MessageInfo, QueueInfo
from fairlead.server.resp.replies import value_of
from fairlead.server.resp.streams.entry_ids import FIRST, LAST, EntryId, entry_id_of_text
from fairlead.server.resp.streams.session import StreamsSession
from fairlead.server.resp.streams.steps import Steps
from fairlead.verbs.inspect import Peek
from fairlead.verbs.queues import ListQueues

#: The largest number of pending entries that one command collects.
MAX_PENDING = 100_000
_PAGE = 1000


class PendingEntry(NamedTuple):
    """`idle_ms`: the time since the lease began or was last extended. `info` is None unless the entries of
    one holder were asked for.
    """

    entry_id: EntryId
    holder: str
    idle_ms: int
    deliveries: int
    info: MessageInfo | None


def find_queue_info(queue: str) -> Steps[QueueInfo | None]:
    listed: list[QueueInfo] = yield ListQueues(queue)
    return next((info for info in listed if info.name == queue), None)


def pending_entries(
    session: StreamsSession,
    queue: str,
    keep: Callable[[Iterable[PendingEntry]], object],
    *,
    of_holder: str | None = None,
) -> Steps[None]:
    """Pass all leased entries to `keep`, or those of one holder with their bodies, page by page and in no
    particular order. There may be very many entries, and reading all of them in one step would block other
    callers.

    Idle times assume that each lease lasts the full visibility timeout. They are wrong for leases that were
    extended by another time.
    """
    about = yield from find_queue_info(queue)
    if about is None:
        raise QueueNotFound(queue)
    timeout_ms = about.config.visibility_timeout_ms
    count, after = 0, None
    while page := (yield Peek(queue, _PAGE, "leased", after=after)):
        now_ms = session.now_ms()
        found = [
            _pending(info, timeout_ms, now_ms, is_whole=of_holder is not None)
            for info in page
            if of_holder in (None, info.consumer)
        ]
        count += len(found)
        if count > MAX_PENDING:
            raise LimitReached("pending entries for this command", MAX_PENDING)
        keep(found)
        after = page[-1].id


class First:
    """The first entries, in the order of ids, of the added entries that are `wanted`."""

    def __init__(self, count: int, wanted: Callable[[PendingEntry], bool] = lambda one: True) -> None:
        self.entries: list[PendingEntry] = []
        self._count = count
        self._wanted = wanted

    def add(self, entries: Iterable[PendingEntry]) -> None:
        more = [one for one in entries if self._wanted(one)]
        if not more:
            return
        self.entries = nsmallest(self._count, [*self.entries, *more], key=_entry_id_of)
        if _body_bytes(self.entries) > MAX_ANSWER_BYTES:
            raise LimitReached("bytes of pending entries for this command", MAX_ANSWER_BYTES)


class Held:
    """The number of entries that a holder has, and the idle time of the entry that was leased or extended
    last.
    """

    def __init__(self) -> None:
        self.count = 0
        self.idle_ms = MAX_DURATION_MS


class Summary:
    """Totals over all entries."""

    def __init__(self) -> None:
        self.count = 0
        self.first, self.last = LAST, FIRST
        self.by_holder: defaultdict[str, Held] = defaultdict(Held)

    def add(self, entries: Iterable[PendingEntry]) -> None:
        for one in entries:
            self.count += 1
            self.first, self.last = min(self.first, one.entry_id), max(self.last, one.entry_id)
            held = self.by_holder[one.holder]
            held.count += 1
            held.idle_ms = min(held.idle_ms, one.idle_ms)


def _entry_id_of(one: PendingEntry) -> EntryId:
    return one.entry_id


def _body_bytes(entries: Iterable[PendingEntry]) -> int:
    return sum([len(one.info.payload) for one in entries if one.info is not None])


def _pending(info: MessageInfo, timeout_ms: int, now_ms: int, *, is_whole: bool) -> PendingEntry:
    idle_ms = max(0, timeout_ms - ((info.lease_until or now_ms) - now_ms))
    kept = info if is_whole else None
    return PendingEntry(entry_id_of_text(info.id), info.consumer or "", idle_ms, info.deliveries, kept)


def summary_of(session: StreamsSession, found: Summary) -> bytes:
    if not found.count:
        return value_of([0, None, None, None], session.protocol)
    by_name = sorted([[session.own_name(name), str(held.count)] for name, held in found.by_holder.items()])
    return value_of([found.count, found.first.shown, found.last.shown, by_name], session.protocol)


def details_of(session: StreamsSession, found: Sequence[PendingEntry]) -> bytes:
    rows = [[one.entry_id.shown, session.own_name(one.holder), one.idle_ms, one.deliveries] for one in found]
    return value_of(rows, session.protocol)
