"""Rows of streams, which lead to messages that memory need not hold.

An implied message is counted in its chunk's row for the stream; a message with a row of its own has a row of
its stream too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.engine.own_states import is_hot_member
from fairlead.engine.queue import Queue
from fairlead.records.chunk import IMPLIED, OWN, Chunk
from fairlead.records.state import MemberRow

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def hot_members(memory: Memory, home: Queue, chunk: Chunk) -> list[int]:
    """Messages in streams that are in memory with their chunk, for a chunk without implied messages."""
    if chunk.is_cold or chunk.columns.streams is None or not home.is_ordered:
        return []
    in_streams = [number for number in chunk.with_own_rows() if chunk.stream_of(number)]
    return [
        number for number in in_streams if number in memory.own and is_hot_member(chunk, memory.own[number])
    ]


def add_members(memory: Memory, chunk: Chunk, numbers: Sequence[int]) -> None:
    """Rows of streams that lead to the messages of a new cold chunk."""
    counts = Counter([chunk.stream_of(number) for number in numbers if chunk.state_of(number) == IMPLIED])
    del counts[""]
    for name, count in counts.items():
        first = chunk.members_of(name)[0]
        key = chunk.lane_of(first)[0]
        member_rows(memory, chunk, name)[first, False] = MemberRow(first, count, key)
    for number in numbers:
        if chunk.state_of(number) == OWN and (name := chunk.stream_of(number)):
            note_member(memory, chunk, number, name)


def note_member(memory: Memory, chunk: Chunk, number: int, stream: str) -> None:
    """A message of a stream has a row of its own. If memory need not hold it, it gets a row of its stream
    too.
    """
    if memory.is_cold_member(number):
        key = memory.lane_and_weight(number)[0][0]
        row = MemberRow(number, 0, key)
        member_rows(memory, chunk, stream)[memory.seq_of(number), True] = row


def forget_member(memory: Memory, chunk: Chunk, number: int, stream: str) -> None:
    """A message with a row of its own leaves its stream."""
    if memory.is_cold_member(number):
        member_rows(memory, chunk, stream)[memory.seq_of(number), True] = None


def member_rows(memory: Memory, chunk: Chunk, stream: str) -> dict[tuple[int, bool], MemberRow | None]:
    """The rows of a stream, some of which change."""
    home_id = chunk.queue_id
    memory.by_id[home_id].streams.row_changed(stream)
    return memory.changes.members.setdefault((home_id, stream), {})
