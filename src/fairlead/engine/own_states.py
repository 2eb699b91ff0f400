"""What the state of a message with a row of its own says, together with its chunk. Pure questions."""

from __future__ import annotations

from fairlead.model.lane import lane_key, lane_throttle_keys
from fairlead.records.chunk import Chunk, LaneName
from fairlead.records.state import OwnState


def own_lane(chunk: Chunk, number: int, state: OwnState) -> LaneName:
    """The lane of a message in the queue that it was enqueued into."""
    if not state.lane:
        return chunk.lane_of(number)
    return (lane_key(state.lane), *lane_throttle_keys(state.lane))


def is_hot_member(chunk: Chunk, state: OwnState) -> bool:
    """Of a message in a stream, or of one that has left it: whether it is there, and in memory with its chunk."""
    is_there = state.queue_id == chunk.queue_id and not state.done_ms
    return is_there and not chunk.is_cold and not state.seq


def in_first_life(state: OwnState, chunk: Chunk) -> bool:
    """Time to live and dedup key end with the first death; a redrive does not bring them back."""
    return state.queue_id == chunk.queue_id and not state.redrives
