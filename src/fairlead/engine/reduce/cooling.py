"""Hot chunks become cold: those that were demoted to make room, and those without implied messages.

A chunk becomes cold once and never hot again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.engine.queue import Queue
from fairlead.engine.reduce.kept_chunks import count_cold, keep_cold
from fairlead.engine.reduce.lanes import demote_lanes, find_in_lanes
from fairlead.engine.reduce.stream_members import add_members, hot_members, note_member
from fairlead.records.chunk import Chunk
from fairlead.records.facts import ChunkDemoted
from fairlead.records.ids import BLOCK_SHIFT
from fairlead.records.stream import Stream

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def demoted(memory: Memory, fact: ChunkDemoted) -> None:
    chunk = fact.chunk
    home = memory.by_id[chunk.queue_id]
    in_lanes, in_streams = find_in_lanes(memory, home, chunk), hot_members(memory, home, chunk)
    if chunk.columns.streams is not None and home.is_ordered:
        in_streams += [number for number in chunk.implied() if chunk.stream_of(number)]
    _make_cold(memory, home, chunk)
    memory.demoted.append(chunk)
    chunk.has_runs = True
    demote_lanes(memory, home, chunk, in_lanes)
    add_members(memory, chunk, in_streams)
    firsts: dict[str, int] = {}
    for number in sorted(in_streams):
        firsts.setdefault(chunk.stream_of(number), number)
    for name, first in firsts.items():
        memory.touched_states.update(home.streams.demote(name, first))


def cool_chunks(memory: Memory) -> None:
    """Before a write: a chunk without implied messages need not be read at open, and no lane leads to it."""
    for chunk in list(memory.changes.chunks):
        if not chunk.live or chunk.has_implied():
            continue
        home = memory.by_id[chunk.queue_id]
        if _must_stay_hot(memory, home, chunk):
            continue
        if chunk.has_runs:
            chunk.has_runs = False
            memory.changes.cooled.add(chunk)
        elif not chunk.is_cold:
            waiting = hot_members(memory, home, chunk)
            _make_cold(memory, home, chunk)
            for number in waiting:
                stream = chunk.stream_of(number)
                note_member(memory, chunk, number, stream)
                memory.used_streams.add((home.home_id, stream))
                memory.touched_states.add(number)


def _make_cold(memory: Memory, home: Queue, chunk: Chunk) -> None:
    """Its messages need not be in memory any more. The caller handles the rows that lead to them."""
    memory.hot_messages -= memory.hot_weight(chunk.columns) * chunk.live
    del memory.chunks[chunk.block]
    home.blocks.discard(chunk.block)
    chunk.is_cold = True
    keep_cold(memory, chunk)
    count_cold(memory, home, 1)
    memory.changes.cooled.add(chunk)


def _must_stay_hot(memory: Memory, home: Queue, chunk: Chunk) -> bool:
    """Whether a chunk without implied messages has messages in streams that stay in memory with it. Waiting
    ones need not, unless others of their streams behind them must.
    """
    if chunk.columns.streams is None:
        return False
    members = hot_members(memory, home, chunk)
    if not all(map(memory.waits, members)):
        return True
    return any(_has_hot_behind(memory, home, chunk, name) for name in set(map(chunk.stream_of, members)))


def _has_hot_behind(memory: Memory, home: Queue, chunk: Chunk, name: str) -> bool:
    """Whether a later hot chunk has a message of the stream."""
    stream = home.streams.by_name.get(name)
    numbers = stream.numbers if isinstance(stream, Stream) else ()
    return any(one >> BLOCK_SHIFT > chunk.block and not memory.is_cold_member(one) for one in numbers)
