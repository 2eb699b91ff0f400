"""The chunks of one queue in memory, in the order of their numbers, so that a view can continue where it
stopped.

A chunk is added at the end, unless it was read from disk. A chunk that left is skipped, and forgotten when
half of the list has left, so an enqueue and a completion cost next to nothing here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from fairlead.records.chunk import Chunk

#: The list is cleaned when more of its chunks than this have left, and more than remain.
_MIN_GONE = 64


class Blocks:
    """Blocks of the chunks of a queue. `chunks` tells which of them still exist."""

    __slots__ = ("_blocks", "_chunks", "_gone")

    def __init__(self, chunks: Mapping[int, Chunk]) -> None:
        self._chunks = chunks
        self._blocks: list[int] = []
        self._gone = 0

    def __len__(self) -> int:
        return len(self._blocks) - self._gone

    def __iter__(self) -> Iterator[int]:
        return (block for block in self._blocks if block in self._chunks)

    def add(self, block: int) -> None:
        """Add the chunk of that block."""
        blocks = self._blocks
        if not blocks or blocks[-1] < block:
            blocks.append(block)
            return
        at = bisect_left(blocks, block)
        if at < len(blocks) and blocks[at] == block:
            # It left, and returned before the list was cleaned.
            self._gone -= 1
        else:
            blocks.insert(at, block)

    def discard(self, block: int) -> None:
        """The chunk of that block has left."""
        self._gone += 1
        if self._gone > _MIN_GONE and 2 * self._gone > len(self._blocks):
            self._blocks = [one for one in self._blocks if one in self._chunks]
            self._gone = 0

    def last_before(self, block: int) -> int | None:
        """The last block before that one whose chunk exists."""
        at = bisect_left(self._blocks, block)
        earlier = (self._blocks[index] for index in range(at - 1, -1, -1))
        return next((one for one in earlier if one in self._chunks), None)

    def chunks_from(self, block: int, limit: int) -> tuple[list[Chunk], int | None]:
        """Of the next `limit` chunks from there on, those that exist; and where to continue, None at the end."""
        start = bisect_left(self._blocks, block)
        found = [self._chunks[one] for one in self._blocks[start : start + limit] if one in self._chunks]
        if start + limit >= len(self._blocks):
            return found, None
        return found, self._blocks[start + limit]
