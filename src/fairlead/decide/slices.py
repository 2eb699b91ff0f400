"""Which slice of a numbered claim a message is in."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32


def slice_of_name(name: bytes, slices: int) -> int:
    """`name`: the message's stream, so that one task has all of it in order; its id where there is none.

    Asked by tasks in other processes, on other machines and in later versions: the same name must always give
    the same slice.
    """
    return crc32(name) % slices


def slices_of(names: Iterable[bytes], slices: int) -> list[int]:
    """`slice_of_name` of many names."""
    return [crc32(name) % slices for name in names]
