"""Frames on a pipe: a length in four bytes, little-endian, then that many bytes."""

from __future__ import annotations

import os
import struct

_LENGTH = struct.Struct("<I")
_MAX_BYTES = (1 << 32) - 1
_READ_BYTES = 1 << 20


class FrameTooLong(Exception):
    """A frame announces more bytes than its reader accepts."""


def pack_frame(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def take_frames(buffer: bytearray, max_bytes: int = _MAX_BYTES) -> list[bytes]:
    """Remove the complete frames from the front of the buffer and return their bodies.

    Raises `FrameTooLong` only once the frames before the long one have been taken.
    """
    found: list[bytes] = []
    at, size = 0, len(buffer)
    while size - at >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer, at)
        if length > max_bytes and not found:
            raise FrameTooLong
        end = at + _LENGTH.size + length
        if end > size or length > max_bytes:
            break
        found.append(bytes(buffer[at + _LENGTH.size : end]))
        at = end
    if at:
        del buffer[:at]
    return found


def read_frame(fd: int) -> bytes:
    """Read one frame from a blocking descriptor. Raises `EOFError` when the other side has closed."""
    (length,) = _LENGTH.unpack(_read_exactly(fd, _LENGTH.size))
    return _read_exactly(fd, length)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read_exactly(fd: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(fd, min(size, _READ_BYTES))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
