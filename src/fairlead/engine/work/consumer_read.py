"""Reading a numbered claim: the same messages in the same order, as often as asked, until it is closed.

The members of an open claim, their chunks and their payloads stay as they are. So a reader takes the list of them
once; for each page it looks under the lock whether the claim is still open, and reads the payloads without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fairlead.decide.arguments import check_bool
from fairlead.decide.numbered_claims import check_slice, check_whole, expires_ms, read_consumer
from fairlead.decide.slices import slice_of_name
from fairlead.engine.chunk_messages import ChunkMessages
from fairlead.engine.consumer_steps import leases_of, outcomes_of, raw_id_of, save, slice_name
from fairlead.engine.transaction import StepsTable, Transaction, block_of
from fairlead.engine.work.consumers import opened
from fairlead.errors import BrokenInvariant, InvalidRequest
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.delivery import Delivery
from fairlead.model.names import Scoped
from fairlead.records.chunk import Chunk
from fairlead.records.ids import BLOCK_MASK
from fairlead.records.state import OwnState
from fairlead.request import Caller
from fairlead.store.rows import read_payloads
from fairlead.verbs.consumers import ConsumersRead

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Bodies held at a time by one reader.
PAGE_MESSAGES = 1000
PAGE_BYTES = 8 * 1024 * 1024
#: A reader shows that its consumer lives, but one record in this part of its time to live is enough.
TOUCHES = 20


class Wanted(NamedTuple):
    consumer: Scoped
    generation: int
    number: int
    slice: int
    slices: int
    unsettled: bool

    def find(self, tx: Transaction) -> ConsumerRecord:
        """The consumer, if its claim can still be read."""
        return opened(tx, self.consumer, self.generation, self.number)


class Page(NamedTuple):
    """Members as they are told: what the lock is needed for."""

    numbers: list[int]
    states: list[OwnState | None]
    queue: str
    source: str | None
    claim_id: int
    lease_until: int


def read_pages(engine: Engine, request: ConsumersRead, caller: Caller) -> Iterator[Sequence[Delivery]]:
    """Checked at once; then page by page."""
    if not isinstance(request.after, bytes):
        raise InvalidRequest("after", "the id of a message in bytes", request.after)
    check_slice(request.slice, request.slices)
    wanted = Wanted(
        read_consumer(request.name, request.queue),
        check_whole(request.generation, "generation"),
        check_whole(request.number, "number"),
        request.slice,
        request.slices,
        check_bool(request.unsettled, "unsettled"),
    )
    with engine.transaction() as tx:
        record = wanted.find(tx)
        if wanted.unsettled and record.unspoken != "release":
            expected = f"False, or consumer {wanted.consumer.name!r} to be registered with unspoken='release': what it is not given it would complete"
            raise InvalidRequest("unsettled", expected, True)
        members = [number for lease in leases_of(tx, record) for number in lease.numbers]
        if request.after:
            members = members[_place_behind(tx, record, members, request.after) :]
        tx.bring_chunks(members)
        chunks = {number: tx.memory.chunks[number] for number in set(map(block_of, members))}
        queue = tx.memory.by_id[record.queue_id]
        is_ordered = tx.memory.by_id[queue.home_id].is_ordered
        by_stream = is_ordered and not queue.is_dead_letter_queue
        if tx.now_ms - record.seen_ms > record.ttl_ms // TOUCHES:
            save(tx, record, seen_ms=tx.now_ms)
    mine = _in_slice(members, chunks, wanted, by_stream=by_stream)
    return _pages(engine, wanted, mine, chunks, is_ordered=is_ordered)


def _place_behind(tx: Transaction, record: ConsumerRecord, members: list[int], after: bytes) -> int:
    number = tx.find_messages([after]).get(after)
    if number is None or number not in members:
        expected = f"a message of claim {record.number} of consumer {record.name!r}"
        raise InvalidRequest("after", expected, after.hex())
    return members.index(number) + 1


def _pages(
    engine: Engine,
    wanted: Wanted,
    members: Iterator[int],
    chunks: dict[int, Chunk],
    *,
    is_ordered: bool,
) -> Iterator[list[Delivery]]:
    def stored_in(chunk: Chunk) -> ChunkMessages:
        return ChunkMessages(chunk, _payloads(engine, wanted, chunk), is_ordered=is_ordered)

    stored: dict[int, ChunkMessages] = {}
    for numbers in _cut(members, chunks):
        with engine.transaction() as tx:
            page = _look(tx, wanted, numbers)
        blocks = set(map(block_of, page.numbers))
        # Payloads of chunks that the last page had too are not read again.
        stored = {block: stored.get(block) or stored_in(chunks[block]) for block in blocks}
        deliveries = _deliver(page, stored)
        if deliveries:
            yield deliveries
        # Whoever reads may take their time: the bodies are held once, and by them.
        del deliveries


def _in_slice(
    members: list[int], chunks: dict[int, Chunk], wanted: Wanted, *, by_stream: bool
) -> Iterator[int]:
    if wanted.slices == 1:
        yield from members
        return
    for number in members:
        name = slice_name(chunks[block_of(number)], number, by_stream=by_stream)
        if slice_of_name(name, wanted.slices) == wanted.slice:
            yield number


def _cut(numbers: Iterator[int], chunks: dict[int, Chunk]) -> Iterator[list[int]]:
    """Pages end with the message that reaches a bound."""
    page: list[int] = []
    size = 0
    for number in numbers:
        page.append(number)
        size += chunks[block_of(number)].columns.size_of(number & BLOCK_MASK)
        if len(page) >= PAGE_MESSAGES or size >= PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


def _look(tx: Transaction, wanted: Wanted, numbers: list[int]) -> Page:
    record, memory = wanted.find(tx), tx.memory
    tx.bring_chunks(numbers)
    if wanted.unsettled:
        numbers = _unsettled(tx, record, numbers)
    queue = memory.by_id[record.queue_id]
    source = memory.by_id.get(queue.record.source_id)
    return Page(
        numbers,
        [memory.own.get(number) for number in numbers],
        queue.name,
        source.name if source is not None else None,
        record.claim_id,
        expires_ms(record),
    )


def _unsettled(tx: Transaction, record: ConsumerRecord, numbers: list[int]) -> list[int]:
    """Members without an outcome; none behind one of its stream that failed or was released: it must wait for
    that one.
    """
    told, memory = outcomes_of(tx, record), tx.memory

    def stream_of(raw_id: bytes) -> tuple[bytes, int] | None:
        number = memory.find_message(raw_id)
        name = "" if number is None else memory.stream_of(number, record.queue_id)
        return None if number is None or not name else (name.encode(), memory.seq_of(number))

    stops = told.stops(stream_of)
    left = []
    for number in numbers:
        raw_id = raw_id_of(tx, number)
        found = stream_of(raw_id) if stops else None
        is_stopped = found is not None and found[1] > stops.get(found[0], found[1])
        if raw_id not in told.outcomes and not is_stopped:
            left.append(number)
    return left


def _deliver(page: Page, stored: dict[int, ChunkMessages]) -> list[Delivery]:
    found = []
    for number, state in zip(page.numbers, page.states, strict=True):
        count = 1 if state is None else state.deliveries + 1
        shared = page.queue, page.claim_id, page.lease_until, count, page.source
        found.append(Delivery(stored[block_of(number)], state, *shared, number))
    return found


def _payloads(engine: Engine, wanted: Wanted, chunk: Chunk) -> Sequence[bytes]:
    payloads = chunk.payloads
    if payloads is not None:
        return payloads
    try:
        return read_payloads(engine.store, chunk)
    except BrokenInvariant:
        # Closed between the look and the read: then that is the answer.
        with engine.transaction() as tx:
            wanted.find(tx)
        raise


WORK_IN_STEPS: StepsTable = {ConsumersRead: read_pages}
