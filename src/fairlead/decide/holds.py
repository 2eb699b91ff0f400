"""How many messages and bytes one hold of the engine lock may change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from fairlead.model.limits import HOLD_BYTES, HOLD_MESSAGES


class HasSize(Protocol):
    @property
    def size(self) -> int: ...


Sized = TypeVar("Sized", bound=HasSize)


def in_holds(candidates: Iterable[Sized]) -> Iterator[list[Sized]]:
    """The candidates in parts, each small enough for one hold of the lock."""
    part: list[Sized] = []
    size = 0
    for candidate in candidates:
        part.append(candidate)
        size += candidate.size
        if size >= HOLD_BYTES or len(part) >= HOLD_MESSAGES:
            yield part
            part, size = [], 0
    if part:
        yield part
