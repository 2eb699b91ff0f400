"""Give a table whose properties, metaindex or footer are damaged a new end, so that RocksDB reads its rows.

A table is data blocks, filter, index, properties, metaindex, footer. The metaindex says where the properties
are, the footer where metaindex and index are. Rows are found by the index alone, but RocksDB opens no table
without sound properties. So RocksDB writes another table that is longer; the damaged one is laid over its
beginning, and its footer is made to point to the damaged one's index. Checksums of index and data blocks are
still checked when they are read.
"""

from __future__ import annotations

from pathlib import Path

from rocksdict import Cache, Options, Rdict

from fairlead.store.rocks.manifest import packed_numbers, read_number
from fairlead.store.rocks.options import MIB, Shape, family_options

#: Type of checksum (1), places of metaindex and index (40), version (4), magic number (8).
_FOOTER_BYTES = 53
_PLACES = slice(1, 41)
#: What the metaindex of a table without deleted ranges may name. The first is the bloom filter.
_WITHOUT_RANGES = {b"fullfilter.rocksdb.BuiltinBloomFilter", b"rocksdb.properties"}


def mend_table(table: Path, scratch: Path) -> Path | None:
    """A copy of the table with a new end, in the new directory `scratch`; None if the footer cannot be read.
    The copy has the rows of the table, but not its deletions of ranges.
    """
    content = table.read_bytes()
    places = read_footer(content)
    if places is None:
        return None
    mended = _write_longer_table(scratch, len(content))
    sound = mended.read_bytes()
    sound_places = read_footer(sound)
    assert sound_places is not None
    footer = packed_numbers(*sound_places[:2], *places[2:]).ljust(_PLACES.stop - _PLACES.start, b"\0")
    with open(mended, "r+b") as file:
        file.write(content)
        file.seek(len(sound) - _FOOTER_BYTES + _PLACES.start)
        file.write(footer)
    return mended


def has_no_ranges(table: Path) -> bool:
    """Whether the table surely deletes no ranges of rows: its metaindex is whole and names no such block."""
    content = table.read_bytes()
    places = read_footer(content)
    if places is None:
        return False
    start, size = places[:2]
    names = _names_in(content[start : start + size])
    return names is not None and set(names) <= _WITHOUT_RANGES


def _write_longer_table(scratch: Path, size: int) -> Path:
    """A sound table whose only block of data is longer than `size`."""
    options = family_options(Shape(), Cache(MIB), Options(raw_mode=True))
    options.create_if_missing(True)
    database = Rdict(str(scratch), options=options)
    database.put(b"", bytes(size))
    database.flush()
    database.close()
    (table,) = scratch.glob("*.sst")
    return table


def read_footer(content: bytes) -> list[int] | None:
    """Start and size of the metaindex, start and size of the index."""
    numbers: list[int] = []
    at, places = 0, content[-_FOOTER_BYTES:][_PLACES]
    try:
        for _ in range(4):
            number, at = read_number(places, at)
            numbers.append(number)
    except IndexError:
        return None
    return numbers


def _names_in(block: bytes) -> list[bytes] | None:
    """The keys of a metaindex block. Each is whole, and each has a place in the array at the block's end."""
    count = int.from_bytes(block[-4:], "little")
    end, at = len(block) - 4 * (count + 1), 0
    names: list[bytes] = []
    try:
        while at < end:
            _shared, at = read_number(block, at)
            size, at = read_number(block, at)
            value_size, at = read_number(block, at)
            names.append(block[at : at + size])
            at += size + value_size
    except IndexError:
        return None
    return names if at == end and len(names) == count and names else None
