"""The chunk that enqueues of one transaction into one queue share, so that a thousand single messages are one
head and a few pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fairlead.engine.reduce.hot_room import has_room_to_gather
from fairlead.records.chunk import Chunk, Columns, LaneName
from fairlead.records.facts import ChunkGrown

if TYPE_CHECKING:
    from fairlead.config import Settings
    from fairlead.engine.memory import Memory


class GrowingChunk:
    """A chunk of the open transaction. Its lanes are indexed when it grows for the first time.

    Messages with only a payload, a key and a weight are gathered, and join the chunk together before the
    first read: in `Transaction.add_gathered`.
    """

    __slots__ = ("_bytes", "_keys", "_lanes", "_payloads", "_weights", "chunk")

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self._lanes: dict[LaneName, int] = {}
        self._payloads: list[bytes] = []
        self._keys: list[str] = []
        self._weights: list[int] = []
        self._bytes = 0

    def gather(self, memory: Memory, settings: Settings, payload: bytes, key: str, weight: int) -> int | None:
        """The number of the message; None if it must not be gathered."""
        chunk, gathered = self.chunk, len(self._payloads)
        if not has_room_to_gather(memory, chunk, gathered + 1, self._bytes + len(payload)):
            return None
        if not memory.has_room_for_lanes(settings, memory.by_id[chunk.queue_id], gathered + 1):
            return None
        self._payloads.append(payload)
        self._keys.append(key)
        self._weights.append(weight)
        self._bytes += len(payload)
        return chunk.first + chunk.count + gathered

    def take_gathered(self) -> ChunkGrown | None:
        """The fact that adds them to the chunk; None if there are none."""
        payloads, keys, weights = self._payloads, self._keys, self._weights
        if not payloads:
            return None
        self._payloads, self._keys, self._weights, self._bytes = [], [], [], 0
        lanes = {key: at for at, key in enumerate(dict.fromkeys(keys))}
        columns = Columns(
            tuple([(key,) for key in lanes]),
            None if len(lanes) == 1 else [lanes[key] for key in keys],
            weights[0] if weights.count(weights[0]) == len(weights) else weights,
            None,
            [*map(len, payloads)],
        )
        return ChunkGrown(self.chunk, self.fit(columns), payloads, {})

    def fit(self, columns: Columns) -> Columns:
        """The columns of messages that are about to join, in the form that `Chunk.grow` needs."""
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
