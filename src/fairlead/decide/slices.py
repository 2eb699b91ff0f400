"""Which slice of a numbered claim a message belongs to."""

from __future__ import annotations

from zlib import crc32


def slice_of(place: int, count: int, stream: str, slices: int) -> int:
    """The slice of a member. A whole stream is in one slice, so that one task processes it in order.

    A message without a stream is assigned by its place among the `count` members of the claim, so that
    messages stored together are read together. Tasks in other processes and on other machines compute this
    too: the same member must always get the same slice.
    """
    if stream:
        return crc32(stream.encode()) % slices
    return place * slices // count


def places_of(slice: int, count: int, slices: int) -> tuple[int, int]:
    """The first place of a slice of members without a stream, and the place after its last one; the inverse
    of `slice_of`.
    """
    return -(-slice * count // slices), -(-(slice + 1) * count // slices)
