"""Conversion between requests and maps of plain values, which every encoding uses. Works without pyarrow.

Plain values become a request without checks, so that the engine refuses a wrong value with the same error at
every door.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec

from fairlead.decide.dead_filter import DeadFilter
from fairlead.errors import InvalidRequest
from fairlead.model.message import NewMessage
from fairlead.request import Request
from fairlead.wire.depth import check_depth

R = TypeVar("R", bound=Request[Any])

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_FLAT = frozenset((str, int, bytes, bool, float, type(None)))


def encode_fields(request: Request[Any]) -> bytes:
    """The fields that differ from their defaults, without those that travel in columns."""
    given = changed_fields(request)
    given.pop(request.columns, None)
    return encode_map({name: plain(value) for name, value in given.items()})


def changed_fields(request: Request[Any]) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    return {
        name: value
        for name, default, value in zip(
            request.__struct_fields__,
            _defaults(type(request)),
            msgspec.structs.astuple(request),
            strict=True,
        )
        if value is not default
    }


def encode_map(fields: Mapping[str, object]) -> bytes:
    try:
        return _encode(fields)
    except (TypeError, ValueError, OverflowError, RecursionError) as wrong:
        raise InvalidRequest("arguments", "plain values", str(wrong)) from None


def decode_map(raw: bytes) -> dict[str, Any]:
    try:
        fields = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest("arguments", "a MessagePack map", str(wrong)) from None
    check_depth((fields,), "arguments")
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise InvalidRequest("arguments", "a MessagePack map with text as keys", type(fields).__name__)
    return fields


def make_request(kind: type[R], fields: dict[str, Any]) -> R:
    """The request from field names and plain values. The engine checks the values."""
    if "filter" in fields:
        fields["filter"] = _convert(fields["filter"], DeadFilter, "filter")
    if isinstance(fields.get("messages"), list):
        fields["messages"] = [_convert(message, NewMessage, "messages") for message in fields["messages"]]
    try:
        return kind(**fields)
    except TypeError as wrong:
        raise InvalidRequest("arguments", f"those of {kind.verb_name}", str(wrong)) from None


@cache
def _defaults(kind: type[Request[Any]]) -> tuple[object, ...]:
    """The default of each field; `UNSET`, which no value equals, for a required field."""
    given = kind.__struct_defaults__
    required = len(kind.__struct_fields__) - len(given)
    return (msgspec.UNSET,) * required + given


def _convert(value: object, kind: type, field: str) -> Any:
    """A record from a map. Its values are not checked here: the engine refuses a wrong value, and also a
    value that is no map.
    """
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
    """The value in plain form: a duration as the text that the engine reads, a record as a map, an enum as
    its value.
    """
    if type(value) in _FLAT:
        return value
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
