"""Streams that are held up: whose first message is leased or waits, so that the others cannot go out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fairlead.broker.core import Core
from fairlead.broker.locate import locate
from fairlead.broker.walk import bounded
from fairlead.model.durations import show_time
from fairlead.model.facts import InWaiting
from fairlead.model.ids import show_id
from fairlead.model.lane import row_stream
from fairlead.model.limits import HOLD_MESSAGES, SCAN_LIMIT
from fairlead.model.message import HELD
from fairlead.model.stream import StreamRecord
from fairlead.model.views import BlockedStream


def blocked_streams(core: Core, queue_id: int) -> list[BlockedStream]:
    """Streams whose first message waits while others queue up behind it, longest held up first among those
    looked at.
    """
    held_up = [
        (name, record)
        for name, record in islice(_streams(core, queue_id), SCAN_LIMIT)
        if record.live > 1 and not record.front
    ]
    found: list[BlockedStream] = []
    records = dict(held_up)
    for part in bounded([record.first for _, record in held_up]):
        with core.step():
            core.check_scan()
            for first in part:
                name = row_stream(first.row)
                if blocked := _blocked_stream(core, queue_id, name, records[name]):
                    found.append(blocked)
    return sorted(found, key=lambda stream: stream.since)


def _streams(core: Core, queue_id: int) -> Iterator[tuple[str, StreamRecord]]:
    name = ""
    while True:
        with core.step():
            core.check_scan()
            page = core.store.streams_after(queue_id, name, HOLD_MESSAGES)
        yield from page
        if len(page) < HOLD_MESSAGES:
            return
        name = page[-1][0]


def _blocked_stream(core: Core, queue_id: int, name: str, record: StreamRecord) -> BlockedStream | None:
    blocker = find_blocker(core, queue_id, name) if core.leases.find(record.first.id) is None else None
    if blocker is None:
        return None
    state, message = core.store.states([record.first.id])[0], core.message(record.first.id)
    since = state.failures[-1].at_ms if state and state.failures else message.enqueued_ms if message else 0
    until = None if blocker[2] == HELD else blocker[2]
    return BlockedStream(name, show_id(blocker[0]), since, until, record.live - 1)


def find_blocker(core: Core, queue_id: int, stream: str) -> tuple[bytes, str, int | None] | None:
    """The first live message of a stream if it is leased or waits: its id, what it does, and until when (in
    the store's time).
    """
    record = core.store.streams(queue_id, [stream])[0]
    if record is None:
        return None
    first = record.first
    lease = core.leases.find(first.id)
    if lease is not None and lease.pinned:
        return first.id, core.consumer_book.why_pinned(lease), core.consumer_book.lease_until(lease)
    if lease is not None:
        return (
            first.id,
            f"leased to {lease.consumer!r} until {show_time(core.by_wall(lease.expires_ms))}",
            lease.expires_ms,
        )
    spot = locate(core, first.id)
    if not isinstance(spot, InWaiting):
        return None
    if spot.due_ms == HELD:
        return first.id, "held", None
    return first.id, f"waiting until {show_time(core.by_wall(spot.due_ms))}", spot.due_ms
