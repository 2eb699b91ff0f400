"""Reading a numbered claim: the same messages in the same order, as often as asked, until it is closed.

The members of an open claim, their chunks and their payloads do not change. So a reader takes the list of
them once; for each page it checks under the lock whether the claim is still open, and reads the payloads
without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from fairlead.decide.arguments import check_bool
from fairlead.decide.numbered_claims import check_slice, check_whole, expires_ms, read_consumer
from fairlead.engine.chunk_messages import ChunkMessages
from fairlead.engine.claim_reading import ClaimReading
from fairlead.engine.consumer_steps import leases_of, outcomes_of, raw_id_of, save
from fairlead.engine.delivery_columns import Page
from fairlead.engine.transaction import StepsTable, Transaction
from fairlead.engine.work.consumers import opened
from fairlead.errors import BrokenInvariant, InvalidRequest
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.delivery import Delivery
from fairlead.model.delivery_columns import SharedTerms
from fairlead.model.names import Scoped
from fairlead.records.chunk import Chunk
from fairlead.records.ids import BLOCK_SHIFT
from fairlead.records.state import OwnState
from fairlead.request import Caller
from fairlead.store.rows import read_payloads
from fairlead.verbs.consumers import ConsumersRead

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Bodies that one reader holds at a time.
PAGE_MESSAGES = 2500
PAGE_BYTES = 2 * 1024 * 1024
#: A read shows that its consumer is alive, but one record in this part of its time to live is enough.
TOUCHES = 20


class WantedRead(NamedTuple):
    consumer: Scoped
    generation: int
    number: int
    slice: int
    slices: int
    unsettled: bool

    def find(self, tx: Transaction) -> ConsumerRecord:
        """The consumer, if its claim can still be read."""
        return opened(tx, self.consumer, self.generation, self.number)


class Seen(NamedTuple):
    """The parts of members for which the lock is needed. `states` are those of members that changed alone."""

    numbers: list[int]
    states: dict[int, OwnState]
    shared: SharedTerms


def read_pages(engine: Engine, request: ConsumersRead, caller: Caller) -> Iterator[Sequence[Delivery]]:
    """Checks the request at once; then returns page by page."""
    if not isinstance(request.after, bytes):
        raise InvalidRequest("after", "the id of a message in bytes", request.after)
    check_slice(request.slice, request.slices)
    wanted = WantedRead(
        read_consumer(request.name, request.queue),
        check_whole(request.generation, "generation"),
        check_whole(request.number, "number"),
        request.slice,
        request.slices,
        check_bool(request.unsettled, "unsettled"),
    )
    with engine.transaction() as tx:
        record = wanted.find(tx)
        if wanted.unsettled and record.default_outcome != "release":
            expected = (
                f"False, or consumer {wanted.consumer.name!r} to be registered with default_outcome='release'"
            )
            raise InvalidRequest("unsettled", expected, True)
        leases = leases_of(tx, record)
        after = tx.find_messages([request.after]).get(request.after) if request.after else None
        if tx.now_ms - record.seen_ms > record.ttl_ms // TOUCHES:
            save(tx, record, seen_ms=tx.now_ms)
        reading = tx.memory.consumers.readings.get(record.claim_id)
    if reading is None:
        # Without the lock: the numbers of a lease never change.
        members = [*chain.from_iterable([lease.numbers for lease in leases])]
        reading = _begin_reading(engine, wanted, members)
    behind = _place_behind(record, reading.members, after, request.after) if request.after else 0
    mine = reading.slice(wanted.slice, wanted.slices)
    if behind:
        left = set(reading.members[behind:])
        mine = [number for number in mine if number in left]
    return _pages(engine, wanted, reading, mine)


def _begin_reading(engine: Engine, wanted: WantedRead, members: list[int]) -> ClaimReading:
    """Shared with callers that read the claim at the same time, or next. The chunks of the members are loaded
    in short transactions, and stay while the claim is open.
    """
    chunks: dict[int, Chunk] = {}
    blocks = list(dict.fromkeys([number >> BLOCK_SHIFT for number in members]))
    for start in range(0, len(blocks), PAGE_MESSAGES):
        some = blocks[start : start + PAGE_MESSAGES]
        with engine.transaction() as tx:
            wanted.find(tx)
            tx.bring_chunks([block << BLOCK_SHIFT for block in some])
            chunks.update({block: tx.memory.chunks[block] for block in some})
    with engine.transaction() as tx:
        record, memory = wanted.find(tx), tx.memory
        queue = memory.by_id[record.queue_id]
        is_ordered = memory.by_id[queue.home_id].is_ordered
        by_stream = is_ordered and not queue.is_dead_letter_queue
        reading = ClaimReading(members, chunks, is_ordered=is_ordered, by_stream=by_stream)
        memory.consumers.keep_reading(record.claim_id, reading)
    return reading


def _place_behind(record: ConsumerRecord, members: list[int], number: int | None, after: bytes) -> int:
    if number is None or number not in members:
        expected = f"a message of claim {record.number} of consumer {record.name!r}"
        raise InvalidRequest("after", expected, after.hex())
    return members.index(number) + 1


def _pages(engine: Engine, wanted: WantedRead, reading: ClaimReading, members: list[int]) -> Iterator[Page]:
    def read(chunk: Chunk) -> Sequence[bytes]:
        return _payloads(engine, wanted, chunk)

    stored: dict[int, ChunkMessages] = {}
    for numbers in reading.pages(members, most_messages=PAGE_MESSAGES, most_bytes=PAGE_BYTES):
        with engine.transaction() as tx:
            seen = _look(tx, wanted, numbers)
        blocks = {number >> BLOCK_SHIFT for number in seen.numbers}
        # Payloads of chunks that the last page had too are not read again: they are dropped only now.
        stored = {block: reading.stored_in(block, read) for block in blocks}
        if seen.numbers:
            yield Page(seen.shared, stored, seen.numbers, seen.states)


def _look(tx: Transaction, wanted: WantedRead, numbers: list[int]) -> Seen:
    record, memory = wanted.find(tx), tx.memory
    tx.bring_chunks(numbers)
    if wanted.unsettled:
        numbers = _unsettled(tx, record, numbers)
    queue = memory.by_id[record.queue_id]
    source = memory.by_id.get(queue.record.source_id)
    source_name = source.name if source is not None else None
    own = memory.own
    return Seen(
        numbers,
        {number: own[number] for number in numbers if number in own} if own else {},
        SharedTerms(queue.name, record.claim_id, expires_ms(record), source_name),
    )


def _unsettled(tx: Transaction, record: ConsumerRecord, numbers: list[int]) -> list[int]:
    """Members without an outcome, and not behind one of their stream that failed or was released, because
    they must wait for it.
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


def _payloads(engine: Engine, wanted: WantedRead, chunk: Chunk) -> Sequence[bytes]:
    payloads = chunk.payloads
    if payloads is not None:
        return payloads
    try:
        return read_payloads(engine.store, chunk)
    except BrokenInvariant:
        # Closed between the check and the read: then that is the answer.
        with engine.transaction() as tx:
            wanted.find(tx)
        raise


WORK_IN_STEPS: StepsTable = {ConsumersRead: read_pages}
