"""Runs: the later messages of a stream that go out in the same claim as its head."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fairlead.broker.core import Core
from fairlead.broker.queue_state import QueueState
from fairlead.broker.streams import StreamDraft, exact_row, resting
from fairlead.decide.ordering import Standing, may_follow
from fairlead.model.lane import lane_key, lane_throttle_keys, row_place, row_size, row_stream
from fairlead.model.message import MessageState
from fairlead.model.stream import StreamRow

_PAGE = 64


def followers_of(
    core: Core,
    queue: QueueState,
    head: tuple[bytes, bytes],
    room: int,
    room_bytes: int,
    now_ms: int,
    *,
    free: bool = False,
    up_to: int | None = None,
) -> list[tuple[bytes, bytes]]:
    """In order, without a gap, as long as each may go, has its tokens, and its key has room. They pay like
    any other.

    `free` says that nothing waits before the head, where it is not the first of its stream: a longer run goes
    on. Nobody behind the place `up_to` goes.
    """
    if room < 1 or room_bytes <= 0:
        return []
    name, seq = row_stream(head[1]), row_place(head[1])
    record = core.store.streams(queue.queue_id, [name])[0]
    if record is None or record.live == 1:
        return []
    draft = StreamDraft(core, queue.queue_id, name, record)
    found: list[tuple[bytes, bytes]] = []
    free = free or record.first.seq == seq
    # Whoever is let by as one of all after a seq passes what waits up to there, and nobody who came to wait
    # since.
    first_after = next(draft.rows_from(record.all_after + 1), None)
    all_after = record.all_after if first_after is not None and first_after.seq >= seq else 0
    for row, state in _with_states(core, draft.rows_from(seq + 1), room):
        standing = Standing.LEASED if core.leases.find(row.id) is not None else resting(row, state)
        if up_to is not None and row.seq > up_to:
            break
        if not may_follow(
            row, standing, nothing_earlier_waits=free, let_by=record.let_by, all_after=all_after
        ):
            break
        if not queue.scheduler.charge(lane_key(row.lane), lane_throttle_keys(row.lane), now_ms):
            break
        found.append((row.lane, exact_row(row, state)))
        room_bytes -= row_size(found[-1][1])
        if len(found) == room or room_bytes <= 0:
            break
    return found


def _with_states(
    core: Core, rows: Iterator[StreamRow], most: int
) -> Iterator[tuple[StreamRow, MessageState | None]]:
    """Read by the page, and no more than can go out."""
    while page := list(islice(rows, min(_PAGE, most))):
        yield from zip(page, core.store.states([row.id for row in page]), strict=True)
