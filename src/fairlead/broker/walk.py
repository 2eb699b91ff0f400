"""The messages of a queue, place by place, in pages. Each page takes one short hold of the engine lock.

Between two pages the lock is free, so messages move on meanwhile: one that changes its place during a walk
may be met twice, or not at all. Callers that change messages check each again under the lock. A walk ends
with `BrokerClosed` when the broker is closed, and with `ServerStopping` when its server stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from fairlead.broker.core import Core
from fairlead.broker.locate import locate_all
from fairlead.model.facts import InDone, InReady, InStream, InWaiting
from fairlead.model.lane import row_size
from fairlead.model.lease import Lease
from fairlead.model.limits import HOLD_BYTES, HOLD_MESSAGES
from fairlead.model.message import HELD
from fairlead.model.stream import StreamRow

#: Streams whose rows are looked for in one hold; most have few.
_STREAMS_AT_ONCE = 100


class HasRow(Protocol):
    @property
    def row(self) -> bytes: ...


Walked = TypeVar("Walked", bound=HasRow)


def bounded(found: Iterable[Walked]) -> Iterator[list[Walked]]:
    """Cut into parts whose messages may be read in one hold: at most HOLD_MESSAGES, ending with the one that
    reaches HOLD_BYTES.
    """
    part: list[Walked] = []
    size = 0
    for one in found:
        part.append(one)
        size += row_size(one.row)
        if size >= HOLD_BYTES or len(part) >= HOLD_MESSAGES:
            yield part
            part, size = [], 0
    if part:
        yield part


def ready_pages(
    core: Core, queue_id: int, prefix: bytes = b"", after: InReady | None = None
) -> Iterator[list[InReady]]:
    """In (key, place) order, those whose lane begins with the prefix."""
    return _paged(core, lambda last: core.store.ready(queue_id, prefix, last, HOLD_MESSAGES), after)


def waiting_pages(core: Core, queue_id: int, after: InWaiting | None = None) -> Iterator[list[InWaiting]]:
    return _paged(core, lambda last: core.store.waiting(queue_id, last, HOLD_MESSAGES), after)


def done_pages(
    core: Core, queue_id: int, after: InDone | None = None, until_ms: int = HELD
) -> Iterator[list[InDone]]:
    return _paged(core, lambda last: core.store.done(queue_id, last, until_ms, HOLD_MESSAGES), after)


def leases_of(core: Core, queue_id: int) -> list[Lease]:
    """As they are at one moment. The lock is held to copy the book, not to search it: it has the leases of
    all queues.
    """
    with core.step():
        core.check_scan()
        leases = core.leases.all()
    return [lease for lease in leases if lease.queue_id == queue_id]


def behind_front_pages(core: Core, queue_id: int) -> Iterator[list[InStream]]:
    """Messages that are ready behind the front of their stream, stream by stream and in order."""
    for spots in ready_member_pages(core, queue_id):
        yield [spot for spot in spots if isinstance(spot, InStream)]


def ready_member_pages(core: Core, queue_id: int) -> Iterator[list[InReady | InStream]]:
    """The same with the fronts: a caller that moves messages makes others the front of their stream
    meanwhile.
    """
    for members in member_pages(core, queue_id):
        for part in bounded(members):
            with core.step():
                core.check_scan()
                found = locate_all(core, [member.id for member in part])
            spots = [one.spot for one in found if one is not None]
            yield [
                spot for spot in spots if isinstance(spot, InReady | InStream) and spot.queue_id == queue_id
            ]


def member_pages(core: Core, queue_id: int) -> Iterator[list[StreamRow]]:
    """Messages of streams that have more than one; one alone is its stream's front, leased, or waiting."""
    name = ""
    while True:
        with core.step():
            core.check_scan()
            streams = core.store.streams_after(queue_id, name, HOLD_MESSAGES)
        if not streams:
            return
        name = streams[-1][0]
        yield from _members(
            core, queue_id, deque((name, record.first) for name, record in streams if record.live > 1)
        )


def _members(core: Core, queue_id: int, streams: deque[tuple[str, StreamRow]]) -> Iterator[list[StreamRow]]:
    """Rows of each stream from a given one on."""
    while streams:
        page: list[StreamRow] = []
        with core.step():
            core.check_scan()
            for _ in range(min(_STREAMS_AT_ONCE, len(streams))):
                room = HOLD_MESSAGES - len(page)
                if not room:
                    break
                name, first = streams.popleft()
                rest = core.store.stream_rows(queue_id, name, first.seq, room)
                # Of a stream that has more, the last row is the first of its next page.
                page += [first, *rest[:-1]] if len(rest) == room else [first, *rest]
                if len(rest) == room:
                    streams.appendleft((name, rest[-1]))
        yield page


_Placed = TypeVar("_Placed", InReady, InWaiting, InDone)


def _paged(
    core: Core, read: Callable[[_Placed | None], list[_Placed]], after: _Placed | None
) -> Iterator[list[_Placed]]:
    while True:
        with core.step():
            core.check_scan()
            page = read(after)
        if page:
            yield page
        if len(page) < HOLD_MESSAGES:
            return
        after = page[-1]
