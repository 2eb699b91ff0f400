"""XADD and XDEL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256

from fairlead.errors import InvalidRequest, QueueExists, QueueNotFound
from fairlead.model.ids import find_id
from fairlead.model.views import OperatorResult
from fairlead.server.resp.replies import bulk
from fairlead.server.resp.streams.entries import read_fields
from fairlead.server.resp.streams.entry_ids import entry_id_of, read_entry_id
from fairlead.server.resp.streams.replies import NO_BULK
from fairlead.server.resp.streams.session import StreamsSession
from fairlead.server.resp.streams.steps import Steps
from fairlead.server.resp.streams.words import Words
from fairlead.verbs.enqueue import Enqueue
from fairlead.verbs.operate import Drop
from fairlead.verbs.queues import CreateQueue

_XADD = (
    "XADD key [NOMKSTREAM] [KEEPREF | DELREF | ACKED] [IDMPAUTO producer | IDMP producer id]"
    " [<MAXLEN | MINID> [= | ~] threshold [LIMIT count]] * field value [field value ...]"
)
_TRIMS = (b"MAXLEN", b"MINID")
_WITHOUT_MEANING = (b"KEEPREF", b"DELREF", b"ACKED")
_ANY_ID = (
    "*: fairlead gives each message its id, so that ids are unique and in the order of enqueues; for an entry that must"
    " not be added twice, use IDMP"
)


def xadd(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    """Add an entry. A queue that does not exist is created, as Redis creates a stream, if the caller has the
    right to create it.
    """
    given = Words(words, _XADD)
    queue = given.text("key")
    makes_queue, producer, unique = True, None, None
    while option := given.option(b"NOMKSTREAM", b"IDMP", b"IDMPAUTO", *_WITHOUT_MEANING, *_TRIMS):
        if option == b"NOMKSTREAM":
            makes_queue = False
        elif option == b"IDMP":
            producer, unique = given.text("IDMP"), given.text("IDMP")
        elif option == b"IDMPAUTO":
            producer = given.text("IDMPAUTO")
        elif option in _TRIMS:
            _skip_trim(given)
    found = given.take()
    if found != b"*":
        raise InvalidRequest("id", _ANY_ID, found[:80].decode(errors="replace"))
    fields = given.rest()
    headers, payload = read_fields(fields)
    dedup_key = None if producer is None else _dedup_key(producer, unique or _digest(fields))
    enqueue = Enqueue(queue, payload, headers or None, dedup_key=dedup_key)
    try:
        message_id = yield enqueue
    except QueueNotFound:
        if not makes_queue:
            return NO_BULK[session.protocol]
        yield from make_queue(queue)
        message_id = yield enqueue
    return bulk(entry_id_of(find_id(message_id) or b"").shown)


def make_queue(queue: str) -> Steps[None]:
    # Another caller may have created the queue meanwhile.
    with suppress(QueueExists):
        yield CreateQueue(queue)


def xdel(session: StreamsSession, words: Sequence[bytes]) -> Steps[bytes]:
    given = Words(words, "XDEL key id [id ...]")
    queue = given.text("key")
    ids = [read_entry_id(word).message_id for word in given.rest()]
    try:
        result: OperatorResult = yield Drop(queue, ids=ids)
    except QueueNotFound:
        return b":0\r\n"
    return b":%d\r\n" % len(result.changed)


def _skip_trim(given: Words) -> None:
    """A trim option is parsed and ignored, because it would drop messages that no consumer has processed."""
    given.option(b"=", b"~")
    read_entry_id(given.take())
    if given.option(b"LIMIT"):
        given.number("LIMIT")


def _dedup_key(producer: str, unique: str) -> str:
    """Different pairs have different keys."""
    return f"{producer.replace('%', '%25').replace('/', '%2F')}/{unique}"


def _digest(fields: Sequence[bytes]) -> str:
    """Only equal fields have equal digests, because the length of each field is included."""
    return sha256(b"".join([b"%d:%b" % (len(field), field) for field in fields])).hexdigest()
