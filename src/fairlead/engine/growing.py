"""The chunk that enqueues of one transaction into one queue share, so that a thousand single messages are one head and
a few pages.
"""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.records.chunk import Chunk, Columns, LaneName


class GrowingChunk:
    """A chunk of the transaction that is open. Its lanes are indexed when it grows for the first time."""

    __slots__ = ("_lanes", "chunk")

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self._lanes: dict[LaneName, int] = {}

    def fit(self, columns: Columns) -> Columns:
        """Columns of messages that are about to join, as `Chunk.grow` wants them."""
        known = self._lanes
        if not known:
            known.update((lane, at) for at, lane in enumerate(self.chunk.columns.lanes))
        before = len(known)
        at = [known.setdefault(lane, len(known)) for lane in columns.lanes]
        new = tuple([lane for lane, index in zip(columns.lanes, at, strict=True) if index >= before])
        if len(known) == 1:
            lane_at = None
        elif columns.lane_at is None:
            lane_at = at * len(columns.sizes)
        else:
            lane_at = [at[index] for index in columns.lane_at]
        return replace(columns, lanes=new, lane_at=lane_at)
