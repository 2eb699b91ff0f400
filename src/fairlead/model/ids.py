"""Message ids: UUIDv7, time-ordered, strictly increasing within a process.

An id is 16 bytes inside, 36 characters outside, and its last 8 characters in lists.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from os import urandom

_FULL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_COUNTER_LIMIT = 1 << 12
_HALVES = struct.Struct(">QQ")
_VARIANT = 0x8000_0000_0000_0000
_RANDOM_BITS = 0x3FFF_FFFF_FFFF_FFFF


class IdSource:
    """Makes ids from a time that the caller gives. If that time steps back, new ids still sort after all
    earlier ones.
    """

    def __init__(self, random_bytes: Callable[[int], bytes] = urandom) -> None:
        self._random_bytes = random_bytes
        self._ms = 0
        self._counter = 0

    def next(self, now_ms: int, count: int) -> list[bytes]:
        ids = []
        ms, counter, pack = self._ms, self._counter, _HALVES.pack
        if now_ms > ms:
            ms, counter = now_ms, 0
        for random in struct.unpack(f">{count}Q", self._random_bytes(8 * count)):
            counter += 1
            if counter >= _COUNTER_LIMIT:
                # More than 4095 ids in this millisecond: continue in the next.
                ms, counter = ms + 1, 0
            ids.append(pack(ms << 16 | 0x7000 | counter, random & _RANDOM_BITS | _VARIANT))
        self._ms, self._counter = ms, counter
        return ids

    def skip_to(self, ms: int) -> None:
        """Make no more ids of an earlier millisecond."""
        if ms > self._ms:
            self._ms, self._counter = ms, 0


def first_id_of(ms: int) -> bytes:
    """The smallest id of that millisecond."""
    return (ms << 80).to_bytes(16, "big")


def show_id(raw: bytes) -> str:
    # `hex` puts a dash before each second byte: one too many at the front, and none may be in the last six
    # bytes.
    h = raw[:10].hex("-", 2)
    return h[:4] + h[5:] + "-" + raw[10:].hex()


def short_id(shown: str) -> str:
    return shown[-8:]


def find_id(text: object) -> bytes | None:
    """The raw id of a full textual id, or None if the text is no id."""
    if not isinstance(text, str):
        return None
    lowered = text.lower()
    return bytes.fromhex(lowered.replace("-", "")) if _FULL.fullmatch(lowered) else None


def id_time_ms(raw: bytes) -> int:
    return int.from_bytes(raw[:6], "big")
