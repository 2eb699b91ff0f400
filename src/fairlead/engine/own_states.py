"""Questions about the state of a message with a row of its own, together with its chunk. Pure functions."""

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
    """For a message that is or was in a stream: whether it is in memory with its chunk."""
    is_there = state.queue_id == chunk.queue_id and not state.done_ms
    return is_there and not chunk.is_cold and not state.seq


def in_first_life(state: OwnState, chunk: Chunk) -> bool:
    """Whether the message is in its first life. Time to live and dedup key end with the first death; a
    redrive does not restore them.
    """
    return state.queue_id == chunk.queue_id and not state.redrives
