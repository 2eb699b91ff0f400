"""Where a message is that nobody holds: read from its records, as exactly as its rows have it."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.broker.core import Core
from fairlead.model.facts import InDone, InReady, InStream, InWaiting
from fairlead.model.lane import DEAD_LETTER_LANE, Flag, pack_row
from fairlead.model.message import Message, MessageState, lane_of, seq_of, weight_of
from fairlead.model.stream import StreamRow

Resting = InReady | InStream | InWaiting | InDone

_PAGE = 1000


def locate(core: Core, message_id: bytes) -> Resting | None:
    """None when there is no such message. Not for leased ones: ask the lease book first."""
    message = core.message(message_id)
    if message is None:
        return None
    state = core.store.states([message_id])[0]
    queue_id, due_ms, place = (state.queue_id, state.due_ms, state.place) if state else (message.queue_id, message.due_ms, message.place)
    dead = state is not None and state.source_queue_id != 0
    lane = DEAD_LETTER_LANE if dead else lane_of(message, state)
    if state is not None and state.done_ms:
        flags = Flag.STATE | (Flag.LIVE_DEDUP if _holds_key(core, message) else 0)
        return InDone(queue_id, state.done_ms, lane, pack_row(0, message_id, weight_of(message, state), flags, message.size))
    in_stream = not dead and seq_of(message, state) != 0
    row = pack_row(0 if due_ms else place, message_id, weight_of(message, state), flags_of(message, state), message.size)
    if in_stream:
        row += message.stream.encode()
    if due_ms:
        return InWaiting(queue_id, due_ms, lane, row)
    if in_stream:
        record = core.store.streams(queue_id, [message.stream])[0]
        if record is None or record.front != place:
            return InStream(queue_id, lane, row)
    return InReady(queue_id, lane, row)


def behind_fronts(core: Core, queue_id: int) -> Iterator[InStream]:
    """Every message that is ready behind the front of its stream, stream by stream and in order."""
    for member in stream_members(core, queue_id):
        spot = locate(core, member.id) if core.leases.find(member.id) is None else None
        if isinstance(spot, InStream):
            yield spot


def stream_members(core: Core, queue_id: int) -> Iterator[StreamRow]:
    """All messages of streams that have more than one; one alone is its stream's front, leased, or waiting."""
    name = ""
    while streams := core.store.streams_after(queue_id, name, _PAGE):
        for name, record in streams:
            page = [record.first] if record.live > 1 else []
            while page:
                yield from page
                page = core.store.stream_rows(queue_id, name, page[-1].seq, _PAGE)


def _holds_key(core: Core, message: Message) -> bool:
    """Does it still stand for its dedup key, though it is done? Another may have come after a redrive, or the queue kept none then."""
    return message.live_dedup and core.store.dedup(message.queue_id, [message.dedup_key])[0] == (message.id, 0)


def flags_of(message: Message, state: MessageState | None) -> int:
    """A dead letter and a redriven one have lost their time to live and their dedup key."""
    if state is None:
        return message.flags
    return Flag.STATE if state.source_queue_id or state.redrives else message.flags | Flag.STATE
