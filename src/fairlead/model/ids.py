"""Message ids: UUIDv7, time-ordered, strictly increasing within a process.

16 bytes inside, the usual 36 characters outside, the last 8 characters in lists.
"""

from __future__ import annotations

import random
import re

_FULL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_COUNTER_LIMIT = 1 << 12


class IdSource:
    """Makes ids from a time given by the caller; a clock that steps back never makes an id that sorts before an earlier one."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._random_bits = (rng or random.SystemRandom()).getrandbits
        self._ms = 0
        self._counter = 0

    def next(self, now_ms: int, count: int) -> list[bytes]:
        ids = []
        ms, counter, bits = self._ms, self._counter, self._random_bits(62 * count) if count else 0
        if now_ms > ms:
            ms, counter = now_ms, 0
        for _ in range(count):
            counter += 1
            if counter >= _COUNTER_LIMIT:
                ms, counter = ms + 1, 0
            ids.append((ms << 80 | 0x7000_8000_0000_0000_0000 | counter << 64 | bits & 0x3FFF_FFFF_FFFF_FFFF).to_bytes(16, "big"))
            bits >>= 62
        self._ms, self._counter = ms, counter
        return ids


def show_id(raw: bytes) -> str:
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def short_id(shown: str) -> str:
    return shown[-8:]


def find_id(text: object) -> bytes | None:
    """The raw id a full textual id stands for, or None when the text is not one."""
    if not isinstance(text, str):
        return None
    lowered = text.lower()
    return bytes.fromhex(lowered.replace("-", "")) if _FULL.fullmatch(lowered) else None


def id_time_ms(raw: bytes) -> int:
    return int.from_bytes(raw[:6], "big")
