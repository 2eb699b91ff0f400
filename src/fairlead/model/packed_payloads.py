"""Payloads as they are stored: one behind the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import overload


class PackedPayloads(Sequence[bytes]):
    """A payload is cut out when somebody asks for it; who copies columns takes all of them as they are."""

    __slots__ = ("bounds", "raw")

    def __init__(self, raw: bytes, sizes: Sequence[int]) -> None:
        """Raises `ValueError` if these are not the sizes of the payloads."""
        self.raw = raw
        #: Where each payload begins, and the end of the last one.
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
