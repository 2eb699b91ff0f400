"""Requests and answers as MessagePack: a request is its verb and a map of its fields.

The table of verbs says what each takes and gives; importing `fairlead.verbs` fills it. Where the table names a
field of many values, these travel as the columns of a record batch beside the map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from fairlead.decide.dead_filter import DeadFilter
from fairlead.errors import InvalidRequest
from fairlead.model.message import NewMessage
from fairlead.request import VERBS, Request
from fairlead.wire.depth import check_depth
from fairlead.wire.messages import decode_messages
from fairlead.wire.numbered import Numbered
from fairlead.wire.settlements import decode_settlements

R = TypeVar("R", bound=Request[Any])

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Call(Numbered, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A request on its way: the name of its verb, and its fields as a MessagePack map."""

    verb: str
    fields: bytes = b"\x80"


_calls = msgspec.msgpack.Decoder(Call)
_READ_COLUMNS: dict[str, Callable[[pa.RecordBatch], Sequence[object]]] = {
    "messages": decode_messages,
    "items": decode_settlements,
}


_UNNUMBERED = Numbered()


def encode_request(request: Request[Any], numbered: Numbered = _UNNUMBERED) -> bytes:
    call = Call(
        request.verb_name,
        encode_fields(request),
        session=numbered.session,
        number=numbered.number,
        arrived=numbered.arrived,
    )
    try:
        return _encode(call)
    except (TypeError, ValueError, OverflowError, RecursionError) as wrong:
        raise InvalidRequest("arguments", "plain values", str(wrong)) from None


def encode_fields(request: Request[Any]) -> bytes:
    """Only fields that differ from their defaults travel, and not those that travel in columns."""
    try:
        return _encode(
            {
                name: plain(value)
                for name, default, value in zip(
                    request.__struct_fields__,
                    _defaults(type(request)),
                    msgspec.structs.astuple(request),
                    strict=True,
                )
                if value is not default and name != request.columns
            }
        )
    except (TypeError, ValueError, OverflowError, RecursionError) as wrong:
        raise InvalidRequest("arguments", "plain values", str(wrong)) from None


def decode_call(raw: bytes) -> Call:
    try:
        call = _calls.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest("app_metadata", "a MessagePack map of verb and fields", str(wrong)) from None
    check_depth((call.session, call.number, call.arrived), "app_metadata")
    return call


def decode_request(raw: bytes, batch: pa.RecordBatch | None = None) -> Request[Any]:
    return request_of(decode_call(raw), batch)


def request_of(call: Call, batch: pa.RecordBatch | None) -> Request[Any]:
    known = VERBS.get(call.verb)
    if known is None or known.request.bulk:
        raise InvalidRequest("verb", "one of " + ", ".join(sorted(record_verbs())), call.verb)
    return decode_fields(known.request, call.fields, batch)


def decode_fields(kind: type[R], raw: bytes, batch: pa.RecordBatch | None = None) -> R:
    """Names and plain values become a request; the engine says whether its values are right."""
    fields = _decode_map(raw)
    columns = kind.columns
    if bool(columns) != (batch is not None):
        got = "none" if batch is None else f"{batch.num_rows} rows"
        raise InvalidRequest("batch", f"{columns or 'none'} beside the fields of {kind.verb_name}", got)
    if batch is not None:
        fields[columns] = _READ_COLUMNS[columns](batch)
    if "filter" in fields:
        fields["filter"] = _convert(fields["filter"], DeadFilter, "filter")
    if isinstance(fields.get("messages"), list):
        fields["messages"] = [_convert(message, NewMessage, "messages") for message in fields["messages"]]
    try:
        return kind(**fields)
    except TypeError as wrong:
        raise InvalidRequest("arguments", f"those of {kind.verb_name}", str(wrong)) from None


def record_verbs() -> list[str]:
    """The verbs that travel as records; the others have channels of their own."""
    return [name for name, verb in VERBS.items() if not verb.request.bulk]


@cache
def _defaults(kind: type[Request[Any]]) -> tuple[object, ...]:
    """One for each field; a field that must be given has one that no value is."""
    given = kind.__struct_defaults__
    required = len(kind.__struct_fields__) - len(given)
    return (msgspec.UNSET,) * required + given


def _decode_map(raw: bytes) -> dict[str, Any]:
    try:
        fields = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest("arguments", "a MessagePack map", str(wrong)) from None
    check_depth((fields,), "arguments")
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise InvalidRequest("arguments", "a MessagePack map with text as keys", type(fields).__name__)
    return fields


def encode_result(value: object) -> bytes:
    return _encode(value)


def decode_result(verb: str, raw: bytes) -> Any:
    return _result_decoder(verb).decode(raw)


@cache
def _result_decoder(verb: str) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(VERBS[verb].answer)


def _convert(value: object, kind: type, field: str) -> Any:
    """A record from a map, unchecked: a wrong value, and one that is no map, is refused by the engine."""
    if not isinstance(value, dict):
        return value
    known = set(kind.__annotations__)
    if not known.issuperset(value):
        raise InvalidRequest(field, "a map of " + ", ".join(sorted(known)), list(value))
    if kind is NewMessage and "payload" not in value:
        raise InvalidRequest(field, "messages with a payload", list(value))
    header = value.get("header")
    if isinstance(header, list):
        value = value | {"header": tuple(header)}
    return kind(**value)


def plain(value: object) -> object:
    """Durations as the text that the engine reads; records as maps; enums as their values."""
    if isinstance(value, timedelta):
        return f"{round(value.total_seconds() * 1000)}ms"
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, DeadFilter):
        return {name: plain(getattr(value, name)) for name in DeadFilter.__annotations__}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return value
