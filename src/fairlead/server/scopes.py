"""Names of consumers, claims and requests that no other key can say. Without a key they are as they were
given.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from fairlead.model.ids import find_id, show_id
from fairlead.model.limits import MAX_ANSWERED


def scoped(key_id: str | None, text: str) -> str:
    """Too long a one is refused by the engine, in its words."""
    return text if key_id is None or not isinstance(text, str) else f"{key_id}/{text}"


def scoped_id(key_id: str, request_id: str) -> str:
    """Of another key the same id is another; its time, by which it is forgotten, stays."""
    raw_id = find_id(request_id)
    if raw_id is None or raw_id[6] >> 4 != 7:
        # For the engine to refuse, in its words.
        return request_id
    mixed = sha256(key_id.encode() + raw_id).digest()
    return show_id(
        raw_id[:6] + bytes([0x70 | mixed[0] & 0x0F, mixed[1], 0x80 | mixed[2] & 0x3F]) + mixed[3:10]
    )


def scoped_ids(key_id: str, request_ids: Sequence[str]) -> Sequence[str]:
    if not isinstance(request_ids, (list, tuple)) or len(request_ids) > MAX_ANSWERED:
        return request_ids
    return [scoped_id(key_id, one) for one in request_ids]
