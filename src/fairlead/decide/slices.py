"""Which slice of a numbered claim a message is in."""

from __future__ import annotations

from zlib import crc32


def slice_of(place: int, count: int, stream: str, slices: int) -> int:
    """A stream is in one slice, so that one task has all of it in order. A message without one goes by its place among
    the `count` members of the claim: its neighbours, which are stored together, are in the same slice.

    Asked by tasks in other processes and on other machines: the same member must always get the same slice.
    """
    if stream:
        return crc32(stream.encode()) % slices
    return place * slices // count


def places_of(slice: int, count: int, slices: int) -> tuple[int, int]:
    """The first place of a slice of members without a stream, and the one behind its last: as `slice_of` has it."""
    return -(-slice * count // slices), -(-(slice + 1) * count // slices)
