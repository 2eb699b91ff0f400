"""The states of single messages: read, restated, waiting, and no longer implied.

A state that changes is changed in memory and in a row of the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fairlead.engine.queue import Queue
from fairlead.engine.reduce.stream_members import member_rows, note_member
from fairlead.records.chunk import IMPLIED, OWN, Chunk
from fairlead.records.facts import DoneRead, DueRead, MessageRestated, StatesRead
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT
from fairlead.records.state import OwnState

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def states_read(memory: Memory, fact: StatesRead) -> None:
    memory.own.update(fact.states)
    memory.touched_states.update(fact.states)


def due_read(memory: Memory, fact: DueRead) -> None:
    memory.by_id[fact.queue_id].next_due_ms = fact.next_ms


def done_read(memory: Memory, fact: DoneRead) -> None:
    memory.by_id[fact.queue_id].first_done_ms = fact.first_ms


def restated(memory: Memory, fact: MessageRestated) -> None:
    chunk = memory.chunk_of(fact.number)
    mark_own(memory, chunk, fact.number)
    restate(memory, fact.number, fact.state)
    memory.known_waits.restated(fact.state.queue_id, fact.number, fact.state)
    stream = memory.stream_of(fact.number, fact.state.queue_id)
    if stream and not fact.state.done_ms:
        note_member(memory, chunk, fact.number, stream)


def restate(memory: Memory, number: int, state: OwnState) -> None:
    """Give a message this state, in memory and in its row. Nothing that follows from the state is changed."""
    memory.own[number] = state
    memory.touched_states.add(number)
    chunk = memory.chunks.get(number >> BLOCK_SHIFT) or memory.chunk_of(number)
    memory.changes.own[chunk.queue_id, number] = state


def begin_waits(memory: Memory, queue: Queue, states: Mapping[int, OwnState]) -> None:
    """Let messages without streams wait. Memory has their states until the transaction ends."""
    changes, home_id = memory.changes, queue.home_id
    counts = memory.counts_to_change(queue)
    counts.waiting += len(states)
    memory.known_waits.began(queue.record.queue_id, states, counts.waiting)
    memory.touched_states.update(states)
    for number, state in states.items():
        changes.due[home_id, state.due_ms, number] = True
    first_ms = min([state.due_ms for state in states.values()])
    queue.next_due_ms = min(queue.next_due_ms or first_ms, first_ms)


def mark_own(memory: Memory, chunk: Chunk, number: int) -> None:
    """A message has a row of its own from now on."""
    if chunk.state_of(number) != OWN:
        mark(memory, chunk, [number], OWN)


def mark(memory: Memory, chunk: Chunk, numbers: Sequence[int], state: int) -> None:
    """Messages of a chunk are no longer implied. The rows of a lane and of a stream go with the last implied
    message.
    """
    if not chunk.is_cold:
        chunk.mark(numbers, state)
        memory.changes.chunks.add(chunk)
        return
    is_ordered = memory.by_id[chunk.queue_id].is_ordered
    streams = chunk.columns.streams if is_ordered else None
    in_lanes = numbers
    if chunk.states is not None:
        in_lanes = [number for number in numbers if chunk.state_of(number) == IMPLIED]
    names: set[str] = set()
    if streams is not None:
        names = set(map(chunk.stream_of, in_lanes)) - {""}
        in_lanes = [number for number in in_lanes if not streams[number & BLOCK_MASK]]
    if chunk.has_runs and in_lanes:
        home_id, runs = chunk.queue_id, memory.changes.runs
        for lane, first in chunk.left_lanes(in_lanes, is_ordered=is_ordered):
            runs[home_id, home_id, lane, first, False] = None
    chunk.mark(numbers, state)
    memory.changes.chunks.add(chunk)
    for name in names:
        if not chunk.has_implied_of(name):
            member_rows(memory, chunk, name)[chunk.members_of(name)[0], False] = None
