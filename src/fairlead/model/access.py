"""Rights on queue patterns, the API keys that have them, and the audit entry of a call."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.model.limits import MAX_GRANTS, MAX_QUEUE_NAME
from fairlead.model.names import DEAD_LETTER_SUFFIX, NAME_PART

_PATTERN = re.compile(rf"\*|(?:{NAME_PART}/)?(?:\*|{NAME_PART})|(?:{NAME_PART}/)?{NAME_PART}\.\*")
_EXPECTED = "a queue name, 'prefix.*', 'project/*' or '*'"

EVERYTHING = "*"


class Right(StrEnum):
    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"
    READ_PAYLOAD = "read-payload"
    REDRIVE = "redrive"
    QUARANTINE = "quarantine"


class Grant(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One right on every queue that the pattern matches. Dead letters belong to their queue, so no pattern
    names a `.dlq`.
    """

    right: Right
    pattern: str

    def __str__(self) -> str:
        return f"{self.right}:{self.pattern}"


#: The grants that make a key all-powerful. No other flag does.
EVERY_RIGHT = tuple(Grant(right, EVERYTHING) for right in Right)


class KeyRecord(msgspec.Struct, frozen=True):
    """A key as it is stored. Of its secret only the SHA-256 digest is stored, which is enough for 256 random
    bits.

    An operator may choose the secret; the documentation says to draw it at random.
    """

    key_id: str
    name: str
    digest: bytes
    created_ms: int
    created_by: str
    grants: tuple[Grant, ...] = ()
    expires_ms: int = 0
    last_used_ms: int = 0

    def is_over(self, now_ms: int) -> bool:
        return 0 < self.expires_ms <= now_ms


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key as it is shown. `expires_at` and `last_used_at` are None for never; `last_used_at` may lag by a
    minute.
    """

    id: str
    name: str
    grants: tuple[str, ...]
    created_at: int
    created_by: str
    expires_at: int | None
    last_used_at: int | None


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key with its `secret`, which is shown only here and never stored."""

    info: KeyInfo
    secret: str = field(repr=False)


class AuditRecord(msgspec.Struct, frozen=True):
    """One entry of the audit. `outcome` is "asked" until the call ends, then "done" or the code of an error;
    a crash leaves "asked".

    `who` is the id of a key, "anonymous" where keys are off, or "local:<user>" for a process that opened the
    directory itself.
    """

    number: int
    at_ms: int
    who: str
    name: str
    source: str
    verb: str
    queue: str
    outcome: str
    count: int | None = None
    details: dict[str, str] = {}


def read_grants(given: object) -> tuple[Grant, ...]:
    """Read `Grant`s or texts such as "produce:orders.*". The result is sorted and has each grant once."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidRequest("grants", 'a list such as ["produce:orders.*", "consume:orders.*"]', given)
    grants = tuple(sorted({_read_grant(one) for one in given}))
    if len(grants) > MAX_GRANTS:
        raise InvalidRequest("grants", f"at most {MAX_GRANTS}", len(grants))
    return grants


def _read_grant(given: object) -> Grant:
    if isinstance(given, Grant):
        given = str(given)
    if not isinstance(given, str):
        raise InvalidRequest("grant", "<right>:<pattern>", given)
    right, colon, pattern = given.partition(":")
    if not colon or right not in Right._value2member_map_:
        raise InvalidRequest("grant", f"<right>:<pattern>, a right being one of {', '.join(Right)}", given)
    return Grant(Right(right), check_pattern(pattern))


def check_pattern(pattern: object) -> str:
    if not isinstance(pattern, str) or len(pattern) > MAX_QUEUE_NAME or not _PATTERN.fullmatch(pattern):
        raise InvalidRequest("pattern", _EXPECTED, pattern)
    if pattern.endswith(DEAD_LETTER_SUFFIX):
        queue = pattern.removesuffix(DEAD_LETTER_SUFFIX)
        raise InvalidRequest("pattern", f"{_EXPECTED}; the dead letters of {queue!r} come with it", pattern)
    return pattern
