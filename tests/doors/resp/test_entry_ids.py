"""Ids of entries and ids of messages are the same, both ways, and in the same order."""

from __future__ import annotations

import pytest

from fairlead import NewMessage
from fairlead.errors import InvalidRequest
from fairlead.model.ids import find_id
from fairlead.server.resp.streams.entry_ids import (
    FIRST,
    LAST,
    EntryId,
    entry_id_of_text,
    read_end,
    read_entry_id,
    read_start,
)
from fairlead.testing import ManualClock, open_in_memory


def test_ids_of_messages_come_back_and_sort_by_their_enqueues() -> None:
    """Also where the clock steps back, and of many messages of one commit, which go into several chunks."""
    clock = ManualClock()
    with open_in_memory(clock=clock) as broker:
        broker.create_queue("q")
        ids = [broker.enqueue("q", b"") for _ in range(5000)]
        ids += broker.enqueue_many("q", [NewMessage(b"", stream=str(n % 7)) for n in range(9000)])
        clock.jump(ms=-60_000)
        ids += [broker.enqueue("q", b"") for _ in range(10)]
    entry_ids = [entry_id_of_text(message_id) for message_id in ids]
    assert [one.message_id for one in entry_ids] == ids
    assert [one.raw_id for one in entry_ids] == [find_id(message_id) for message_id in ids]
    assert entry_ids == sorted(set(entry_ids))


def test_ids_that_no_message_can_have_stand_for_none() -> None:
    assert EntryId(1 << 48, 0).raw_id == bytes(16)
    assert EntryId(0, (1 << 64) - 1).raw_id == bytes(16)
    assert entry_id_of_text(LAST.message_id) == LAST


def test_bounds_of_ranges_are_read_as_redis_reads_them() -> None:
    assert (read_start(b"-"), read_end(b"+")) == (FIRST, LAST)
    assert (read_start(b"7"), read_end(b"7")) == ((7, 0), (7, LAST.seq))
    assert (read_start(b"(7-3"), read_end(b"(7-3")) == ((7, 4), (7, 2))
    assert read_end(b"(7-0") == (6, LAST.seq)
    for wrong in (b"", b"x", b"7-", b"-7", b"7-3-1", b"$", b"\xff", b"1" * 30):
        with pytest.raises(InvalidRequest):
            read_entry_id(wrong)
