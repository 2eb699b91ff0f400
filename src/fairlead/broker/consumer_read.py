"""Reading a numbered claim: the same messages in the same order, as often as asked, until it is closed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fairlead.broker.consumer_book import ConsumerState, expires_ms
from fairlead.broker.core import Core
from fairlead.broker.states import states_of
from fairlead.decide.slices import slice_of
from fairlead.errors import BrokenInvariant
from fairlead.model.delivery import Delivery
from fairlead.model.facts import ConsumerSaved
from fairlead.model.ids import show_id
from fairlead.model.lane import row_size
from fairlead.model.lease import Lease
from fairlead.model.message import Message, MessageState

#: Bodies held at a time by one reader.
_PAGE_MESSAGES = 1000
_PAGE_BYTES = 8 * 1024 * 1024
#: A reader shows that its consumer lives, but one record in this part of its time is enough.
_TOUCHES = 20


def read(core: Core, name: str, generation: int, number: int, slice: int, slices: int) -> Iterator[Delivery]:
    """Checked at once; then page by page, each under the lock for as long as the leases are looked up."""
    with core.lock:
        core.check_open()
        state = core.consumer_book.opened(name, generation, number)
        _touch(core, state)
    return _deliveries(core, name, generation, number, slice, slices)


def _touch(core: Core, state: ConsumerState) -> None:
    record, now_ms = state.record, core.clock.now_ms()
    if now_ms - record.seen_ms > record.ttl_ms // _TOUCHES:
        seen = msgspec.structs.replace(record, seen_ms=now_ms)
        core.commit([ConsumerSaved(seen)])
        core.consumer_book.put(seen)
    core.consumer_book.seen(state, core.clock)


def _deliveries(core: Core, name: str, generation: int, number: int, slice: int, slices: int) -> Iterator[Delivery]:
    at = 0
    while True:
        with core.lock:
            core.check_open()
            page = _Page(core, core.consumer_book.opened(name, generation, number), at, slice, slices)
        yield from page.deliveries(core, name, generation, number)
        if page.ended:
            return
        at = page.next


class _Page:
    """The leases of the next members of a slice; memory has them, so only their bodies are read without the lock."""

    def __init__(self, core: Core, state: ConsumerState, start: int, slice: int, slices: int) -> None:
        record, members = state.record, state.load_members(core.store)
        self.leases: list[Lease] = []
        self.lease_until = expires_ms(record)
        find, size, at = core.leases.find, 0, start
        for at in range(start, len(members)):
            lease = find(members[at])
            if lease is None or lease.claim_id != record.claim_id:
                raise BrokenInvariant(f"expected message {show_id(members[at])} to be in claim {record.number} of consumer {record.name!r}")
            if slices > 1 and slice_of(lease.row, slices) != slice:
                continue
            self.leases.append(lease)
            size += row_size(lease.row)
            if len(self.leases) >= _PAGE_MESSAGES or size >= _PAGE_BYTES:
                break
        self.next = at + 1
        self.ended = self.next >= len(members)
        self.states: list[MessageState | None] = states_of(core, self.leases)
        self.found: list[Message | None] = [core.bodies.find(lease.row[8:24]) for lease in self.leases]
        queue = core.by_id[record.queue_id]
        source = core.by_id.get(queue.record.source_id)
        self.queue, self.source = queue.name, source.name if source is not None else None

    def deliveries(self, core: Core, name: str, generation: int, number: int) -> list[Delivery]:
        unread = [at for at, message in enumerate(self.found) if message is None]
        if unread:
            for at, message in zip(unread, core.store.messages([self.leases[at].id for at in unread]), strict=True):
                self.found[at] = message
        made: list[Delivery] = []
        for lease, message, state in zip(self.leases, self.found, self.states, strict=True):
            if message is None:
                # Closed or deleted between the page and its bodies: that is what the caller is told.
                with core.lock:
                    core.check_open()
                    core.consumer_book.opened(name, generation, number)
                raise BrokenInvariant(f"expected the body of message {show_id(lease.id)}, which is in an open claim")
            made.append(Delivery(message, state, self.queue, lease.claim_id, self.lease_until, lease.deliveries, self.source))
        return made
