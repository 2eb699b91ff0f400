"""XCLAIM and XAUTOCLAIM: a consumer extends the leases of entries that it holds, and claims entries that were
delivered before and are ready again.

A lease belongs to its consumer until the lease expires, and no other consumer can take it. After that the
entry is ready again, and the next reader gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.settle import Extend, SettleResult
from fairlead.model.views import MessageInfo
from fairlead.server.resp.replies import value_of
from fairlead.server.resp.streams.entries import Entry, delivered_entry, shown_entry
from fairlead.server.resp.streams.entry_ids import read_entry_id, read_start
from fairlead.server.resp.streams.groups import missing_group
from fairlead.server.resp.streams.pending import First, PendingEntry, pending_entries
from fairlead.server.resp.streams.session import StreamsSession
from fairlead.server.resp.streams.steps import Steps
from fairlead.server.resp.streams.words import Words
from fairlead.verbs.claim import Claim
from fairlead.verbs.inspect import Peek
from fairlead.verbs.settle import Settle

_XCLAIM = "XCLAIM key group consumer min-idle-time id [id ...] [JUSTID] [LASTID lastid]"
_NO_OPTION = "JUSTID or LASTID: the broker measures times and counts deliveries, and nobody else sets them"
_DEFAULT_COUNT = 100
_MAX_COUNT = 10_000
_NOTHING_MORE = b"0-0"


def xclaim(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    """Extend the leases of entries that the consumer already holds."""
    given = Words(words, _XCLAIM)
    queue, group, consumer = given.text("key"), given.text("group"), given.text("consumer")
    min_idle_ms = given.number("min-idle-time")
    ids, just_ids = [read_entry_id(given.take())], False
    while not given.is_over:
        if option := given.option(b"IDLE", b"TIME", b"RETRYCOUNT", b"FORCE"):
            raise InvalidRequest("XCLAIM", _NO_OPTION, option.decode())
        if given.option(b"JUSTID"):
            just_ids = True
        elif given.option(b"LASTID"):
            read_entry_id(given.take())
        else:
            ids.append(read_entry_id(given.take()))
    if missing := (yield from missing_group(session, queue, group)):
        return missing
    asked_for = set(ids)
    found = First(len(ids), lambda one: one.entry_id in asked_for and one.idle_ms >= min_idle_ms)
    yield from pending_entries(session, queue, found.add, of_holder=session.holder(consumer))
    by_id = {one.entry_id: one for one in found.entries}
    wanted = [by_id[one] for one in dict.fromkeys(ids) if one in by_id]
    kept = yield from _extend(session, queue, consumer, wanted)
    return value_of(_shown(kept, just_ids=just_ids), session.protocol)


def xautoclaim(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    """Extend leases of the consumer that have been idle for at least `min-idle-time`. Then claim entries that
    were delivered before, while these are next in the queue. New entries are left to XREADGROUP.
    """
    given = Words(words, "XAUTOCLAIM key group consumer min-idle-time start [COUNT count] [JUSTID]")
    queue, group, consumer = given.text("key"), given.text("group"), given.text("consumer")
    min_idle_ms, start = given.number("min-idle-time"), read_start(given.take())
    count, just_ids = _DEFAULT_COUNT, False
    while option := given.option(b"COUNT", b"JUSTID"):
        if option == b"COUNT":
            count = min(given.number("COUNT"), _MAX_COUNT)
        else:
            just_ids = True
    given.end()
    if count == 0:
        raise InvalidRequest("COUNT", "1 or greater", count)
    if missing := (yield from missing_group(session, queue, group)):
        return missing
    # One entry more than is returned: its id is the start for the next call.
    found = First(count + 1, lambda one: one.entry_id >= start and one.idle_ms >= min_idle_ms)
    yield from pending_entries(session, queue, found.add, of_holder=session.holder(consumer))
    held = found.entries
    kept = yield from _extend(session, queue, consumer, held[:count])
    entries = _shown(kept, just_ids=just_ids)
    if len(held) > count:
        return value_of([held[count].entry_id.shown, entries, []], session.protocol)
    come_back = yield from _take_come_back(session, queue, consumer, count - len(held))
    taken = [delivered_entry(one) for one in come_back]
    entries += [entry_id for entry_id, _ in taken] if just_ids else taken
    return value_of([_NOTHING_MORE, entries, []], session.protocol)


def _extend(
    session: StreamsSession, queue: str, consumer: str, held: Sequence[PendingEntry]
) -> Steps[list[PendingEntry]]:
    """The entries whose leases were extended."""
    leases = [session.find_lease(queue, one.entry_id.raw_id, consumer) for one in held]
    known = [(one, lease) for one, lease in zip(held, leases, strict=True) if lease is not None]
    if not known:
        return []
    results: list[SettleResult] = yield Settle([Extend(lease) for _, lease in known])
    return [one for (one, _), result in zip(known, results, strict=True) if result.ok]


def _take_come_back(session: StreamsSession, queue: str, consumer: str, count: int) -> Steps[list[Delivery]]:
    if count == 0:
        return []
    ready: list[MessageInfo] = yield Peek(queue, count)
    come_back = len([*takewhile(lambda info: info.deliveries > 0, ready)])
    if come_back == 0:
        return []
    found: list[Delivery] = yield Claim(queue, come_back, consumer=consumer)
    session.remember(consumer, found)
    return found


def _shown(held: Sequence[PendingEntry], *, just_ids: bool) -> list[bytes | Entry]:
    if just_ids:
        return [one.entry_id.shown for one in held]
    return [shown_entry(one.info) for one in held if one.info is not None]
