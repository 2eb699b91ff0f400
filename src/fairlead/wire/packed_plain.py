"""Decoders for the requests that nearly all programs send.

They read the fields directly from the bytes, without a map of values of any type. A request that does not fit
takes the general way in `packed`, which passes a wrong value on to the engine, and the engine refuses it with
its own error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from fairlead.model.checks import CheckedColumns, MessageColumns, are_plain
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.limits import MAX_BATCH_MESSAGES
from fairlead.model.message import NewMessage
from fairlead.model.settle import Complete, LeaseRef
from fairlead.request import Request
from fairlead.wire.settlement_rows import COMPLETE, SettlementRow

R = TypeVar("R", bound=Request[Any])


class _Enqueue(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    queue: str
    payload: bytes
    fairness_key: str = DEFAULT_KEY
    weight: int = 1


class _Claim(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """All fields of a claim, in their order."""

    queue: str
    limit: int = 1
    wait: str | None = None
    consumer: str = ""
    max_per_stream: int = 1
    token: str | None = None
    started: bool = True


class MessageLists(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Messages that have only these fields, by column. A list of one value applies to all messages; a column
    that is left out has the default.
    """

    payload: list[bytes]
    fairness_key: list[str] | None = None
    weight: list[int] | None = None

    def messages(self) -> Sequence[NewMessage] | None:
        """The messages; None if the columns have different lengths, or there are no or too many messages."""
        count = len(self.payload)
        if not 0 < count <= MAX_BATCH_MESSAGES:
            return None
        keys, weights = _long(self.fairness_key, DEFAULT_KEY, count), _long(self.weight, 1, count)
        if not len(keys) == len(weights) == count:
            return None
        if are_plain(self.payload, keys, weights):
            return CheckedColumns(MessageColumns((*self.payload,), keys, weights))
        return [*map(NewMessage, self.payload, repeat(None), keys, weights)]


class _EnqueueMany(msgspec.Struct, forbid_unknown_fields=True):
    queue: str
    messages: MessageLists


class _Completes(msgspec.Struct, forbid_unknown_fields=True):
    items: list[tuple[int, bytes, int]]


def _enqueue(found: _Enqueue) -> tuple[Any, ...]:
    return found.queue, found.payload, None, found.fairness_key, found.weight


def _enqueue_many(found: _EnqueueMany) -> tuple[Any, ...] | None:
    messages = found.messages.messages()
    return None if messages is None else (found.queue, messages)


def _settle(found: _Completes) -> tuple[Any, ...] | None:
    rows = found.items
    if len(rows) > MAX_BATCH_MESSAGES or [action for action, _, _ in rows].count(COMPLETE) < len(rows):
        return None
    return ([Complete(LeaseRef(raw_id, lease)) for _, raw_id, lease in rows],)


#: By verb: the decoder of the bytes, and a function that returns the request's fields in their order, or None
#: if the request is not plain.
_FORMS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], tuple[Any, ...] | None]]] = {
    "enqueue": (msgspec.msgpack.Decoder(_Enqueue).decode, _enqueue),
    "enqueue_many": (msgspec.msgpack.Decoder(_EnqueueMany).decode, _enqueue_many),
    "claim": (msgspec.msgpack.Decoder(_Claim).decode, astuple),
    "settle": (msgspec.msgpack.Decoder(_Completes).decode, _settle),
}


def find_plain(kind: type[R], raw: bytes) -> R | None:
    """The request; None if the bytes are not a plain request, or no request at all."""
    form = _FORMS.get(kind.verb_name)
    if form is None:
        return None
    read, fields_of = form
    try:
        found = read(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    fields = fields_of(found)
    return None if fields is None else kind(*fields)


def encode_plain(request: Request[Any]) -> bytes | None:
    """The bytes of a client's request; None if it is of another kind, has other fields, or has a value of
    another type.
    """
    form = _PLAIN.get(request.verb_name)
    plain = None if form is None else form(request)
    return None if plain is None else _encode(plain)


def _plain_enqueue(request: Any) -> _Enqueue | None:
    if request.headers or request.throttle_keys:
        return None
    if not (request.stream is request.delay is request.dedup_key is request.ttl is None):
        return None
    queue, payload, key, weight = request.queue, request.payload, request.fairness_key, request.weight
    if not (type(queue) is type(key) is str and type(payload) is bytes and type(weight) is int):
        return None
    return _Enqueue(queue, payload, key, weight)


def _plain_claim(request: Any) -> _Claim | None:
    values = astuple(request)
    is_plain = tuple(map(type, values)) in _CLAIM_TYPES
    return _Claim(*values) if is_plain else None


def _plain_settle(request: Any) -> _Completes | None:
    rows = request.items
    if type(rows) is not list or set(map(type, rows)) != {SettlementRow}:
        return None
    items = [(COMPLETE, row.id, row.lease) for row in rows if row.action == COMPLETE and row.progress is None]
    return _Completes(items) if len(items) == len(rows) else None


_NONE = type(None)
_CLAIM_TYPES = {(str, int, wait, str, int, token, bool) for wait in (str, _NONE) for token in (str, _NONE)}
_encode = msgspec.msgpack.Encoder().encode
_PLAIN: dict[str, Callable[[Any], msgspec.Struct | None]] = {
    "enqueue": _plain_enqueue,
    "claim": _plain_claim,
    "settle": _plain_settle,
}


def message_lists(messages: Sequence[NewMessage]) -> MessageLists | None:
    """The columns of a client's messages; None if a message has other fields, or a value of another type."""
    if not messages or set(map(type, messages)) != {NewMessage}:
        return None
    with_more = [
        one
        for one in messages
        if one.headers
        or one.throttle_keys
        or not (one.stream is one.delay is one.dedup_key is one.ttl is None)
    ]
    if with_more:
        return None
    payloads = [one.payload for one in messages]
    keys = [one.fairness_key for one in messages]
    weights = [one.weight for one in messages]
    if (
        set(map(type, payloads)) != {bytes}
        or set(map(type, keys)) != {str}
        or set(map(type, weights)) != {int}
    ):
        return None
    return MessageLists(payloads, _short(keys, DEFAULT_KEY), _short(weights, 1))


def _short(column: list[Any], default: object) -> list[Any] | None:
    first = column[0]
    if column.count(first) < len(column):
        return column
    return None if first == default else [first]


def _long(column: list[Any] | None, default: object, count: int) -> list[Any]:
    if column is None:
        return [default] * count
    return column * count if len(column) == 1 else column
