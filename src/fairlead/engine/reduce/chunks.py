"""Chunks begin, grow, and are rewritten when little is left of them.

New messages without differences take a short way to the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fairlead.engine.queue import Queue
from fairlead.engine.reduce.hot_room import fits_as_it_is, has_room_for, must_be_cold
from fairlead.engine.reduce.kept_chunks import bytes_of, count_cold, drop_body, keep_cold, note_sparse
from fairlead.engine.reduce.lanes import add_to_lanes
from fairlead.engine.reduce.lives import note_life
from fairlead.engine.reduce.moves import enter_place
from fairlead.engine.reduce.states import begin_waits, restate
from fairlead.engine.reduce.streams import join_streams_at_open, open_streams
from fairlead.records.chunk import Chunk, Columns
from fairlead.records.facts import ChunkEnqueued, ChunkGrown, ChunkThinned, ScatteredEnqueued
from fairlead.records.state import OwnState, RunRow
from fairlead.store.cold_rows import run_of_one

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def enqueued(memory: Memory, fact: ChunkEnqueued) -> None:
    chunk, ready = fact.chunk, fact.ready
    queue = memory.by_id[chunk.queue_id]
    if ready is None and chunk.states is None and fits_as_it_is(memory, queue, chunk):
        _enter_plain(memory, queue, chunk)
        return
    weight = memory.hot_weight(chunk.columns) * chunk.live
    if ready is None and must_be_cold(memory, queue, chunk, weight):
        chunk.has_runs = chunk.has_implied()
        chunk.is_cold = True
        keep_cold(memory, chunk)
        count_cold(memory, queue, 1)
        if chunk.count == 1 and chunk.states is None and chunk.columns.streams is None:
            _enter_alone(memory, queue, chunk)
            return
    else:
        memory.chunks[chunk.block] = chunk
        queue.blocks.add(chunk.block)
        memory.hot_messages += weight
        note_sparse(memory, chunk)
    memory.changes.new_chunks.append(chunk)
    if ready is None:
        _let_in(memory, queue, chunk, chunk.implied(), fact.own, chunk.columns)
        return
    numbers = ready
    if chunk.columns.streams is not None and queue.is_ordered:
        numbers = join_streams_at_open(queue, chunk, ready)
    found = memory.found_lanes[chunk.queue_id]
    for number, lane in zip(numbers, chunk.lanes_of(numbers), strict=True):
        found[lane].append(number)


def _enter_plain(memory: Memory, queue: Queue, chunk: Chunk) -> None:
    """The same as `enqueued`, without its checks."""
    count, columns, changes = chunk.count, chunk.columns, memory.changes
    memory.chunks[chunk.block] = chunk
    queue.blocks.add(chunk.block)
    memory.hot_messages += count
    changes.new_chunks.append(chunk)
    counts = changes.counts[chunk.queue_id] = queue.counts
    counts.ready += count
    counts.bytes += chunk.payload_bytes if columns.headers is None else columns.total_bytes()
    if columns.lane_at is None and type(columns.weights) is int:
        queue.schedule.add(columns.lanes[0], columns.weights, range(chunk.first, chunk.first + count))
    else:
        add_to_lanes(memory, queue, chunk, chunk.numbers)


def _enter_alone(memory: Memory, queue: Queue, chunk: Chunk) -> None:
    """`_let_in` for the only message of a new cold chunk, which is the usual case behind a backlog in many
    lanes.
    """
    columns, number, home_id = chunk.columns, chunk.first, chunk.queue_id
    lane, weight = columns.lanes[0], chunk.weight_of(number)
    memory.changes.new_chunks.append(chunk)
    counts = memory.counts_to_change(queue)
    counts.ready += 1
    counts.bytes += columns.total_bytes()
    if columns.expires is not None and columns.expires[0]:
        note_life(memory, queue, chunk, columns.expires[0])
    memory.changes.runs[home_id, home_id, lane, number, False] = RunRow(number, 1, weight, is_alone=True)
    queue.schedule.add_cold(lane, weight, number)


def scattered(memory: Memory, fact: ScatteredEnqueued) -> None:
    queue, columns, schedule = memory.by_id[fact.queue_id], fact.columns, memory.by_id[fact.queue_id].schedule
    count = len(fact.numbers)
    if not has_room_for(memory, count) and memory.demotion.may_begin(queue, fact.enqueued_ms):
        for lane in columns.lanes:
            memory.demotion.found_no_room(queue, fact.enqueued_ms, [lane])
    count_cold(memory, queue, count)
    counts = memory.counts_to_change(queue)
    counts.ready += count
    counts.bytes += columns.total_bytes()
    schedule.add_cold_ones(columns.lanes_in_order(), columns.weights_in_order(), fact.numbers)
    memory.changes.scattered.append(fact)


def hold_scattered(memory: Memory) -> None:
    """Before a request of the same transaction that may look for messages: load the messages that it
    scattered into memory, like other chunks of the transaction. After enqueues alone, nothing looks for
    them before they are written.
    """
    for fact in memory.changes.scattered:
        for chunk in fact.chunks():
            keep_cold(memory, chunk)
            memory.changes.new_chunks.append(chunk)
            lane, home_id = chunk.columns.lanes[0], chunk.queue_id
            memory.changes.runs[home_id, home_id, lane, chunk.first, False] = run_of_one(chunk.head())
    memory.changes.scattered.clear()


def grown(memory: Memory, fact: ChunkGrown) -> None:
    chunk, own = fact.chunk, fact.own
    queue = memory.by_id[chunk.queue_id]
    before = memory.hot_weight(chunk.columns) * chunk.live
    numbers = chunk.grow(fact.columns, fact.payloads, own)
    memory.hot_messages += memory.hot_weight(chunk.columns) * chunk.live - before
    implied = [number for number in numbers if number not in own] if own else numbers
    _let_in(memory, queue, chunk, implied, own, fact.columns)


def _let_in(
    memory: Memory,
    queue: Queue,
    chunk: Chunk,
    implied: Sequence[int],
    own: Mapping[int, OwnState],
    columns: Columns,
) -> None:
    """Add new messages of a chunk: implied ones, and others that begin with rows of their own. `columns` are
    theirs.
    """
    if chunk.states is not None:
        # Some messages of the chunk begin with rows of their own.
        memory.changes.chunks.add(chunk)
    if own and _wait_from_now(memory, queue, chunk, own, columns):
        own = {}
    for number, state in own.items():
        restate(memory, number, state)
    entering = implied
    if columns.streams is not None and queue.is_ordered:
        waiting = [number for number, state in own.items() if state.due_ms]
        entering = open_streams(memory, queue, chunk, sorted([*implied, *waiting]))
    for number, state in own.items():
        enter_place(memory, chunk, number, state, None)
    counts = memory.counts_to_change(queue)
    counts.ready += len(implied)
    counts.bytes += bytes_of(chunk, implied)
    if columns.expires is not None:
        for end_ms in set(columns.expires) - {0}:
            note_life(memory, queue, chunk, end_ms)
    add_to_lanes(memory, queue, chunk, entering)


def _wait_from_now(
    memory: Memory, queue: Queue, chunk: Chunk, own: Mapping[int, OwnState], columns: Columns
) -> bool:
    """`enter_place` for new waiting messages, all at once. False: some need more than that, and nothing was
    changed.
    """
    if columns.streams is not None or columns.expires is not None:
        return False
    if not all(state.due_ms for state in own.values()):
        return False
    home_id, changes, counts = chunk.queue_id, memory.changes, memory.counts_to_change(queue)
    for number, state in own.items():
        changes.own[home_id, number] = state
    memory.own.update(own)
    counts.bytes += bytes_of(chunk, [*own])
    begin_waits(memory, queue, own)
    return True


def thinned(memory: Memory, fact: ChunkThinned) -> None:
    before, after = fact.before, fact.after
    for end_ms in before.ends_of_life() - after.ends_of_life():
        memory.changes.lives[before.queue_id, end_ms, before.first] = False
    if before.is_cold:
        memory.cold_chunks[after.block] = after
    else:
        memory.hot_messages -= memory.hot_weight(before.columns) * before.live
        memory.hot_messages += memory.hot_weight(after.columns) * after.live
    drop_body(memory, before)
    memory.chunks[after.block] = after
    memory.changes.thinned.append((before, after))
    # Messages may have ended while it was written.
    note_sparse(memory, after)
