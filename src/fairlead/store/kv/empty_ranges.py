"""Ranges of a table's keys that are known to hold no row.

A queue drains at its front. RocksDB keeps a marker for each deleted row until a compaction, so every scan
from the front would walk over the markers of all earlier rows. A scan that has walked over them once records
the range here, and the next one begins after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

#: Beyond this number, ranges are forgotten: a forgotten range costs one more walk.
MAX_RANGES = 10_000


class EmptyRanges:
    """The empty ranges of one table. Ranges do not overlap. An end of None is the end of the table."""

    __slots__ = ("_ends", "_starts", "end")

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._ends: list[bytes | None] = []
        #: No range reaches beyond this key; None: the last one reaches to the end of the table.
        self.end: bytes | None = b""

    def behind(self, start: bytes) -> bytes | None:
        """The first key from `start` on that a row may have; None if there is no row from `start` on."""
        at = bisect_right(self._starts, start) - 1
        if at < 0:
            return start
        end = self._ends[at]
        return None if end is None else max(start, end)

    def note(self, start: bytes, end: bytes | None) -> None:
        """No row has a key with `start <= key < end`."""
        if end is not None and end <= start:
            return
        first = bisect_left(self._starts, start)
        if first and _reaches(self._ends[first - 1], start):
            first -= 1
            start = self._starts[first]
        last = first
        while last < len(self._starts) and (end is None or self._starts[last] <= end):
            found = self._ends[last]
            end = None if end is None or found is None else max(end, found)
            last += 1
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        self.end = self._ends[-1]
        if len(self._starts) > MAX_RANGES:
            self.clear()

    def fill(self, key: bytes) -> None:
        """A row has this key now. The range ends there: rows are added at the tail, so the rest is not worth
        a range of its own.
        """
        at = bisect_right(self._starts, key) - 1
        if at < 0:
            return
        end = self._ends[at]
        if end is not None and end <= key:
            return
        if self._starts[at] == key:
            del self._starts[at], self._ends[at]
        else:
            self._ends[at] = key
        self.end = self._ends[-1] if self._ends else b""

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()
        self.end = b""


def _reaches(end: bytes | None, key: bytes) -> bool:
    return end is None or end >= key
