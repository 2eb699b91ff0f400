"""State that the readers of a numbered claim share.

Tasks of one micro-batch read the same claim at the same time, each another slice. A reader reuses the
payloads of a chunk that another one has loaded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from weakref import WeakValueDictionary

from fairlead.decide.slices import places_of, slice_of
from fairlead.engine.chunk_messages import ChunkMessages
from fairlead.engine.delivery_columns import ChunkColumns
from fairlead.records.chunk import Chunk
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT


class ClaimReading:
    """The members of an open claim and their chunks do not change, so nothing here does. Needs no lock: two
    readers that build the same value at the same time build equal values.

    `by_stream`: a whole stream is in one slice.
    """

    def __init__(
        self, members: list[int], chunks: Mapping[int, Chunk], *, is_ordered: bool, by_stream: bool
    ) -> None:
        self.members = members
        self._chunks = chunks
        self._columns = {block: ChunkColumns(chunk, is_ordered=is_ordered) for block, chunk in chunks.items()}
        self._is_ordered = is_ordered
        self._has_streams = by_stream and any(one.columns.streams is not None for one in chunks.values())
        #: For a claim with streams, the slices for the last requested number of slices.
        self._slices: list[list[int]] = []
        #: By block. Payloads stay while a reader or a page uses them.
        self._stored: WeakValueDictionary[int, ChunkMessages] = WeakValueDictionary()

    def slice(self, slice: int, slices: int) -> list[int]:
        if not self._has_streams:
            start, end = places_of(slice, len(self.members), slices)
            return self.members[start:end]
        # Another reader may request another number of slices meanwhile.
        cut = self._slices
        if len(cut) != slices:
            cut = self._slices = self._cut(slices)
        return cut[slice]

    def _cut(self, slices: int) -> list[list[int]]:
        streams = {block: columns.streams for block, columns in self._columns.items()}
        count = len(self.members)
        found: list[list[int]] = [[] for _ in range(slices)]
        for place, number in enumerate(self.members):
            of_chunk = streams[number >> BLOCK_SHIFT]
            stream = "" if of_chunk is None else of_chunk[number & BLOCK_MASK]
            found[slice_of(place, count, stream, slices)].append(number)
        return found

    def pages(self, members: list[int], *, most_messages: int, most_bytes: int) -> Iterator[list[int]]:
        """Pages of members. A page ends with the message that reaches a bound."""
        sizes = {block: chunk.columns.message_sizes() for block, chunk in self._chunks.items()}
        ends = [*accumulate([sizes[number >> BLOCK_SHIFT][number & BLOCK_MASK] for number in members])]
        start = before = 0
        while start < len(members):
            full = bisect_left(ends, before + most_bytes, start) + 1
            end = min(full, start + most_messages, len(members))
            yield members[start:end]
            start, before = end, ends[end - 1]

    def stored_in(self, block: int, read: Callable[[Chunk], Sequence[bytes]]) -> ChunkMessages:
        stored = self._stored.get(block)
        if stored is None:
            chunk = self._chunks[block]
            columns = self._columns[block]
            stored = ChunkMessages(chunk, chunk.columns, read(chunk), self._is_ordered, columns)
            self._stored[block] = stored
        return stored
