"""Turns answers into plain values, which do not depend on the package that made them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec


class Record(NamedTuple):
    """A dataclass, struct or named tuple: the name of its class, and its fields."""

    kind: str
    fields: dict[str, Any]


class Refusal(NamedTuple):
    """An error, by its stable code."""

    code: str


def plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case bytes() if len(value) > 40:
            return value[:8] + sha256(value).digest()[:8]
        case list():
            return [plain(part) for part in value]
        case set() | frozenset():
            return sorted(map(plain, value), key=repr)
        case Mapping():
            return {plain(key): plain(part) for key, part in value.items()}
        case tuple() if hasattr(value, "_fields"):
            return _record(value, value._fields)
        case tuple():
            return tuple([plain(part) for part in value])
        case msgspec.Struct():
            return _record(value, value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return _record(value, [one.name for one in dataclasses.fields(value) if one.compare])
    return value


def _record(value: Any, names: Any) -> Record:
    return Record(type(value).__name__, {name: plain(getattr(value, name)) for name in names})
