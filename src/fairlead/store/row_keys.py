"""Keys of numbers: big-endian, so that keys sort by them."""

from __future__ import annotations

from struct import Struct

_PACK = [Struct(f">{count}Q").pack for count in range(4)]
#: The keys in nearly every commit, and those of rows by time.
pack_one, pack_two, pack_three = _PACK[1], _PACK[2], _PACK[3]
numbers_of_three = Struct(">3Q").unpack


def pack_key(*numbers: int) -> bytes:
    return _PACK[len(numbers)](*numbers)


def numbers_in(key: bytes) -> list[int]:
    """The numbers that a key begins with."""
    return [int.from_bytes(key[at : at + 8], "big") for at in range(0, len(key) - 7, 8)]
