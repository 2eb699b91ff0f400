"""RocksDB's manifest: the edits that say which tables and logs a database needs and up to which sequence
number it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fairlead.store.rocks.log_format import Data, Defect, RecordWalk, checksums_fit, joined, packed_records

#: The fields behind each tag: a number, a text, or pairs of both that end with the number 1.
_FIELDS = {
    1: "t",
    2: "n",
    3: "n",
    4: "n",
    5: "nt",
    6: "nn",
    9: "n",
    10: "n",
    103: "nnnttnn*",
    200: "n",
    201: "t",
    202: "",
    203: "n",
    300: "n",
}
_COMPARATOR, _LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _DELETED_TABLE, _PREVIOUS_LOG, _MIN_LOG_TO_KEEP = (
    1,
    2,
    3,
    4,
    6,
    9,
    10,
)
_NEW_TABLE, _FAMILY, _ADD_FAMILY, _DROP_FAMILY = 103, 200, 201, 202
#: RocksDB skips unknown tags from here on, so each of them has exactly one text.
_FIRST_OPTIONAL = 1 << 13
_LOG_CLOSED, _LOGS_DELETED = _FIRST_OPTIONAL + 7, _FIRST_OPTIONAL + 8
_CLOSED_LOG_SIZE, _END_OF_PAIRS = 2, 1
_BYTEWISE = b"leveldb.BytewiseComparator"
#: Every row of a database that is read and not written counts, whatever its sequence number.
_ANY_SEQUENCE = 1 << 55
#: Bounds of a table that hold for any keys: internal keys end with 8 bytes of sequence number and type.
_LOWEST_KEY, _HIGHEST_KEY = bytes(8), b"\xff" * 64 + bytes(8)


@dataclass(slots=True)
class Manifest:
    last_sequence: int = 0
    min_log_to_keep: int = 0
    #: By column family: the first log that may hold rows which are in no table yet.
    family_logs: dict[int, int] = field(default_factory=dict)
    #: Closed logs that must exist, and the size each must have at least.
    closed_logs: dict[int, int] = field(default_factory=dict)
    families: dict[int, str] = field(default_factory=dict)
    #: The family of each table.
    tables: dict[int, int] = field(default_factory=dict)

    @property
    def first_log(self) -> int:
        """The first log that RocksDB replays."""
        return max(self.min_log_to_keep, min(self.family_logs.values(), default=0))


def read_manifest(data: Data) -> tuple[Manifest, RecordWalk]:
    """Apply all edits up to the first defect. Checksums are checked too: RocksDB reads its manifest in a
    tolerant mode.
    """
    manifest, walk = Manifest(), RecordWalk(data)
    for spans in walk:
        at = spans[0][0]
        if not checksums_fit(data, spans):
            walk.defect = Defect(at, f"wrong checksum of the record at byte {at}")
            break
        try:
            _apply(manifest, joined(data, spans))
        except (IndexError, KeyError) as unknown:
            walk.defect = Defect(at, f"cannot read the edit at byte {at} ({unknown!r})")
            break
    return manifest, walk


def _apply(manifest: Manifest, edit: bytes) -> None:
    numbers: dict[int, int] = {}
    new_tables: list[int] = []
    name = ""
    at = 0
    while at < len(edit):
        tag, at = read_number(edit, at)
        value, text = 0, b""
        values: list[int] = []
        for kind in "t" if tag >= _FIRST_OPTIONAL else _FIELDS[tag]:
            value, at = read_number(edit, at)
            values.append(value)
            if kind == "t":
                text, at = edit[at : at + value], at + value
            while kind == "*" and value != _END_OF_PAIRS:
                size, at = read_number(edit, at)
                value, at = read_number(edit, at + size)
        numbers[tag] = value
        # One edit may close several logs.
        if tag == _LOG_CLOSED:
            _close_log(manifest, text)
        elif tag == _LOGS_DELETED:
            numbers[tag] = read_number(text, 0)[0]
        elif tag == _NEW_TABLE:
            new_tables.append(values[1])
        elif tag == _DELETED_TABLE:
            manifest.tables.pop(values[1], None)
        elif tag == _ADD_FAMILY:
            name = text.decode()
    family = numbers.get(_FAMILY, 0)
    manifest.last_sequence = max(manifest.last_sequence, numbers.get(_LAST_SEQUENCE, 0))
    manifest.min_log_to_keep = max(manifest.min_log_to_keep, numbers.get(_MIN_LOG_TO_KEEP, 0))
    # An edit that moves a table to another level deletes it and adds it again.
    manifest.tables |= dict.fromkeys(new_tables, family)
    if name:
        manifest.families[family] = name
    if _DROP_FAMILY in numbers:
        manifest.family_logs.pop(family, None)
    elif _LOG_NUMBER in numbers:
        manifest.family_logs[family] = max(numbers[_LOG_NUMBER], manifest.family_logs.get(family, 0))
    if _LOGS_DELETED in numbers:
        manifest.closed_logs = {
            log: size for log, size in manifest.closed_logs.items() if log >= numbers[_LOGS_DELETED]
        }


def packed_manifest(manifest: Manifest, table_sizes: dict[int, int]) -> Iterator[bytes]:
    """Encode a manifest for a read-only database. It lists all tables on the first level, even if their key
    ranges overlap.
    """
    next_file = max([*table_sizes, *manifest.family_logs.values(), 1]) + 1_000_000
    numbers = {
        _NEXT_FILE: next_file,
        _LAST_SEQUENCE: _ANY_SEQUENCE,
        _PREVIOUS_LOG: 0,
        _MIN_LOG_TO_KEEP: manifest.min_log_to_keep,
    }
    edits = [
        _text_field(_COMPARATOR, _BYTEWISE)
        + b"".join(packed_numbers(tag, value) for tag, value in numbers.items())
    ]
    edits[0] += packed_numbers(_LOG_NUMBER, manifest.family_logs.get(0, 0))
    for family, name in manifest.families.items():
        log = packed_numbers(_LOG_NUMBER, manifest.family_logs.get(family, 0))
        edits.append(
            _text_field(_COMPARATOR, _BYTEWISE)
            + log
            + packed_numbers(_FAMILY, family)
            + _text_field(_ADD_FAMILY, name.encode())
        )
    for table, size in table_sizes.items():
        bounds = _text(_LOWEST_KEY) + _text(_HIGHEST_KEY) + packed_numbers(0, _ANY_SEQUENCE, _END_OF_PAIRS)
        edits.append(
            packed_numbers(_NEW_TABLE, 0, table, size)
            + bounds
            + packed_numbers(_FAMILY, manifest.tables[table])
        )
    return packed_records(edits)


def _text_field(tag: int, text: bytes) -> bytes:
    return packed_numbers(tag) + _text(text)


def _text(text: bytes) -> bytes:
    return packed_numbers(len(text)) + text


def packed_numbers(*numbers: int) -> bytes:
    packed = bytearray()
    for number in numbers:
        while number >= 128:
            packed.append(number & 127 | 128)
            number >>= 7
        packed.append(number)
    return bytes(packed)


def _close_log(manifest: Manifest, text: bytes) -> None:
    log, at = read_number(text, 0)
    if text[at] == _CLOSED_LOG_SIZE:
        manifest.closed_logs[log] = read_number(text, at + 1)[0]


def read_number(edit: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = shift = 0
    while (byte := edit[at]) >= 128:
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
    return value | byte << shift, at + 1
