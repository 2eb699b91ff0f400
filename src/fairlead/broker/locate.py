"""Where messages are, read from their records as exactly as their rows have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fairlead.broker.core import Core
from fairlead.model.facts import InDone, InLease, InReady, InStream, InWaiting, Spot
from fairlead.model.lane import DEAD_LETTER_LANE, Flag, pack_row
from fairlead.model.message import Message, MessageState, lane_of, seq_of, weight_of

Resting = InReady | InStream | InWaiting | InDone


class Located(NamedTuple):
    message: Message
    state: MessageState | None
    spot: Spot


def locate_all(core: Core, ids: Sequence[bytes]) -> list[Located | None]:
    """Under the lock: messages with their records, leased or not, in two reads for all of them; None where
    there is no message.
    """
    found: list[Located | None] = []
    for message_id, message, state in zip(ids, core.messages(ids), core.store.states(ids), strict=True):
        if message is None:
            found.append(None)
            continue
        lease = core.leases.find(message_id)
        found.append(
            Located(message, state, InLease(lease) if lease is not None else _exactly(core, message, state))
        )
    return found


def locate(core: Core, message_id: bytes) -> Resting | None:
    """None when there is no such message. Not for leased ones: ask the lease book first."""
    message = core.message(message_id)
    return None if message is None else _exactly(core, message, core.store.states([message_id])[0])


def _exactly(core: Core, message: Message, state: MessageState | None) -> Resting:
    queue_id, due_ms, place = (
        (state.queue_id, state.due_ms, state.place)
        if state
        else (message.queue_id, message.due_ms, message.place)
    )
    dead = state is not None and state.source_queue_id != 0
    lane = DEAD_LETTER_LANE if dead else lane_of(message, state)
    if state is not None and state.done_ms:
        flags = Flag.STATE | (Flag.LIVE_DEDUP if _holds_key(core, message) else 0)
        return InDone(
            queue_id,
            state.done_ms,
            lane,
            pack_row(0, message.id, weight_of(message, state), flags, message.size),
        )
    in_stream = not dead and seq_of(message, state) != 0
    row = pack_row(
        0 if due_ms else place, message.id, weight_of(message, state), flags_of(message, state), message.size
    )
    if in_stream:
        row += message.stream.encode()
    if due_ms:
        return InWaiting(queue_id, due_ms, lane, row)
    if in_stream:
        record = core.store.streams(queue_id, [message.stream])[0]
        if record is None or record.front != place:
            return InStream(queue_id, lane, row)
    return InReady(queue_id, lane, row)


def _holds_key(core: Core, message: Message) -> bool:
    """Does it still stand for its dedup key, though it is done? Another may have come after a redrive, or the
    queue kept none then.
    """
    return message.live_dedup and core.store.dedup(message.queue_id, [message.dedup_key])[0] == (
        message.id,
        0,
    )


def flags_of(message: Message, state: MessageState | None) -> int:
    """A dead letter and a redriven one have lost their time to live and their dedup key."""
    if state is None:
        return message.flags
    return Flag.STATE if state.source_queue_id or state.redrives else message.flags | Flag.STATE


def resting(message: Message, state: MessageState | None) -> InReady | InWaiting | InDone:
    """Where its record says it is, for a look: it does not tell whether the message is the front of its
    stream.
    """
    queue_id, place, due_ms, done_ms = (
        (state.queue_id, state.place, state.due_ms, state.done_ms)
        if state
        else (message.queue_id, message.place, message.due_ms, 0)
    )
    lane = DEAD_LETTER_LANE if state is not None and state.source_queue_id else lane_of(message, state)
    # What is done has no time to live any more.
    flags = Flag.STATE if done_ms else flags_of(message, state)
    row = pack_row(0 if due_ms else place, message.id, weight_of(message, state), flags, message.size)
    if done_ms:
        return InDone(queue_id, done_ms, lane, row)
    return InWaiting(queue_id, due_ms, lane, row) if due_ms else InReady(queue_id, lane, row)
