"""Where a saved message goes: pure rules, from whatever is left of its records."""

from __future__ import annotations

import msgspec

from fairlead.model.facts import InDone, InReady, InStream, InWaiting
from fairlead.model.lane import DEAD_LETTER_LANE, Flag, pack_row
from fairlead.model.message import Message, MessageState, lane_of, seq_of, weight_of
from fairlead.model.queue import QueueRecord

Place = InReady | InStream | InWaiting | InDone


class Spot(msgspec.Struct, frozen=True, gc=False):
    """What an index row says about a message. One of `place`, `due_ms` and `done_ms` is set."""

    queue_id: int
    lane: bytes
    has_state: bool
    place: int = 0
    due_ms: int = 0
    done_ms: int = 0

    @property
    def where(self) -> str:
        if self.due_ms:
            return "waiting"
        return "done" if self.done_ms else "ready"


def state_of(
    message: Message, state: MessageState | None, spot: Spot | None, *, now_ms: int
) -> MessageState | None:
    """The state to store. A lost one is made from the index row, without attempts and failures."""
    if state is None:
        if spot is None or not state_is_lost(message, state, spot):
            return None
        lost = MessageState(spot.queue_id, spot.place, spot.due_ms, spot.done_ms)
        if spot.queue_id == message.queue_id:
            return lost
        # A dead letter. Nobody knows since when: its retention starts now.
        return msgspec.structs.replace(lost, source_queue_id=message.queue_id, dead_since_ms=now_ms)
    if state.done_ms:
        return msgspec.structs.replace(state, place=0, due_ms=0)
    return msgspec.structs.replace(state, place=0) if state.due_ms else state


def state_is_lost(message: Message, state: MessageState | None, spot: Spot | None) -> bool:
    return state is None and spot is not None and (spot.has_state or spot.queue_id != message.queue_id)


def agrees(message: Message, state: MessageState | None, spot: Spot) -> bool:
    """Whether an index row says the same as the message's own records."""
    if state is None:
        known = (message.queue_id, message.place, message.due_ms, 0)
    else:
        known = (state.queue_id, state.place, state.due_ms, state.done_ms)
    return known == (spot.queue_id, spot.place, spot.due_ms, spot.done_ms)


def has_side_rows(message: Message, state: MessageState | None, queue: QueueRecord) -> bool:
    """Dead letters and redriven messages have neither a time to live nor a dedup key any more."""
    return (
        not queue.source_id
        and not (state is not None and state.redrives)
        and message.queue_id == queue.queue_id
    )


def place_of(message: Message, state: MessageState | None, queue: QueueRecord, *, holds_key: bool) -> Place:
    """`state` as `state_of` gives it. `holds_key`: the message holds its dedup key as long as it lives."""
    sides = has_side_rows(message, state, queue)
    done_ms = state.done_ms if state else 0
    due_ms = state.due_ms if state else message.due_ms
    live_key = Flag.LIVE_DEDUP if holds_key and sides and (not done_ms or queue.config.dedup_kept) else 0
    time_to_live = Flag.TTL if message.expires_ms and sides and not done_ms else 0
    flags = (Flag.STATE if state else 0) | live_key | time_to_live
    lane = DEAD_LETTER_LANE if queue.source_id else lane_of(message, state)
    seq = 0 if queue.source_id or done_ms else seq_of(message, state)
    place = 0 if done_ms or due_ms else seq or (state.place if state else message.place)
    row = pack_row(place, message.id, weight_of(message, state), flags, message.size)
    if seq:
        row += message.stream.encode()
    if done_ms:
        return InDone(queue.queue_id, done_ms, lane, row)
    if due_ms:
        return InWaiting(queue.queue_id, due_ms, lane, row)
    return InStream(queue.queue_id, lane, row) if seq else InReady(queue.queue_id, lane, row)
