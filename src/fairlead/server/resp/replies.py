"""Answers as values of the Redis protocol, RESP2 and RESP3, for people and for programs in any language."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import msgspec

from fairlead.model.delivery import Delivery
from fairlead.model.failure import FailureReason
from fairlead.model.settle import SettleResult
from fairlead.wire.error_lines import error_line

#: A large reply is a list of parts that are sent one after the other, because copying them would take
#: milliseconds.
Written = bytes | list[bytes]
_LARGE_BYTES = 64 * 1024

OK = b"+OK\r\n"
PONG = b"+PONG\r\n"

#: The fields of a delivery that are always shown, and the fields that are shown only if they have a value.
_OF_DELIVERY = (
    "id",
    "lease",
    "queue",
    "payload",
    "fairness_key",
    "attempts",
    "deliveries",
    "enqueued_at",
    "lease_until",
)
_MORE_OF_DELIVERY = (
    "headers",
    "throttle_keys",
    "stream",
    "progress",
    "carry",
    "failures",
    "source",
    "dead_since",
)


def error_reply(error: BaseException, *, packed: bool = False) -> bytes:
    return b"-%b\r\n" % error_line(error, packed=packed)


def bulk(raw: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(raw), raw)


def bulk_reply(raw: bytes) -> Written:
    if len(raw) > _LARGE_BYTES:
        return [b"$%d\r\n" % len(raw), raw, b"\r\n"]
    return b"$%d\r\n%b\r\n" % (len(raw), raw)


def reply_of(answer: Any, protocol: int) -> Written:
    """The reply to a command in plain words."""
    if answer is None:
        return OK
    parts: list[bytes] = []
    _add(parts, answer, protocol)
    return parts if len(max(parts, key=len)) > _LARGE_BYTES else b"".join(parts)


def value_of(value: Any, protocol: int) -> bytes:
    """`protocol` is 2 or 3. RESP2 has neither maps nor numbers with fractions."""
    parts: list[bytes] = []
    _add(parts, value, protocol)
    return b"".join(parts)


def _add(parts: list[bytes], value: Any, protocol: int) -> None:
    match value:
        case None:
            parts.append(b"_\r\n" if protocol == 3 else b"$-1\r\n")
        case bool() if protocol == 3:
            parts.append(b"#t\r\n" if value else b"#f\r\n")
        case bytes():
            parts += (b"$%d\r\n" % len(value), value, b"\r\n")
        case str():
            parts.append(bulk(value.encode(errors="replace")))
        case FailureReason():
            parts.append(bulk(value.word.encode()))
        case Enum() if not isinstance(value, int):
            _add(parts, value.value, protocol)
        case int():
            parts.append(b":%d\r\n" % value)
        case float():
            shown = repr(value).encode()
            parts.append(b",%b\r\n" % shown if protocol == 3 else bulk(shown))
        case Mapping():
            parts.append(b"%%%d\r\n" % len(value) if protocol == 3 else b"*%d\r\n" % (2 * len(value)))
            for name, one in value.items():
                _add(parts, name, protocol)
                _add(parts, one, protocol)
        case list() | tuple() | set() | frozenset():
            parts.append(b"*%d\r\n" % len(value))
            for one in value:
                _add(parts, one, protocol)
        case Iterator():
            _add(parts, [one for page in value for one in page], protocol)
        case PurePath():
            parts.append(bulk(str(value).encode(errors="replace")))
        case _:
            _add(parts, _fields_of(value), protocol)


def _fields_of(value: Any) -> Mapping[str, Any]:
    """A record as a map."""
    if isinstance(value, Delivery):
        more = {name: found for name in _MORE_OF_DELIVERY if (found := getattr(value, name))}
        return {**{name: getattr(value, name) for name in _OF_DELIVERY}, **more}
    if isinstance(value, SettleResult):
        more = {
            name: found
            for name in ("rule", "due_ms", "lease_until", "error")
            if (found := getattr(value, name))
        }
        return {"id": value.id, "outcome": value.outcome, **more}
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {"value": str(value)}
