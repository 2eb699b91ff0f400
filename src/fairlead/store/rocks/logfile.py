"""The one kind of damage RocksDB takes for a crash: a flipped length in the last block of a log.

A record that seems to reach beyond the end of its file is, to RocksDB, a write that a crash cut short, and it drops it
with everything behind it. We look first: if that record is whole after all, or a whole record follows it, nothing was
cut short and bytes were changed. The write-ahead log and the manifest share the format: blocks of 32 KiB, records of
checksum (4), length (2), type (1) and data.
"""

from __future__ import annotations

import struct
from pathlib import Path

from fairlead.errors import StoreCorrupt

_BLOCK = 32 * 1024
_HEADER = struct.Struct("<IHB")
_LAST_TYPE = 4  # full, first, middle, last; other types are only met at the start of a log
_MASK_DELTA = 0xA282EAD8


def check_logs(path: Path) -> None:
    """Raise `StoreCorrupt` for a log whose end was damaged, and not merely cut off."""
    for file in (*path.glob("*.log"), *path.glob("MANIFEST-*")):
        at = damage_in_last_block(file)
        if at is not None:
            raise StoreCorrupt(str(file), f"the record at byte {at} has a wrong length")


def find_damage(path: Path) -> tuple[Path, int] | None:
    """Which log is damaged, and at which byte: RocksDB says only that one is. Slow, for the way to an error message."""
    for file in sorted(path.glob("*.log")):
        with open(file, "rb") as log:
            start = 0
            while block := log.read(_BLOCK):
                at = _first_bad_record(block)
                if at is not None:
                    return file, start + at
                start += len(block)
    return None


def _first_bad_record(block: bytes) -> int | None:
    at = 0
    while at + _HEADER.size <= len(block):
        checksum, length, kind = _HEADER.unpack_from(block, at)
        end = at + _HEADER.size + length
        if kind == 0 and length == 0:
            return None
        if end > len(block) or not _fits(checksum, block, at, end):
            return at
        at = end
    return None


def damage_in_last_block(file: Path) -> int | None:
    with open(file, "rb") as log:
        size = log.seek(0, 2)
        start = size - size % _BLOCK
        log.seek(start)
        block = log.read()
    at = 0
    while at + _HEADER.size <= len(block):
        checksum, length, kind = _HEADER.unpack_from(block, at)
        end = at + _HEADER.size + length
        if kind == 0 and length == 0:
            return None  # space set aside and never written
        if end > len(block):
            cut_short = not (_fits(checksum, block, at, len(block)) or _whole_record_after(block, at + 1))
            return None if cut_short else start + at
        at = end
    return None


def _whole_record_after(block: bytes, start: int) -> bool:
    for at in range(start, len(block) - _HEADER.size):
        checksum, length, kind = _HEADER.unpack_from(block, at)
        end = at + _HEADER.size + length
        if 0 < kind <= _LAST_TYPE and length > 0 and end <= len(block) and _fits(checksum, block, at, end):
            return True
    return False


def _fits(checksum: int, block: bytes, at: int, end: int) -> bool:
    """The stored checksum covers type and data, and is masked so that a checksum of checksums is not trivial."""
    crc = crc32c(block[at + 6 : end])
    return checksum == ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
