"""Streams that are held up: whose first message is leased or waits, so that the others cannot go out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

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


class HeldUp(NamedTuple):
    """A stream whose first message is leased or waits, and why that message is not delivered."""

    stream: BlockedStream
    why: str
    leased: bool


def blocked_streams(core: Core, queue_id: int) -> list[BlockedStream]:
    """Streams whose first message waits while others queue up behind it, longest held up first among those
    looked at.
    """
    return [found.stream for found in held_up_streams(core, queue_id, leased=False)]


def held_up_streams(core: Core, queue_id: int, *, leased: bool) -> list[HeldUp]:
    """As `blocked_streams`; with `leased` also those behind a leased message, after the others."""
    behind_another = [
        (name, record)
        for name, record in islice(_streams(core, queue_id), SCAN_LIMIT)
        if record.live > 1 and (not record.front or (leased and record.front == record.first.seq))
    ]
    found: list[HeldUp] = []
    records = dict(behind_another)
    for part in bounded([record.first for _, record in behind_another]):
        with core.step():
            core.check_scan()
            for first in part:
                is_leased = core.leases.find(first.id) is not None
                if is_leased and not leased:
                    continue
                # A first message at the front that is not leased is ready: `find_blocker` finds none.
                name = row_stream(first.row)
                if held_up := _held_up(core, queue_id, name, records[name], leased=is_leased):
                    found.append(held_up)
    return sorted(found, key=lambda held_up: (held_up.leased, held_up.stream.since))


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


def _held_up(core: Core, queue_id: int, name: str, record: StreamRecord, *, leased: bool) -> HeldUp | None:
    blocker = find_blocker(core, queue_id, name)
    if blocker is None:
        return None
    state, message = core.store.states([record.first.id])[0], core.message(record.first.id)
    since = state.failures[-1].at_ms if state and state.failures else message.enqueued_ms if message else 0
    message_id, why, until_ms = blocker
    until = None if until_ms == HELD else until_ms
    return HeldUp(BlockedStream(name, show_id(message_id), since, until, record.live - 1), why, leased)


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
