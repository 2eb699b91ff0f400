"""Requests and answers as MessagePack, for the Redis door and its clients. Works without pyarrow.

A request is a map of its fields, without those that have their default values. Fields of many values are
compact:

    messages   a list of arrays [payload, headers, fairness_key, weight, throttle_keys, stream, delay, dedup_key, ttl],
               or of maps with these names; values missing at the end of an array have their defaults. Messages with
               only a payload, a key and a weight may be a map of columns: {payload: list, fairness_key: list,
               weight: list}, in which a list of one value applies to all messages
    items      a list of arrays [action, id, lease, error, reason, progress, retry_in_ms, dead, keep_order,
               duration_ms, carry, retry_after_ms, close]: the action is its index in `ACTIONS`, the id has 16 bytes,
               the lease is an integer
    requests   a list of arrays [verb, map of fields]

An answer is one value. Deliveries are columns, see `packed_deliveries`. Results of a settle are [now_ms,
[[id, outcome, rule, due_ms, lease_until, error], ...]]: the outcome is its index in `OUTCOMES`, and values
missing at the end are empty. The answer to an exchange is a list of the answers to its requests. Every other
answer is the value itself, with records as maps.

Each side decodes to equal values what the other side encodes. Untrusted bytes raise `InvalidRequest` at a
server and `ProtocolMismatch` at a client, never anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from fairlead.errors import InvalidRequest, ProtocolMismatch
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_BATCH_MESSAGES
from fairlead.model.message import NewMessage
from fairlead.model.settle import Complete, LeaseRef, Settlement, SettleResult
from fairlead.request import VERBS, Answer, Request
from fairlead.wire.packed_deliveries import decode_deliveries, encode_deliveries
from fairlead.wire.packed_plain import MessageLists, encode_plain, find_plain, message_lists
from fairlead.wire.plain import changed_fields, decode_map, encode_map, make_request, plain
from fairlead.wire.settlement_rows import COMPLETE, OUTCOMES, SettlementRow, read_settlement, settlement_row

R = TypeVar("R", bound=Request[Any])

_encode = msgspec.msgpack.Encoder().encode
_NUMBERS = {outcome: number for number, outcome in enumerate(OUTCOMES)}
#: The number and the defaults of the fields of a message, and the number of those of a settlement.
_MESSAGE_FIELDS = len(NewMessage.__struct_fields__)
_NEW_MESSAGE = (None, *NewMessage.__struct_defaults__)
_ITEM_FIELDS = 13
#: The one verb that has other requests in a field, and their answers in its answer.
_EXCHANGE = "exchange"


class _ResultRow(msgspec.Struct, array_like=True, gc=False):
    id: bytes
    outcome: int
    rule: str = ""
    due_ms: int = 0
    lease_until: int = 0
    error: str = ""


# Requests


def encode_request(request: Request[Any]) -> bytes:
    """The request in bytes. Raises `InvalidRequest` for values that cannot be encoded."""
    try:
        plain_one = encode_plain(request)
    except (TypeError, ValueError, OverflowError):
        plain_one = None
    return encode_map(_fields_on_the_way(request)) if plain_one is None else plain_one


def _fields_on_the_way(request: Request[Any]) -> dict[str, object]:
    return {name: _ON_THE_WAY.get(name, plain)(value) for name, value in changed_fields(request).items()}


def _message_rows(messages: object) -> object:
    if not isinstance(messages, (list, tuple)):
        return plain(messages)
    lists = message_lists(messages)
    if lists is not None:
        return lists
    if not all(type(one) is NewMessage for one in messages):
        return plain(messages)
    return [_message_row(one) for one in messages]


def _message_row(message: NewMessage) -> Sequence[object]:
    row = astuple(message)
    if row[1:] == _NEW_MESSAGE[1:]:
        return row[:1]
    return _trimmed([plain(value) for value in row], _NEW_MESSAGE)


def _item_rows(items: object) -> object:
    """The items as rows. A client that reports each invalid item separately removes those first, and passes
    rows.
    """
    if not isinstance(items, (list, tuple)):
        return plain(items)
    return [_item_row(item) for item in items]


def _item_row(item: object) -> object:
    if type(item) is Complete and type(item.delivery) is Delivery and item.progress == 0:
        return (COMPLETE, item.delivery.raw_id, item.delivery.claim_id)
    if type(item) is SettlementRow:
        return _trimmed(astuple(item), (None,) * _ITEM_FIELDS)
    if not isinstance(item, Settlement):
        return plain(item)
    return _trimmed(astuple(settlement_row(item)), (None,) * _ITEM_FIELDS)


def _request_rows(requests: object) -> object:
    if not isinstance(requests, (list, tuple)) or not all(isinstance(one, Request) for one in requests):
        return plain(requests)
    return [(one.verb_name, _fields_on_the_way(one)) for one in requests]


def _trimmed(row: Sequence[object], defaults: Sequence[object]) -> Sequence[object]:
    """The row without the default values at its end."""
    end = len(row)
    while end > 1 and row[end - 1] == defaults[end - 1]:
        end -= 1
    return row[:end]


_ON_THE_WAY = {"messages": _message_rows, "items": _item_rows, "requests": _request_rows}


def decode_request(kind: type[R], raw: bytes) -> R:
    found = find_plain(kind, raw)
    return request_of(kind, decode_map(raw)) if found is None else found


def request_of(kind: type[R], fields: dict[str, Any]) -> R:
    """The request from field names and plain values, rows included. The engine checks the values."""
    if isinstance(fields.get("messages"), dict):
        fields["messages"] = _messages_of(fields["messages"])
    elif isinstance(fields.get("messages"), list):
        fields["messages"] = _bounded(fields["messages"], _message_of, "messages")
    if isinstance(fields.get("items"), list):
        fields["items"] = _bounded(fields["items"], _item_of, "items")
    if isinstance(fields.get("requests"), list):
        fields["requests"] = [_part_of(part) for part in fields["requests"]]
    return make_request(kind, fields)


def _bounded(rows: list[Any], read: Any, field: str) -> list[Any]:
    """The values read from the rows. The rows are counted before any object is made of them."""
    if len(rows) > MAX_BATCH_MESSAGES:
        raise InvalidRequest(field, f"at most {MAX_BATCH_MESSAGES} in one call", f"{len(rows)}")
    return [read(row) for row in rows]


def _messages_of(columns: dict[str, Any]) -> Sequence[NewMessage]:
    try:
        messages = msgspec.convert(columns, MessageLists).messages()
    except msgspec.ValidationError as wrong:
        raise InvalidRequest("messages", "a list, or a map of columns", str(wrong)) from None
    if messages is None:
        raise InvalidRequest("messages", f"columns of one length, at most {MAX_BATCH_MESSAGES}", "others")
    return messages


def _message_of(row: Any) -> Any:
    if not isinstance(row, list):
        return row
    if not 0 < len(row) <= _MESSAGE_FIELDS:
        raise InvalidRequest("messages", f"arrays of 1 to {_MESSAGE_FIELDS} fields", f"{len(row)} fields")
    return NewMessage(*row)


def _item_of(row: Any) -> Any:
    if not isinstance(row, list):
        return row
    if not 3 <= len(row) <= _ITEM_FIELDS:
        raise InvalidRequest("items", f"arrays of 3 to {_ITEM_FIELDS} fields", row)
    action, raw_id, lease = row[:3]
    if len(row) == 3 and action == COMPLETE:
        return Complete(LeaseRef(raw_id, lease))
    rest = row[3:] + [None] * (_ITEM_FIELDS - len(row))
    try:
        return read_settlement(action, LeaseRef(raw_id, lease), *rest)
    except TypeError as wrong:
        raise InvalidRequest("items", "durations in whole milliseconds", str(wrong)) from None


def _part_of(part: Any) -> Any:
    if not isinstance(part, list):
        return part
    if len(part) != 2 or not isinstance(part[1], dict):
        raise InvalidRequest("requests", "arrays of a verb and a map of its fields", part)
    verb = VERBS.get(part[0]) if isinstance(part[0], str) else None
    if verb is None:
        raise InvalidRequest("requests", "verbs of an exchange", part[0])
    return request_of(verb.request, part[1])


# Answers


def encode_answer(request: Request[Answer], answer: Answer, now_ms: int) -> bytes:
    """The answer in bytes. `now_ms` is the server's clock, for answers with leases."""
    raw: bytes = _FORMS[_form_of(type(request))][0](request, answer, now_ms)
    return raw


def decode_answer(request: Request[Answer], raw: bytes) -> tuple[Answer, int]:
    """The answer, and the server's clock if the answer has leases, else 0. With this clock a client can
    compute how long a lease lasts without trusting its own.
    """
    try:
        found: tuple[Answer, int] = _FORMS[_form_of(type(request))][1](request, raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, IndexError, RecursionError) as wrong:
        raise ProtocolMismatch(f"an answer to {request.verb_name}", str(wrong)) from None
    return found


@cache
def tells_time(kind: type[Request[Any]]) -> bool:
    """Whether the answer includes the server's clock."""
    return _form_of(kind) != "value"


@cache
def _form_of(kind: type[Request[Any]]) -> str:
    if kind.verb_name == _EXCHANGE:
        return "exchange"
    if kind.paged:
        return "pages"
    answer = VERBS[kind.verb_name].answer
    if answer == list[Delivery]:
        return "deliveries"
    return "results" if answer == list[SettleResult] else "value"


def _encode_value(request: Request[Any], answer: object, now_ms: int) -> bytes:
    return _encode(answer)


def _decode_value(request: Request[Any], raw: bytes) -> tuple[Any, int]:
    return _decoder_of(type(request)).decode(raw), 0


@cache
def _decoder_of(kind: type[Request[Any]]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(VERBS[kind.verb_name].answer)


def _encode_results(request: Request[Any], answer: Iterable[SettleResult], now_ms: int) -> bytes:
    rows = [
        (one.raw_id, _NUMBERS[one.outcome], one.rule, one.due_ms, one.lease_until, one.error)
        if one.rule or one.due_ms or one.lease_until or one.error
        else (one.raw_id, _NUMBERS[one.outcome])
        for one in answer
    ]
    return _encode((now_ms, rows))


_results = msgspec.msgpack.Decoder(tuple[int, list[_ResultRow]])


def _decode_results(request: Request[Any], raw: bytes) -> tuple[Any, int]:
    now_ms, rows = _results.decode(raw)
    return [
        SettleResult(row.id, OUTCOMES[row.outcome], row.rule, row.due_ms, row.lease_until, row.error)
        for row in rows
    ], now_ms


def _encode_deliveries(request: Request[Any], answer: Sequence[Delivery], now_ms: int) -> bytes:
    return encode_deliveries(answer, now_ms)


def _decode_deliveries(request: Request[Any], raw: bytes) -> tuple[Any, int]:
    return decode_deliveries(raw)


def _encode_pages(request: Request[Any], answer: Iterable[Sequence[Delivery]], now_ms: int) -> bytes:
    return _encode([msgspec.Raw(encode_deliveries(page, now_ms)) for page in answer])


_parts = msgspec.msgpack.Decoder(list[msgspec.Raw])


def _decode_pages(request: Request[Any], raw: bytes) -> tuple[Any, int]:
    return iter([decode_deliveries(bytes(page))[0] for page in _parts.decode(raw)]), 0


def _encode_exchange(request: Any, answer: Sequence[Any], now_ms: int) -> bytes:
    pairs = zip(request.requests, answer, strict=True)
    return _encode([msgspec.Raw(encode_answer(one, part, now_ms)) for one, part in pairs])


def _decode_exchange(request: Any, raw: bytes) -> tuple[Any, int]:
    pairs = zip(request.requests, _parts.decode(raw), strict=True)
    parts = [decode_answer(one, bytes(part)) for one, part in pairs]
    return [part for part, _ in parts], max([now_ms for _, now_ms in parts], default=0)


_FORMS: dict[str, tuple[Any, Any]] = {
    "value": (_encode_value, _decode_value),
    "results": (_encode_results, _decode_results),
    "deliveries": (_encode_deliveries, _decode_deliveries),
    "pages": (_encode_pages, _decode_pages),
    "exchange": (_encode_exchange, _decode_exchange),
}
