"""Ends of messages' lives, and remembered dedup keys.

The earliest end of a queue is a hint for the timer; the rows have all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.engine.own_states import in_first_life
from fairlead.engine.queue import Queue
from fairlead.records.chunk import Chunk
from fairlead.records.facts import KeysForgotten, KeysRemembered, LivesEnded, WindowsEnded

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def note_life(memory: Memory, queue: Queue, chunk: Chunk, end_ms: int) -> None:
    memory.changes.lives[chunk.queue_id, end_ms, chunk.first] = True
    queue.next_life_ms = min(queue.next_life_ms or end_ms, end_ms)


def lives_ended(memory: Memory, fact: LivesEnded) -> None:
    memory.by_id[fact.queue_id].next_life_ms = fact.next_ms
    for end_ms, first in fact.ended:
        memory.changes.lives[fact.queue_id, end_ms, first] = False


def keys_remembered(memory: Memory, fact: KeysRemembered) -> None:
    queue = memory.by_id[fact.queue_id]
    for key, row in fact.rows.items():
        memory.changes.dedup[fact.queue_id, key] = row
        if row.until_ms:
            queue.next_window_ms = min(queue.next_window_ms or row.until_ms, row.until_ms)


def keys_forgotten(memory: Memory, fact: KeysForgotten) -> None:
    memory.changes.dedup.update(dict.fromkeys([(fact.queue_id, key) for key in fact.keys], None))


def forget_key(memory: Memory, chunk: Chunk, number: int) -> None:
    """A message is about to leave its queue permanently: its dedup key may be used again, if it was
    remembered as long as the message lived. A message that died or was completed may have lost its key to
    another one.
    """
    key, state = chunk.live_key(number), memory.state_of(number)
    if key and in_first_life(state, chunk) and (not state.done_ms or state.keeps_key):
        memory.changes.dedup[chunk.queue_id, key] = None


def windows_ended(memory: Memory, fact: WindowsEnded) -> None:
    memory.by_id[fact.queue_id].next_window_ms = fact.next_ms
    for until_ms, key in fact.ended:
        memory.changes.ended_windows.add((fact.queue_id, until_ms, key))
