"""Lanes and rows in bytes, as the scheduler holds them: a lane is a fairness key with its throttle keys, a row
is a ready message.
"""

from __future__ import annotations

import struct


def pack_lane(key: str, throttle_keys: tuple[str, ...] = ()) -> bytes:
    raw = key.encode()
    packed = b"".join(len(t).to_bytes(2, "big") + t for t in (k.encode() for k in throttle_keys))
    return len(raw).to_bytes(2, "big") + raw + len(packed).to_bytes(2, "big") + packed


def lane_key(lane: bytes) -> str:
    return lane[2 : 2 + int.from_bytes(lane[:2], "big")].decode()


def lane_throttle_keys(lane: bytes) -> tuple[str, ...]:
    at = 4 + int.from_bytes(lane[:2], "big")
    keys = []
    while at < len(lane):
        length = int.from_bytes(lane[at : at + 2], "big")
        keys.append(lane[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return tuple(keys)


_ROW = struct.Struct(">Q16sHBI")
pack_row = _ROW.pack  # place, id, weight, flags, size


def row_place(row: bytes) -> int:
    return int.from_bytes(row[:8], "big")


def row_id(row: bytes) -> bytes:
    return row[8:24]


def row_weight(row: bytes) -> int:
    return int.from_bytes(row[24:26], "big")
