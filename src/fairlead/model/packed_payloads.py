"""Payloads in their stored form: concatenated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import overload


class PackedPayloads(Sequence[bytes]):
    """A payload is sliced out on access. Code that copies whole columns uses the bytes as they are."""

    __slots__ = ("bounds", "raw")

    def __init__(self, raw: bytes, sizes: Sequence[int]) -> None:
        """Raises `ValueError` if the sizes do not add up to the payloads."""
        self.raw = raw
        #: The start of each payload, and the end of the last one.
        self.bounds = [0, *accumulate(sizes)]
        if self.bounds[-1] != len(raw):
            raise ValueError(f"expected payloads of {self.bounds[-1]} bytes, got {len(raw)}")

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [*self][at]
        at = range(len(self))[at]
        return self.raw[self.bounds[at] : self.bounds[at + 1]]

    def __iter__(self) -> Iterator[bytes]:
        raw = self.raw
        return iter([raw[start:end] for start, end in pairwise(self.bounds)])
