"""Packed lanes: one value for a fairness key and throttle keys.

A *lane* is a (fairness key, throttle keys) pair. Its packed form is injective and self-delimiting, so that
the key of a row can continue behind it, and all lanes of a fairness key sort together.
"""

from __future__ import annotations

DEFAULT_KEY = "default"


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
    """The end of the lane that begins at `start`."""
    at = start + 2 + int.from_bytes(raw[start : start + 2], "big")
    return at + 2 + int.from_bytes(raw[at : at + 2], "big")
