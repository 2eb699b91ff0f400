"""The file format that RocksDB's write-ahead logs and manifests share.

A file consists of blocks of 32 KiB, a block of records: checksum (4 bytes), length (2), type (1), data. A
record that does not fit into its block continues in the next one, in fragments. Fewer than 7 bytes at the end
of a block are padding.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import google_crc32c

BLOCK_BYTES = 32 * 1024
HEADER = struct.Struct("<IHB")
HEADER_BYTES = HEADER.size
_CHECKSUM = struct.Struct("<I")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

Data = bytes | mmap.mmap
#: Start and end of the data of each fragment of a record.
Spans = list[tuple[int, int]]

_MASK_DELTA = 0xA282EAD8
_BEGINNING = re.compile(rb"[\x01\x02]")


@dataclass(frozen=True, slots=True)
class Defect:
    """Where a walk had to stop. `torn`: the file ends inside a record, as after a write that was cut short."""

    at: int
    what: str
    torn: bool = False


class RecordWalk:
    """Iterates over the whole records of a file, as RocksDB would read them, but accepts only the types 1 to
    4, in order.

    Afterwards `whole` is the end of the last whole record, and `defect` describes what follows it, if
    anything does. Checksums are not read: `checksums_fit` does that.
    """

    __slots__ = ("data", "defect", "whole")

    def __init__(self, data: Data, start: int = 0) -> None:
        self.data = data
        self.whole = start
        self.defect: Defect | None = None

    def __iter__(self) -> Iterator[Spans]:
        data, unpack, at, size = self.data, HEADER.unpack_from, self.whole, len(self.data)
        spans: Spans = []
        while at < size:
            left = BLOCK_BYTES - at % BLOCK_BYTES
            if left < HEADER_BYTES:
                if at + left > size:
                    self.defect = Defect(at, f"the file ends inside the padding at byte {at}", torn=True)
                    return
                at += left
                continue
            if at + HEADER_BYTES > size:
                self.defect = Defect(at, f"the file ends inside the header at byte {at}", torn=True)
                return
            _, length, kind = unpack(data, at)
            end = at + HEADER_BYTES + length
            if not FULL <= kind <= LAST or HEADER_BYTES + length > left or bool(spans) != (kind >= MIDDLE):
                self.defect = Defect(at, f"unexpected record of type {kind} and {length} bytes at byte {at}")
                return
            if end > size:
                self.defect = Defect(at, f"the file ends inside the record at byte {at}", torn=True)
                return
            spans.append((at + HEADER_BYTES, end))
            at = end
            if kind in (FULL, LAST):
                yield spans
                spans, self.whole = [], at
        if spans:
            self.defect = Defect(
                size, f"the file ends inside the record at byte {spans[0][0] - HEADER_BYTES}", torn=True
            )


def checksums_fit(data: Data, spans: Spans) -> bool:
    return all(_fits(data, start - HEADER_BYTES, end) for start, end in spans)


def joined(data: Data, spans: Spans) -> bytes:
    return b"".join([data[start:end] for start, end in spans])


def record_beginnings(data: Data, start: int) -> Iterator[int]:
    """The position of every header behind `start` that begins a record and has a right checksum, at any
    alignment.
    """
    for found in _BEGINNING.finditer(data, start + HEADER_BYTES - 1):
        at = found.start() - (HEADER_BYTES - 1)
        length = HEADER.unpack_from(data, at)[1]
        end = at + HEADER_BYTES + length
        if length and end <= min(len(data), at + BLOCK_BYTES - at % BLOCK_BYTES) and _fits(data, at, end):
            yield at


def find_true_end(data: Data, at: int) -> int | None:
    """Where the record at `at` ends if its length is wrong and all else in it is right; None if its checksum
    fits no length.
    """
    if at + HEADER_BYTES > len(data):
        return None
    stored = HEADER.unpack_from(data, at)[0]
    crc = google_crc32c.value(data[at + HEADER_BYTES - 1 : at + HEADER_BYTES])
    last = min(len(data), at + BLOCK_BYTES - at % BLOCK_BYTES)
    for end in range(at + HEADER_BYTES, last + 1):
        if stored == _masked(crc):
            return end
        crc = google_crc32c.extend(crc, data[end : end + 1])
    return None


def next_beginning(data: Data, defect: int) -> int | None:
    """The header from which a walk can go on behind a defect: the first one of a later block that begins a
    record.

    A block begins with a header in any case. Inside a block only a payload's bytes might look like one.
    """
    for block in range(defect - defect % BLOCK_BYTES + BLOCK_BYTES, len(data) - HEADER_BYTES, BLOCK_BYTES):
        _, length, kind = HEADER.unpack_from(data, block)
        end = block + HEADER_BYTES + int(length)
        if end > min(len(data), block + BLOCK_BYTES) or not _fits(data, block, end):
            continue
        if kind in (FULL, FIRST):
            return block
        if kind == LAST:
            return end
    return None


def restored_header(data: Data, at: int) -> bytes | None:
    """The header at `at` with the one type and length that its checksum allows, if another whole header or an
    end follows.
    """
    room = min(len(data), at + BLOCK_BYTES - at % BLOCK_BYTES) - at - HEADER_BYTES
    if room < 0:
        return None
    (stored,) = _CHECKSUM.unpack_from(data, at)
    crc_of = {kind: google_crc32c.value(bytes((kind,))) for kind in (FULL, FIRST, MIDDLE, LAST)}
    for length in range(room + 1):
        for kind, crc in crc_of.items():
            if _masked(crc) == stored and _ends_well(data, at + HEADER_BYTES + length):
                return HEADER.pack(stored, length, kind)
        if length < room:
            byte = data[at + HEADER_BYTES + length : at + HEADER_BYTES + length + 1]
            crc_of = {kind: google_crc32c.extend(crc, byte) for kind, crc in crc_of.items()}
    return None


def _ends_well(data: Data, end: int) -> bool:
    left = -end % BLOCK_BYTES
    if end == len(data) or left < HEADER_BYTES:
        return True
    if end + HEADER_BYTES > len(data):
        return False
    following = end + HEADER_BYTES + HEADER.unpack_from(data, end)[1]
    return following <= min(len(data), end + left) and _fits(data, end, following)


def packed_records(records: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a log or manifest with these records."""
    left = BLOCK_BYTES
    for record in records:
        at, kinds = 0, (FULL, FIRST)
        while True:
            if left < HEADER_BYTES:
                yield bytes(left)
                left = BLOCK_BYTES
            piece = record[at : at + left - HEADER_BYTES]
            at += len(piece)
            kind = kinds[at < len(record)]
            yield HEADER.pack(_masked_checksum(bytes((kind,)) + piece), len(piece), kind) + piece
            left -= HEADER_BYTES + len(piece)
            if at == len(record):
                break
            kinds = (LAST, MIDDLE)


def _fits(data: Data, at: int, end: int) -> bool:
    """The stored checksum covers type and data."""
    return bool(HEADER.unpack_from(data, at)[0] == _masked_checksum(data[at + HEADER_BYTES - 1 : end]))


def _masked_checksum(data: bytes) -> int:
    return _masked(google_crc32c.value(data))


def _masked(crc: int) -> int:
    """RocksDB masks a checksum so that a checksum of checksums is not trivial."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
