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

OK = b"+OK\r\n"
PONG = b"+PONG\r\n"

#: What is shown of a delivery always, and what only where something is there to be shown.
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


def reply_of(answer: Any, protocol: int) -> bytes:
    """The answer to a command in plain words."""
    return OK if answer is None else value_of(answer, protocol)


def value_of(value: Any, protocol: int) -> bytes:
    """`protocol` is 2 or 3; RESP2 has neither maps nor numbers with fractions."""
    match value:
        case None:
            return b"_\r\n" if protocol == 3 else b"$-1\r\n"
        case bool():
            return (b"#t\r\n" if value else b"#f\r\n") if protocol == 3 else b":%d\r\n" % value
        case bytes():
            return bulk(value)
        case str():
            return bulk(value.encode(errors="replace"))
        case FailureReason():
            return bulk(value.word.encode())
        case Enum() if not isinstance(value, int):
            return value_of(value.value, protocol)
        case int():
            return b":%d\r\n" % value
        case float():
            return b",%b\r\n" % repr(value).encode() if protocol == 3 else bulk(repr(value).encode())
        case Mapping():
            parts = b"".join(
                [value_of(name, protocol) + value_of(one, protocol) for name, one in value.items()]
            )
            return (b"%%%d\r\n" % len(value) if protocol == 3 else b"*%d\r\n" % (2 * len(value))) + parts
        case list() | tuple() | set() | frozenset():
            return b"*%d\r\n" % len(value) + b"".join([value_of(one, protocol) for one in value])
        case Iterator():
            return value_of([one for page in value for one in page], protocol)
        case PurePath():
            return bulk(str(value).encode(errors="replace"))
    return value_of(_fields_of(value), protocol)


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
