"""Writes records as RocksDB's log writer does, to continue a log with a record of one's own."""

from __future__ import annotations

import struct

import google_crc32c

from .cases import BLOCK_BYTES, HEADER_BYTES

FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def frame(data: bytes, at: int = 0) -> bytes:
    """The bytes of one record behind a file that ends at byte `at`."""
    framed, first = b"", True
    while data or first:
        left = BLOCK_BYTES - (at + len(framed)) % BLOCK_BYTES
        if left < HEADER_BYTES:
            framed += bytes(left)
            continue
        piece, data = data[: left - HEADER_BYTES], data[left - HEADER_BYTES :]
        kind = (FIRST if data else FULL) if first else (MIDDLE if data else LAST)
        crc = google_crc32c.value(bytes([kind]) + piece)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        framed += struct.pack("<IHB", masked, len(piece), kind) + piece
        first = False
    return framed


def batch(sequence: int, body: bytes, rows: int = 1) -> bytes:
    """The beginning of a write batch. RocksDB refuses the body, so it may only stand in a record that is cut
    off.
    """
    return struct.pack("<QI", sequence, rows) + body


def put(sequence: int, value: bytes) -> bytes:
    """A whole write batch: one row in the default column family, where the store keeps nothing."""
    return batch(sequence, b"\x01" + b"\x03key" + varint(len(value)) + value)


def varint(number: int) -> bytes:
    encoded = b""
    while number >= 128:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])
