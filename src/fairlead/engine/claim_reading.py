"""What the readers of a numbered claim share.

Tasks of one micro-batch read the same claim at the same time, each another slice of it, and the messages of a slice
are in nearly all chunks of the claim. So the members are cut into slices once for all readers, and a reader finds the
payloads of a chunk that another one has at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from weakref import WeakValueDictionary

from fairlead.decide.slices import slices_of
from fairlead.engine.chunk_messages import ChunkMessages
from fairlead.engine.delivery_columns import ChunkColumns
from fairlead.records.chunk import Chunk
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT


class ClaimReading:
    """The members of an open claim and their chunks stay as they are, so nothing of this changes. Needs no lock: what
    two readers make at the same time is the same.

    `by_stream`: a stream is in one slice.
    """

    def __init__(
        self, members: list[int], chunks: Mapping[int, Chunk], *, is_ordered: bool, by_stream: bool
    ) -> None:
        self.members = members
        self.chunks = chunks
        self._columns = {block: ChunkColumns(chunk, is_ordered=is_ordered) for block, chunk in chunks.items()}
        self._is_ordered = is_ordered
        self._by_stream = by_stream
        self._slices: list[list[int]] = [members]
        #: By block. Payloads stay as long as a reader or a page has them.
        self._stored: WeakValueDictionary[int, ChunkMessages] = WeakValueDictionary()

    def slice(self, slice: int, slices: int) -> list[int]:
        # Another reader may cut it into another number of slices meanwhile.
        cut = self._slices
        if len(cut) != slices:
            cut = self._slices = self._cut(slices)
        return cut[slice]

    def _cut(self, slices: int) -> list[list[int]]:
        if slices == 1:
            return [self.members]
        slice_of = {
            block: slices_of(chunk.slice_names(by_stream=self._by_stream), slices)
            for block, chunk in self._columns.items()
        }
        found: list[list[int]] = [[] for _ in range(slices)]
        for number in self.members:
            found[slice_of[number >> BLOCK_SHIFT][number & BLOCK_MASK]].append(number)
        return found

    def stored_in(self, block: int, read: Callable[[Chunk], Sequence[bytes]]) -> ChunkMessages:
        stored = self._stored.get(block)
        if stored is None:
            chunk = self.chunks[block]
            columns = self._columns[block]
            stored = ChunkMessages(chunk, chunk.columns, read(chunk), self._is_ordered, columns)
            self._stored[block] = stored
        return stored
