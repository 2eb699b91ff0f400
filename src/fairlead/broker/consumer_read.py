"""Reading a numbered claim: the same messages in the same order, as often as asked, until it is closed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import msgspec

from fairlead.broker.consumer_book import ConsumerState
from fairlead.broker.core import Core
from fairlead.broker.states import states_of
from fairlead.decide.numbered_claims import expires_ms
from fairlead.decide.slices import slice_of
from fairlead.errors import BrokenInvariant, InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.facts import ConsumerSaved
from fairlead.model.ids import show_id
from fairlead.model.lane import ROW_BYTES, row_place, row_size
from fairlead.model.lease import Lease
from fairlead.model.message import Message, MessageState
from fairlead.model.names import Scoped

#: Bodies held at a time by one reader.
_PAGE_MESSAGES = 1000
_PAGE_BYTES = 8 * 1024 * 1024
#: A reader shows that its consumer lives, but one record in this part of its time is enough.
_TOUCHES = 20


class Slice(NamedTuple):
    """What a reader asks for: of which claim, which part of it, and whether only what has no outcome yet."""

    consumer: Scoped
    generation: int
    number: int
    slice: int
    slices: int
    unsettled: bool

    def find(self, core: Core) -> ConsumerState:
        """Under the lock: the consumer, if its claim can still be read."""
        core.check_open()
        return core.consumer_book.opened(self.consumer, self.generation, self.number)


def read_pages(core: Core, wanted: Slice, after: bytes) -> Iterator[list[Delivery]]:
    """Checked at once; then page by page, each under the lock for as long as the leases are looked up."""
    with core.lock:
        state = wanted.find(core)
        if wanted.unsettled and state.record.unspoken != "release":
            expected = f"False, or consumer {wanted.consumer.name!r} to be registered with unspoken='release': what it is not given it would complete"
            raise InvalidRequest("unsettled", expected, True)
        start = _behind(core, state, after) if after else 0
        _touch(core, state)
    return _pages(core, wanted, start)


def _behind(core: Core, state: ConsumerState, after: bytes) -> int:
    members = state.load_members(core.store)
    if after not in members:
        raise InvalidRequest(
            "after",
            f"a message of claim {state.record.number} of consumer {state.record.name!r}",
            after.hex(),
        )
    return members.index(after) + 1


def _touch(core: Core, state: ConsumerState) -> None:
    record, now_ms = state.record, core.now_ms()
    if now_ms - record.seen_ms > record.ttl_ms // _TOUCHES:
        seen = msgspec.structs.replace(record, seen_ms=now_ms)
        core.commit([ConsumerSaved(seen)])
        core.consumer_book.put(seen)
    core.consumer_book.seen(state, core.clock)


def _pages(core: Core, wanted: Slice, at: int) -> Iterator[list[Delivery]]:
    while True:
        with core.step():
            page = _Page(core, wanted.find(core), at, wanted)
        at, ended, deliveries = page.next, page.ended, page.deliveries(core, wanted)
        # Whoever reads may take their time: meanwhile the bodies are held once, and by them.
        del page
        if deliveries:
            yield deliveries
        del deliveries
        if ended:
            return


class _Page:
    """The leases of the next members of a slice; memory has them, so only their bodies are read without the
    lock.
    """

    def __init__(self, core: Core, state: ConsumerState, start: int, wanted: Slice) -> None:
        record, members = state.record, state.load_members(core.store)
        places = _places(core, state, members, start, wanted.slice, wanted.slices)
        # Fewer than it could take: there are no more.
        self.ended = len(places) < _PAGE_MESSAGES
        self.next = places[-1] + 1 if places else len(members)
        if wanted.unsettled:
            places = _unsettled(core, state, members, places)
        found = [*map(core.leases.find, [members[place] for place in places])]
        claim_id = record.claim_id
        self.leases: list[Lease] = [
            lease for lease in found if lease is not None and lease.claim_id == claim_id
        ]
        if len(self.leases) < len(found):
            lost = next(
                place
                for place, lease in zip(places, found, strict=True)
                if lease is None or lease.claim_id != claim_id
            )
            raise BrokenInvariant(
                f"expected message {show_id(members[lost])} to be in claim {record.number} of consumer {record.name!r}"
            )
        kept = _within(_PAGE_BYTES, [row_size(lease.row) for lease in self.leases])
        if kept < len(places):
            del self.leases[kept:]
            self.ended, self.next = False, places[kept - 1] + 1
        self.lease_until = expires_ms(record)
        self.states: list[MessageState | None] = states_of(core, self.leases)
        self.found: list[Message | None] = [
            *map(core.bodies.find, [lease.row[8:24] for lease in self.leases])
        ]
        queue = core.by_id[record.queue_id]
        source = core.by_id.get(queue.record.source_id)
        self.queue, self.source = queue.name, source.name if source is not None else None

    def deliveries(self, core: Core, wanted: Slice) -> list[Delivery]:
        found, until, queue, source = self.found, self.lease_until, self.queue, self.source
        unread = [at for at, message in enumerate(found) if message is None]
        if unread:
            for at, message in zip(
                unread, core.store.messages([self.leases[at].id for at in unread]), strict=True
            ):
                found[at] = message
        made = [
            Delivery(message, state, queue, lease.claim_id, until, lease.deliveries, source)
            for lease, message, state in zip(self.leases, found, self.states, strict=True)
            if message is not None
        ]
        if len(made) < len(found):
            # Closed or deleted between the page and its bodies: that is what the caller is told.
            with core.lock:
                wanted.find(core)
            missing = self.leases[found.index(None)]
            raise BrokenInvariant(
                f"expected the body of message {show_id(missing.id)}, which is in an open claim"
            )
        return made


def _places(
    core: Core, state: ConsumerState, members: Sequence[bytes], start: int, slice: int, slices: int
) -> Sequence[int]:
    """Where the next members of a slice are, as many as a page may have."""
    if slices == 1:
        return range(start, min(start + _PAGE_MESSAGES, len(members)))
    numbers = state.slice_numbers(slices)
    places: list[int] = []
    at = start
    if numbers is not None:
        while len(places) < _PAGE_MESSAGES and (at := numbers.find(slice, at)) >= 0:
            places.append(at)
            at += 1
        at = max(start, len(numbers)) if at < 0 else at
    # The rest nobody has looked at yet.
    while len(places) < _PAGE_MESSAGES and at < len(members):
        lease = core.leases.find(members[at])
        number = slice_of(lease.row, slices) if lease is not None else slice
        if numbers is not None and at == len(numbers):
            numbers.append(number)
        if number == slice:
            places.append(at)
        at += 1
    return places


def _unsettled(
    core: Core, state: ConsumerState, members: Sequence[bytes], places: Sequence[int]
) -> list[int]:
    """Those without an outcome; none behind one of its stream that failed or was given back: it must wait for
    that one.
    """
    words = state.load_words(core.store)
    outcomes, stops, find = words.outcomes, words.stops(partial(_stream_of, core)), core.leases.find
    left = [place for place in places if members[place] not in outcomes]
    return [place for place in left if not _is_stopped(find(members[place]), stops)] if stops else left


def _stream_of(core: Core, member: bytes) -> tuple[bytes, int] | None:
    lease = core.leases.find(member)
    if lease is None or len(lease.row) <= ROW_BYTES:
        return None
    return lease.row[ROW_BYTES:], row_place(lease.row)


def _is_stopped(lease: Lease | None, stops: dict[bytes, int]) -> bool:
    stop = stops.get(lease.row[ROW_BYTES:]) if lease is not None and len(lease.row) > ROW_BYTES else None
    return lease is not None and stop is not None and row_place(lease.row) > stop


def _within(most: int, sizes: Sequence[int]) -> int:
    """How many of the first reach that; at least one."""
    if sum(sizes) < most:
        return len(sizes)
    return next(at for at, total in enumerate(accumulate(sizes), 1) if total >= most)
