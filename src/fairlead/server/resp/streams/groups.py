"""Groups: XGROUP, and the check that a queue has the group that a command names.

A queue has at most one group, because each message is delivered to one consumer. The group is a durable
consumer of the queue that never takes a numbered claim. Its name is stored with the queue: it outlives
restarts, is deleted with the queue, and is listed among the consumers of the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.errors import ConsumerNotFound, InvalidRequest, QueueNotFound
from fairlead.model.consumer import ConsumerInfo
from fairlead.model.settle import Release, Settlement, SettleResult
from fairlead.server.resp.replies import OK
from fairlead.server.resp.streams.pending import PendingEntry, pending_entries
from fairlead.server.resp.streams.produce import make_queue
from fairlead.server.resp.streams.replies import BUSY_GROUP, NO_KEY_FOR_GROUP, no_group
from fairlead.server.resp.streams.session import StreamsSession
from fairlead.server.resp.streams.steps import Steps
from fairlead.server.resp.streams.words import Words
from fairlead.verbs.consumers import ConsumersDrop, ConsumersList, ConsumersRegister, ConsumersShow
from fairlead.verbs.settle import Settle

#: The name of the durable consumer is this prefix and the name of the group.
_PREFIX = "group:"

_XGROUP = "CREATE, CREATECONSUMER, DELCONSUMER, DESTROY or SETID"
_NO_SETID = (
    "CREATE, CREATECONSUMER, DELCONSUMER or DESTROY: a queue delivers each message until it is acknowledged, so a group has"
    " no position that could be set; redrive brings dead letters back"
)


def xgroup(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    given = Words(words, f"XGROUP and {_XGROUP}")
    name = given.take().upper()
    match name:
        case b"CREATE":
            return (yield from _create(session, given))
        case b"DESTROY":
            return (yield from _destroy(session, given))
        case b"CREATECONSUMER":
            return (yield from _create_consumer(session, given))
        case b"DELCONSUMER":
            return (yield from _delete_consumer(session, given))
        case b"SETID":
            raise InvalidRequest("XGROUP", _NO_SETID, "SETID")
    raise InvalidRequest("XGROUP", _XGROUP, name[:80].decode(errors="replace"))


def missing_group(session: StreamsSession, queue: str, group: str) -> Steps[bytes]:
    """The error reply for a command whose group the queue does not have; empty if the queue has the group."""
    try:
        yield ConsumersShow(_PREFIX + group, queue)
    except (ConsumerNotFound, QueueNotFound):
        return no_group(queue, group)
    return b""


def find_group(session: StreamsSession, queue: str) -> Steps[str]:
    """The group of a queue; empty if the queue has none."""
    listed: list[ConsumerInfo] = yield ConsumersList()
    names = [info.name for info in listed if info.queue == queue and info.name.startswith(_PREFIX)]
    return names[0].removeprefix(_PREFIX) if names else ""


def _create(session: StreamsSession, given: Words) -> Steps[bytes]:
    """The position is parsed and ignored: a new group gets all live messages."""
    queue, group, _position = given.text("key"), given.text("group"), given.take()
    makes_queue = False
    while option := given.option(b"MKSTREAM", b"ENTRIESREAD"):
        if option == b"MKSTREAM":
            makes_queue = True
        else:
            given.take()
    given.end()
    with session.creating(queue):
        existing = yield from find_group(session, queue)
        if existing == group:
            return BUSY_GROUP
        if existing:
            expected = (
                f"{existing!r}, the one group of queue {queue!r}: a queue delivers each message to one group; for a second"
                " group make a second queue, and add each entry to both"
            )
            raise InvalidRequest("group", expected, group)
        register = ConsumersRegister(_PREFIX + group, queue)
        try:
            yield register
        except QueueNotFound:
            if not makes_queue:
                return NO_KEY_FOR_GROUP
            yield from make_queue(queue)
            yield register
    return OK


def _destroy(session: StreamsSession, given: Words) -> Steps[bytes]:
    """Entries that its consumers hold stay leased until their leases expire."""
    queue, group = given.text("key"), given.text("group")
    given.end()
    if (yield from missing_group(session, queue, group)):
        return b":0\r\n"
    yield ConsumersDrop(_PREFIX + group, queue)
    return b":1\r\n"


def _create_consumer(session: StreamsSession, given: Words) -> Steps[bytes]:
    """Nothing is stored: a consumer exists while it reads or holds entries."""
    queue, group, _consumer = given.text("key"), given.text("group"), given.text("consumer")
    given.end()
    return (yield from missing_group(session, queue, group)) or b":1\r\n"


def _delete_consumer(session: StreamsSession, given: Words) -> Steps[bytes]:
    """The entries that the consumer holds return to their places. In Redis they would be lost."""
    queue, group, consumer = given.text("key"), given.text("group"), given.text("consumer")
    given.end()
    if missing := (yield from missing_group(session, queue, group)):
        return missing
    known: list[Settlement] = []

    def find_leases(entries: Iterable[PendingEntry]) -> None:
        leases = [session.find_lease(queue, one.entry_id.raw_id, consumer) for one in entries]
        known.extend([Release(lease) for lease in leases if lease is not None])

    yield from pending_entries(session, queue, find_leases, of_holder=session.holder(consumer))
    results: list[SettleResult] = (yield Settle(known)) if known else []
    return b":%d\r\n" % sum([result.ok for result in results])
