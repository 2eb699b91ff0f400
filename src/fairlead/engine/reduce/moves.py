"""Messages move: from one state of the life cycle to another, or out of the queue.

`_leave_place` removes a message from its place, and `enter_place` adds it where its new state says. Messages
that move together end as if each had moved alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.decide.lifecycle import NOWHERE, Where, check_step, place_of
from fairlead.engine.own_states import is_hot_member
from fairlead.engine.queue import Queue
from fairlead.engine.reduce.chunk_ends import messages_gone
from fairlead.engine.reduce.hot_room import has_room_at_tail
from fairlead.engine.reduce.kept_chunks import note_sparse
from fairlead.engine.reduce.lanes import (
    is_behind_memory,
    leave_lane_as_front,
    leave_plain_lane,
    stand_at_tail,
)
from fairlead.engine.reduce.leases import note_delivery_ended, take_from_lease
from fairlead.engine.reduce.lives import forget_key, note_life
from fairlead.engine.reduce.states import begin_waits, mark, mark_own, restate
from fairlead.engine.reduce.stream_members import forget_member, note_member
from fairlead.records.chunk import IMPLIED, OWN, Chunk, by_chunk
from fairlead.records.facts import MessageGone, MessageMoved, MessagesMoved, Move
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT
from fairlead.records.state import OwnState, RunRow

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory

#: The states that messages that move together leave and enter.
_STEPS_TOGETHER: dict[str, tuple[Where, Where]] = {
    "due": (Where.WAITING, Where.READY),
    "retried": (Where.LEASED, Where.READY),
    "delayed": (Where.LEASED, Where.WAITING),
}


def moved(memory: Memory, fact: MessageMoved) -> None:
    number = fact.number
    if fact.why is None:
        _load(memory, number, fact.state)
        return
    chunk, before = memory.chunk_of(number), memory.state_of(number)
    source = place_of(before, is_leased=number in memory.held)
    check_step(fact.why, source, place_of(fact.state, is_leased=False))
    stays = fact.state.queue_id == before.queue_id and fact.why != "completed"
    _leave_place(memory, chunk, number, before, stays=stays)
    if fact.why in ("buried", "completed") and not fact.state.keeps_key:
        forget_key(memory, chunk, number)
    mark_own(memory, chunk, number)
    enter_place(memory, chunk, number, fact.state, fact.why)


def moved_together(memory: Memory, fact: MessagesMoved) -> None:
    """As `moved` for each of them, which is called for each if anything but lanes and times must change."""
    queue, numbers, states, lease = memory.by_id[fact.queue_id], fact.numbers, fact.states, fact.lease
    before = [] if lease is not None else [memory.state_of(number) for number in numbers]
    if not _move_alike(memory, queue, fact, before):
        for one in fact.one_by_one():
            moved(memory, one)
        return
    home_id, counts, changes, ready = (
        queue.home_id,
        memory.counts_to_change(queue),
        memory.changes,
        fact.why != "delayed",
    )
    check_step(fact.why, *_STEPS_TOGETHER[fact.why])
    if lease is None:
        counts.waiting -= len(numbers)
        memory.known_waits.ended(fact.queue_id, numbers)
        for number, state in zip(numbers, before, strict=True):
            changes.due[home_id, state.due_ms, number] = False
    else:
        counts.leased -= len(numbers)
        for number in numbers:
            del memory.held[number]
        take_from_lease(memory, lease, len(numbers))
        for block, members in by_chunk(numbers):
            chunk = memory.chunks[block]
            implied = [number for number in members if chunk.state_of(number) == IMPLIED]
            if implied:
                mark(memory, chunk, implied, OWN)
    for number, state in zip(numbers, states, strict=True):
        memory.own[number] = changes.own[home_id, number] = state
    if ready:
        counts.ready += len(numbers)
        stand_at_tail(memory, queue, numbers, states)
        return
    begin_waits(memory, queue, dict(zip(numbers, states, strict=True)))


def ended(memory: Memory, fact: MessageGone) -> None:
    number = fact.number
    chunk, state = memory.chunk_of(number), memory.state_of(number)
    check_step(fact.why, place_of(state, is_leased=number in memory.held), NOWHERE)
    forget_key(memory, chunk, number)
    _leave_place(memory, chunk, number, state)
    if memory.own.pop(number, None) is not None:
        memory.changes.own[chunk.queue_id, number] = None
    messages_gone(memory, chunk, [number], chunk.columns.size_of(number & BLOCK_MASK))


def _move_alike(memory: Memory, queue: Queue, fact: MessagesMoved, before: Sequence[OwnState]) -> bool:
    """Whether these moves have no effect on streams, lives, and keys with a limit, and all messages are where
    such a move begins.
    """
    if queue.is_dead_letter_queue or queue.record.config.max_unsettled_per_key:
        return False
    for block in {number >> BLOCK_SHIFT for number in fact.numbers}:
        columns = memory.chunk_of(block << BLOCK_SHIFT).columns
        if columns.expires is not None or (columns.streams is not None and queue.is_ordered):
            return False
    if fact.lease is None:
        waits = all(state.due_ms and state.queue_id == fact.queue_id for state in before)
        return waits and memory.held.keys().isdisjoint(fact.numbers)
    return not fact.lease.is_numbered and [*map(memory.held.get, fact.numbers)].count(fact.lease) == len(
        fact.numbers
    )


def _load(memory: Memory, number: int, state: OwnState) -> None:
    """At open: a message with a row of its own is leased, as a following fact says, or in a stream."""
    restate(memory, number, state)
    stream = memory.stream_of(number, state.queue_id)
    if stream and is_hot_member(memory.chunk_of(number), state):
        memory.by_id[state.queue_id].streams.join(stream, number)


def enter_place(memory: Memory, chunk: Chunk, number: int, state: OwnState, why: Move | None) -> None:
    """Add the message to the queue that its state names: ready, waiting or done."""
    restate(memory, number, state)
    queue = memory.by_id[state.queue_id]
    if state.done_ms:
        memory.counts_to_change(queue).done += 1
        memory.changes.done[chunk.queue_id, state.done_ms, number] = True
        queue.first_done_ms = min(queue.first_done_ms or state.done_ms, state.done_ms)
        return
    end_ms = 0 if chunk.columns.expires is None else memory.end_of_life(number)
    if end_ms:
        # Its row may be gone: lives that end while their messages are leased are skipped.
        note_life(memory, queue, chunk, end_ms)
    counts = memory.counts_to_change(queue)
    counts.bytes += chunk.columns.size_of(number & BLOCK_MASK)
    if state.due_ms:
        counts.waiting += 1
        memory.known_waits.began(state.queue_id, {number: state}, counts.waiting)
        memory.changes.due[chunk.queue_id, state.due_ms, number] = True
        queue.next_due_ms = min(queue.next_due_ms or state.due_ms, state.due_ms)
    else:
        counts.ready += 1
    _stand(memory, number, state, why)


def _stand(memory: Memory, number: int, state: OwnState, why: Move | None) -> None:
    """Add the message to its stream, or to its lane if it can be delivered."""
    if state.done_ms:
        return
    queue = memory.by_id[state.queue_id]
    stream = memory.stream_of(number, state.queue_id)
    if stream:
        if why is not None:
            # A new message has joined with its chunk.
            queue.streams.join(stream, number)
        note_member(memory, memory.chunk_of(number), number, stream)
    elif not state.due_ms and not state.claim_id:
        lane, weight = memory.lane_in(queue, number)
        key = (queue.home_id, state.queue_id, lane, state.place, True)
        memory.changes.runs[key] = RunRow(number, 0, weight)
        # A message at the tail is the latest of its key, and sets its weight; a released one is not.
        is_latest = why != "released"
        if is_behind_memory(queue, lane, state) or (is_latest and not has_room_at_tail(memory, queue)):
            if is_latest:
                queue.schedule.add_cold(lane, weight, state.place)
        else:
            queue.schedule.insert(lane, weight, number, is_latest=is_latest)


def _leave_place(memory: Memory, chunk: Chunk, number: int, state: OwnState, *, stays: bool = False) -> None:
    """Remove the message from its place. It moves, leaves permanently, or stays in its queue."""
    queue = memory.by_id[state.queue_id]
    if state.done_ms:
        memory.counts_to_change(queue).done -= 1
        memory.changes.done[chunk.queue_id, state.done_ms, number] = False
        return
    stream = memory.stream_of(number, state.queue_id)
    # Only the front of a stream is in a lane.
    is_front = queue.streams.move(stream, number) if stream else False
    counts, lease = memory.counts_to_change(queue), memory.held.pop(number, None)
    if lease is not None:
        if queue.record.config.max_unsettled_per_key:
            note_delivery_ended(memory, queue, number)
        take_from_lease(memory, lease, 1)
        counts.leased -= 1
        if lease.is_numbered:
            # It prevented its chunk from being rewritten.
            note_sparse(memory, chunk)
    elif state.due_ms:
        counts.waiting -= 1
        memory.known_waits.ended(state.queue_id, [number])
        memory.changes.due[chunk.queue_id, state.due_ms, number] = False
    else:
        counts.ready -= 1
        if is_front:
            leave_lane_as_front(memory, queue, number)
        elif not stream:
            leave_plain_lane(memory, queue, chunk, number, state)
    if stream and chunk.state_of(number) == OWN:
        forget_member(memory, chunk, number, stream)
    if stream and not stays:
        queue.streams.leave(stream, number)
        if not chunk.has_implied():
            # It may have been the last one that kept its chunk in memory.
            memory.changes.chunks.add(chunk)
    counts.bytes -= chunk.columns.size_of(number & BLOCK_MASK)
