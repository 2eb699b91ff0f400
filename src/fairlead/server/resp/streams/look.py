"""XLEN, XRANGE, XREVRANGE, XPENDING and XINFO: reads that deliver nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from fairlead.errors import InvalidRequest, QueueNotFound
from fairlead.model.views import MessageInfo, QueueStats
from fairlead.server.resp.replies import value_of
from fairlead.server.resp.streams.entries import shown_entry
from fairlead.server.resp.streams.entry_ids import (
    FIRST,
    LAST,
    MAX_SEQ,
    EntryId,
    bound_at,
    entry_id_of_text,
    read_end,
    read_start,
)
from fairlead.server.resp.streams.groups import find_group, missing_group
from fairlead.server.resp.streams.pending import (
    First,
    PendingEntry,
    Summary,
    details_of,
    pending_entries,
    summary_of,
)
from fairlead.server.resp.streams.replies import NO_KEY
from fairlead.server.resp.streams.session import StreamsSession
from fairlead.server.resp.streams.steps import Steps
from fairlead.server.resp.streams.words import Words
from fairlead.verbs.browse import Browse
from fairlead.verbs.inspect import Stats

#: The largest number of entries of a range, also without COUNT, and the approximate limit of their bytes.
MAX_RANGE = 10_000
MAX_RANGE_BYTES = 64 * 1024 * 1024
#: The first search for the last entries covers this time, and each further one twice as much as the one
#: before.
_FIRST_SPAN_MS = 1000
_PAGE = 1000


def xlen(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    given = Words(words, "XLEN key")
    queue = given.text("key")
    given.end()
    try:
        stats: QueueStats = yield Stats(queue)
    except QueueNotFound:
        return b":0\r\n"
    return b":%d\r\n" % _length(stats)


def xrange(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    given = Words(words, "XRANGE key start end [COUNT count]")
    queue, start, end = given.text("key"), read_start(given.take()), read_end(given.take())
    count = _count(given)
    try:
        found = yield from _first(queue, start, end, count)
    except QueueNotFound:
        found = []
    return value_of([shown_entry(info) for info in found], session.protocol)


def xrevrange(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    given = Words(words, "XREVRANGE key end start [COUNT count]")
    queue, end, start = given.text("key"), read_end(given.take()), read_start(given.take())
    count = _count(given)
    try:
        found = yield from _last(session, queue, start, end, count)
    except QueueNotFound:
        found = []
    return value_of([shown_entry(info) for info in reversed(found)], session.protocol)


def xpending(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    given = Words(words, "XPENDING key group [[IDLE min-idle-time] start end count [consumer]]")
    queue, group = given.text("key"), given.text("group")
    if given.is_over:
        if missing := (yield from missing_group(session, queue, group)):
            return missing
        summary = Summary()
        yield from pending_entries(session, queue, summary.add)
        return summary_of(session, summary)
    min_idle_ms = given.number("IDLE") if given.option(b"IDLE") else 0
    start, end, count = read_start(given.take()), read_end(given.take()), given.number("count")
    holder = None if given.is_over else session.holder(given.text("consumer"))
    given.end()
    if missing := (yield from missing_group(session, queue, group)):
        return missing

    def is_wanted(one: PendingEntry) -> bool:
        return start <= one.entry_id <= end and one.idle_ms >= min_idle_ms and holder in (None, one.holder)

    found = First(count, is_wanted)
    yield from pending_entries(session, queue, found.add)
    return details_of(session, found.entries)


def xinfo(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    given = Words(words, "XINFO <STREAM key | GROUPS key | CONSUMERS key group>")
    kind, queue = given.take().upper(), given.text("key")
    try:
        match kind:
            case b"STREAM":
                return (yield from _stream_info(session, queue, given))
            case b"GROUPS":
                given.end()
                return (yield from _group_infos(session, queue))
            case b"CONSUMERS":
                group = given.text("group")
                given.end()
                missing = yield from missing_group(session, queue, group)
                return missing or (yield from _consumer_infos(session, queue))
    except QueueNotFound:
        return NO_KEY
    raise InvalidRequest("XINFO", "STREAM, GROUPS or CONSUMERS", kind[:80].decode(errors="replace"))


def _stream_info(session: StreamsSession, queue: str, given: Words) -> Steps[bytes]:
    if not given.is_over:
        raise InvalidRequest("XINFO", "STREAM key without FULL; see XPENDING and XINFO CONSUMERS", "FULL")
    stats: QueueStats = yield Stats(queue)
    group = yield from find_group(session, queue)
    first = yield from _first(queue, FIRST, LAST, 1)
    last = yield from _last(session, queue, FIRST, LAST, 1)
    first_id = entry_id_of_text(first[0].id).shown if first else FIRST.shown
    about: dict[str, Any] = {
        "length": _length(stats),
        "radix-tree-keys": 0,
        "radix-tree-nodes": 0,
        "last-generated-id": entry_id_of_text(last[0].id).shown if last else FIRST.shown,
        "max-deleted-entry-id": FIRST.shown,
        "entries-added": stats.totals.enqueued,
        "recorded-first-entry-id": first_id,
        "groups": 1 if group else 0,
        "first-entry": shown_entry(first[0]) if first else None,
        "last-entry": shown_entry(last[0]) if last else None,
    }
    return value_of(about, session.protocol)


def _group_infos(session: StreamsSession, queue: str) -> Steps[bytes]:
    stats: QueueStats = yield Stats(queue)
    group = yield from find_group(session, queue)
    if not group:
        return value_of([], session.protocol)
    found = Summary()
    yield from pending_entries(session, queue, found.add)
    about: dict[str, Any] = {
        "name": group,
        "consumers": len(found.by_holder),
        "pending": found.count,
        "last-delivered-id": found.last.shown,
        "entries-read": None,
        "lag": stats.ready + stats.waiting,
    }
    return value_of([about], session.protocol)


def _consumer_infos(session: StreamsSession, queue: str) -> Steps[bytes]:
    """The consumers that hold entries."""
    found = Summary()
    yield from pending_entries(session, queue, found.add)
    by_name = {session.own_name(holder): held for holder, held in found.by_holder.items()}
    infos = [
        {"name": name, "pending": held.count, "idle": held.idle_ms, "inactive": held.idle_ms}
        for name, held in sorted(by_name.items())
    ]
    return value_of(infos, session.protocol)


def _length(stats: QueueStats) -> int:
    """The number of live messages, including waiting and leased ones."""
    return stats.ready + stats.waiting + stats.leased


def _count(given: Words) -> int:
    count = min(given.number("COUNT"), MAX_RANGE) if given.option(b"COUNT") else MAX_RANGE
    given.end()
    return count


def _first(queue: str, start: EntryId, end: EntryId, count: int) -> Steps[list[MessageInfo]]:
    """The first live messages of a range."""
    found: list[MessageInfo] = []
    size, after = 0, ""
    while len(found) < count and size < MAX_RANGE_BYTES:
        page: list[MessageInfo] = yield _browse(queue, start, end, after, count)
        if not page:
            break
        found += [info for info in page if _is_within(info, start, end)]
        size += _bytes_of(page)
        after = page[-1].id
    return found[:count]


def _last(
    session: StreamsSession, queue: str, start: EntryId, end: EntryId, count: int
) -> Steps[list[MessageInfo]]:
    """The last live messages of a range. Searches go backwards from its end, and each covers twice as much
    time as the one before.
    """
    first = yield from _first(queue, start, end, 1)
    if not first:
        return []
    first_ms = entry_id_of_text(first[0].id).ms
    found: list[MessageInfo] = []
    upper, span_ms = end, _FIRST_SPAN_MS
    lower_ms = min(end.ms, session.now_ms()) - span_ms
    while True:
        lower = max(start, EntryId(lower_ms, 0))
        found = (yield from _tail(queue, lower, upper, count - len(found))) + found
        if len(found) >= count or lower.ms <= first_ms or _bytes_of(found) >= MAX_RANGE_BYTES:
            return found
        span_ms *= 2
        upper, lower_ms = EntryId(lower.ms - 1, MAX_SEQ), lower.ms - span_ms


def _tail(queue: str, start: EntryId, end: EntryId, count: int) -> Steps[list[MessageInfo]]:
    """The last entries between two ids. Reads all entries between them."""
    kept: deque[MessageInfo] = deque()
    size, after = 0, ""
    while page := (yield _browse(queue, start, end, after, _PAGE)):
        found = [info for info in page if _is_within(info, start, end)]
        kept.extend(found)
        size += _bytes_of(found)
        while len(kept) > count or (kept and size - len(kept[0].payload) >= MAX_RANGE_BYTES):
            size -= len(kept.popleft().payload)
        after = page[-1].id
    return [*kept]


def _browse(queue: str, start: EntryId, end: EntryId, after: str, limit: int) -> Browse:
    low, high = bound_at(start.ms), bound_at(end.ms + 1)
    return Browse(
        queue, low=low, high="" if end.ms >= LAST.ms else high, limit=min(limit, _PAGE), after=after
    )


def _is_within(info: MessageInfo, start: EntryId, end: EntryId) -> bool:
    return info.where != "done" and start <= entry_id_of_text(info.id) <= end


def _bytes_of(infos: Iterable[MessageInfo]) -> int:
    return sum([len(info.payload) for info in infos])
