"""XREADGROUP, XACK and XNACK."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fairlead.errors import InvalidRequest, MessageNotFound, QueueNotFound
from fairlead.model.delivery import Delivery
from fairlead.model.durations import show_ms
from fairlead.model.settle import Complete, Fail, LeaseRef, Release, Settlement, SettleResult
from fairlead.server.resp.replies import value_of
from fairlead.server.resp.streams.entries import Entry, delivered_entry, shown_entry
from fairlead.server.resp.streams.entry_ids import EntryId, read_entry_id
from fairlead.server.resp.streams.groups import missing_group
from fairlead.server.resp.streams.pending import First, pending_entries
from fairlead.server.resp.streams.replies import NO_ARRAY, no_group
from fairlead.server.resp.streams.session import StreamsSession
from fairlead.server.resp.streams.steps import Steps
from fairlead.server.resp.streams.words import Words
from fairlead.verbs.claim import Claim
from fairlead.verbs.settle import Ack, Nack, Settle

#: The number of entries for a reader without COUNT. It is bounded, because the leases of all entries begin at
#: once.
DEFAULT_COUNT = 100
#: The wait for BLOCK 0.
_FOREVER_MS = 365 * 24 * 3_600_000

_XREADGROUP = "XREADGROUP GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS key [key ...] id [id ...]"
_NO_CLAIM = (
    "COUNT, BLOCK, NOACK or STREAMS: an entry whose lease has ended is delivered again like a new one, so there is nothing to"
    " claim"
)
_MODES: dict[bytes, Callable[[LeaseRef], Settlement]] = {
    b"SILENT": Release,
    b"FAIL": lambda lease: Fail(lease, "XNACK FAIL"),
    b"FATAL": lambda lease: Fail(lease, "XNACK FATAL", dead=True),
}


class _Reading(NamedTuple):
    group: str
    queues: list[str]
    consumer: str
    limit: int
    block_ms: int | None
    must_ack: bool


def xreadgroup(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    given = Words(words, _XREADGROUP)
    given.must_be(b"GROUP")
    group, consumer = given.text("group"), given.text("consumer")
    count, block_ms, must_ack = DEFAULT_COUNT, None, True
    while option := given.option(b"COUNT", b"BLOCK", b"NOACK", b"CLAIM"):
        if option == b"COUNT":
            count = given.number("COUNT") or DEFAULT_COUNT
        elif option == b"BLOCK":
            block_ms = given.number("BLOCK")
        elif option == b"NOACK":
            must_ack = False
        else:
            raise InvalidRequest("XREADGROUP", _NO_CLAIM, "CLAIM")
    given.must_be(b"STREAMS")
    queues, ids = _streams_of(given.rest())
    for queue in queues:
        if missing := (yield from missing_group(session, queue, group)):
            return missing
    if set(ids) == {b">"}:
        reading = _Reading(group, queues, consumer, count, block_ms, must_ack)
        return (yield from _read_new(session, reading))
    if b">" in ids:
        raise InvalidRequest("id", "> for all streams, or the ids of entries for all", "both")
    history: dict[str, list[Entry]] = {}
    for queue, word in zip(queues, ids, strict=True):
        history[queue] = yield from _history(session, queue, consumer, read_entry_id(word), count)
    return _by_stream(history, session.protocol)


def _read_new(session: StreamsSession, reading: _Reading) -> Steps[bytes]:
    queues, consumer, block_ms = reading.queues, reading.consumer, reading.block_ms
    wait = None if block_ms is None else show_ms(block_ms or _FOREVER_MS)
    claim = Claim(queues[0] if len(queues) == 1 else queues, reading.limit, wait, consumer)
    try:
        found: list[Delivery] = yield claim
    except QueueNotFound as gone:
        return no_group(gone.queue, reading.group)
    if not found:
        return NO_ARRAY[session.protocol]
    if reading.must_ack:
        session.remember(consumer, found)
    else:
        # NOACK completes the entries before they are sent: an entry that is lost on the way is not delivered
        # again, as NOACK demands.
        yield Settle([Complete(one) for one in found])
    entries: dict[str, list[Entry]] = {}
    for one in found:
        entries.setdefault(one.queue, []).append(delivered_entry(one))
    return _by_stream(entries, session.protocol)


def _history(
    session: StreamsSession, queue: str, consumer: str, after: EntryId, count: int
) -> Steps[list[Entry]]:
    """The entries that the consumer holds, after an id."""
    holder = session.holder(consumer)
    found = First(count, lambda one: one.entry_id > after)
    yield from pending_entries(session, queue, found.add, of_holder=holder)
    return [shown_entry(one.info) for one in found.entries if one.info is not None]


def _streams_of(words: Sequence[bytes]) -> tuple[list[str], Sequence[bytes]]:
    half, odd = divmod(len(words), 2)
    if odd:
        raise InvalidRequest("STREAMS", "as many ids as keys", f"{len(words)} words")
    keys = Words(words[:half], _XREADGROUP)
    return [keys.text("key") for _ in range(half)], words[half:]


def _by_stream(entries: dict[str, list[Entry]], protocol: int) -> bytes:
    return value_of(entries if protocol == 3 else [*entries.items()], protocol)


def xack(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    """Complete entries. An entry that was sent to a consumer of this connection is completed under its lease,
    so a late consumer changes nothing. Any other entry is completed under its current lease.
    """
    given = Words(words, "XACK key group id [id ...]")
    queue, _group = given.text("key"), given.text("group")
    return (yield from _settle(session, queue, given.rest(), Complete, Ack))


def xnack(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    """Return or fail entries. An entry that was not sent to a consumer of this connection can only be settled
    with FAIL, the one mode that the broker accepts with a message id.
    """
    given = Words(words, "XNACK key group <SILENT | FAIL | FATAL> IDS numids id [id ...]")
    queue, _group, mode = given.text("key"), given.text("group"), given.take().upper()
    make = _MODES.get(mode)
    if make is None:
        raise InvalidRequest("XNACK", "SILENT, FAIL or FATAL", mode[:80].decode(errors="replace"))
    given.must_be(b"IDS")
    count = given.number("numids")
    ids = [given.take() for _ in range(count)]
    if option := given.option(b"RETRYCOUNT", b"FORCE"):
        expected = (
            "without RETRYCOUNT and FORCE: the broker counts attempts, and a lease is never made by hand"
        )
        raise InvalidRequest("XNACK", expected, option.decode())
    given.end()
    by_id = (lambda queue, message_id: Nack(queue, message_id, "XNACK FAIL")) if mode == b"FAIL" else None
    return (yield from _settle(session, queue, ids, make, by_id))


def _settle(
    session: StreamsSession,
    queue: str,
    words: Sequence[bytes],
    make: Callable[[LeaseRef], Settlement],
    by_id: Callable[[str, str], Ack | Nack] | None,
) -> Steps[bytes]:
    """The number of entries that were settled."""
    entry_ids = [read_entry_id(word) for word in words]
    leases = [session.find_lease(queue, entry_id.raw_id) for entry_id in entry_ids]
    known = [make(lease) for lease in leases if lease is not None]
    results: list[SettleResult] = (yield Settle(known)) if known else []
    for entry_id, lease in zip(entry_ids, leases, strict=True):
        if lease is None and by_id is not None:
            try:
                results.append((yield by_id(queue, entry_id.message_id)))
            except (MessageNotFound, QueueNotFound):
                continue
    return b":%d\r\n" % sum([result.ok for result in results])
