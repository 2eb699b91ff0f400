"""Packed forms that the scheduler holds by the hundred thousand.

A *lane* is a (fairness key, throttle keys) pair; its packed id is injective, self-delimiting and sorts all
lanes of a key together. A *row* is one ready message of a lane: place, id, weight, flags and size in 31 bytes
that sort by place, and behind them the name of its stream, if it has one. Bytes instead of objects, because
the garbage collector does not walk them and a window of read-ahead rows costs a third of what tuples do.
Everything else treats both as opaque and asks the functions below.
"""

from __future__ import annotations

import struct
from typing import Final

DEFAULT_KEY = "default"


class Flag:
    """What else is stored about a message, so that no transition reads or deletes a record that is not there.

    Plain numbers: an `IntFlag` costs half a microsecond per test, several times per message.
    """

    STATE: Final = 1
    TTL: Final = 2
    LIVE_DEDUP: Final = 4
    #: Only in the rows of a stream: it began waiting, and until it has a state its due time is in the message
    #: itself.
    DELAYED: Final = 8


def pack_lane(key: str, throttle_keys: tuple[str, ...] = ()) -> bytes:
    raw = key.encode()
    if not throttle_keys:
        return len(raw).to_bytes(2, "big") + raw + b"\0\0"
    packed = b"".join(len(t).to_bytes(2, "big") + t for t in (k.encode() for k in throttle_keys))
    return len(raw).to_bytes(2, "big") + raw + len(packed).to_bytes(2, "big") + packed


def lane_key(lane: bytes) -> str:
    return lane[2 : 2 + int.from_bytes(lane[:2], "big")].decode()


def lane_throttle_keys(lane: bytes) -> tuple[str, ...]:
    at = 4 + int.from_bytes(lane[:2], "big")
    if at == len(lane):
        return ()
    keys = []
    while at < len(lane):
        length = int.from_bytes(lane[at : at + 2], "big")
        keys.append(lane[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return tuple(keys)


def lane_end(raw: bytes, start: int) -> int:
    """Where a lane that begins at `start` ends."""
    at = start + 2 + int.from_bytes(raw[start : start + 2], "big")
    return at + 2 + int.from_bytes(raw[at : at + 2], "big")


def key_prefix(key: str) -> bytes:
    """What the ids of all lanes of a key begin with."""
    raw = key.encode()
    return len(raw).to_bytes(2, "big") + raw


#: Dead letters all sit in one lane, so that place is dead-since order.
DEAD_LETTER_LANE = pack_lane(DEFAULT_KEY)

_ROW = struct.Struct(">Q16sHBI")
ROW_BYTES = _ROW.size
pack_row = _ROW.pack  # place, id, weight, flags, size


def row_place(row: bytes) -> int:
    return int.from_bytes(row[:8], "big")


def row_id(row: bytes) -> bytes:
    return row[8:24]


def row_weight(row: bytes) -> int:
    return int.from_bytes(row[24:26], "big")


def row_flags(row: bytes) -> int:
    return row[26]


def row_size(row: bytes) -> int:
    return int.from_bytes(row[27:31], "big")


def row_stream(row: bytes) -> str:
    """The stream that orders the message; "" when none does."""
    return row[ROW_BYTES:].decode() if len(row) > ROW_BYTES else ""


def move_row(row: bytes, place: int, flags: int) -> bytes:
    """The same message at another place."""
    return place.to_bytes(8, "big") + row[8:26] + bytes((flags,)) + row[27:]


PLACE_INDEX_BITS = 20


def first_place(commit: int) -> int:
    """Places are handed out per commit, so that no counter of its own has to survive a crash."""
    return commit << PLACE_INDEX_BITS
