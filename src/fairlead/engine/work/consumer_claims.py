"""Assembling a numbered claim: planned like any claim, leased piece by piece, and opened with its last piece.

Each piece is one transaction: a lease that never expires, and the consumer's record. Until the claim is open,
no caller has received it; a caller that asks for its number continues after the last piece, in this process
or after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from fairlead.decide.arguments import check_count
from fairlead.decide.numbered_claims import check_next, check_whole, read_consumer
from fairlead.engine.consumer_steps import leases_of, save
from fairlead.engine.queue import Queue
from fairlead.engine.read_ahead import read_ahead
from fairlead.engine.room import leases_that_fit
from fairlead.engine.transaction import StepsTable, Transaction, block_of
from fairlead.engine.waiting import allowance, wait_for
from fairlead.engine.work.claim import plan_within, run_queues_due, up_to_place
from fairlead.engine.work.consumers import at_rest, consumer_of
from fairlead.errors import QueueNotFound, StoreFull
from fairlead.model.consumer import ConsumerRecord, NumberedClaim
from fairlead.model.durations import to_ms
from fairlead.model.limits import MAX_ANSWER_BYTES, MAX_CLAIM, MAX_NUMBER
from fairlead.model.names import Scoped
from fairlead.records.facts import Claimed
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT
from fairlead.records.lease import NEVER_EXPIRES_MS, GroupLease, LeaseTerms
from fairlead.request import Caller
from fairlead.schedule.draft import Run
from fairlead.schedule.plan import ClaimPlan
from fairlead.verbs.consumers import ConsumersClaim

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Messages leased in one transaction.
PIECE = 500


class WantedClaim(NamedTuple):
    consumer: Scoped
    generation: int
    number: int
    limit: int
    max_bytes: int
    up_to: int | None
    max_per_stream: int


def claim(engine: Engine, request: ConsumersClaim, caller: Caller) -> NumberedClaim:
    wanted = _read(request)
    patience_ms = 0 if request.wait is None else to_ms(request.wait, "wait")

    def fill() -> ConsumerRecord | None:
        read_ahead(engine, [wanted.consumer.queue], min(PIECE, wanted.limit))
        with at_rest(engine, wanted.consumer) as tx:
            return _fill(tx, wanted)

    record = fill()
    if record is None and patience_ms:
        with engine.lock:
            record = wait_for(engine, request.queues(), request.name, patience_ms, fill, None)
    if record is None:
        return NumberedClaim(wanted.number, 0, 0)
    while record.phase != "open":
        record = fill() or record
    engine.confirm(synced=True)
    return NumberedClaim(record.number, record.messages, record.bytes)


def _read(request: ConsumersClaim) -> WantedClaim:
    return WantedClaim(
        read_consumer(request.name, request.queue),
        check_whole(request.generation, "generation"),
        check_count(request.number, "number", most=MAX_NUMBER),
        check_count(request.limit, "limit", most=MAX_CLAIM),
        check_count(request.max_bytes, "max_bytes", most=MAX_ANSWER_BYTES),
        None if request.up_to is None else check_whole(request.up_to, "up_to"),
        check_count(request.max_per_stream, "max_per_stream", most=MAX_CLAIM),
    )


def _fill(tx: Transaction, wanted: WantedClaim) -> ConsumerRecord | None:
    """Lease one piece. Returns the record after it, or None if there is nothing to lease and nothing was
    begun.
    """
    before = consumer_of(tx, wanted.consumer)
    check_next(before, wanted.generation, wanted.number)
    if before.phase == "open":
        return save(tx, before, seen_ms=tx.now_ms)
    queue = tx.memory.by_id.get(before.queue_id)
    if queue is None:
        raise QueueNotFound(before.queue)
    run_queues_due(tx, [queue])
    plan = _plan(tx, queue, before, wanted)
    if plan is not None and not plan.numbers:
        # No message moves, but keys without messages leave the ring.
        queue.schedule.apply(plan)
    if plan is None or not plan.numbers:
        return None if before.phase == "idle" else save(tx, before, phase="open", seen_ms=tx.now_ms)
    return _lease(tx, queue, before, wanted, plan)


def _plan(tx: Transaction, queue: Queue, before: ConsumerRecord, wanted: WantedClaim) -> ClaimPlan | None:
    most = min(PIECE, wanted.limit - before.messages, allowance(tx.memory, queue, wanted.consumer.name))
    room_bytes = wanted.max_bytes - before.bytes
    if queue.record.paused or most < 1 or room_bytes < 1:
        return None
    most = _fitting(tx, before, most)
    if not most:
        return None
    return plan_within(
        tx,
        queue,
        most,
        room_bytes,
        max_per_stream=wanted.max_per_stream,
        up_to=wanted.up_to,
        run=_rest_of_run(tx, queue, before, wanted),
    )


def _fitting(tx: Transaction, before: ConsumerRecord, most: int) -> int:
    """How many more leases fit. A claim that was begun is answered as it is when none fits, because closing
    it frees space.
    """
    try:
        return leases_that_fit(tx, most)
    except StoreFull:
        if before.phase == "idle":
            raise
        return 0


def _rest_of_run(tx: Transaction, queue: Queue, before: ConsumerRecord, wanted: WantedClaim) -> Run:
    """The rest of the run, if the last piece ended in the middle of a stream."""
    if not before.messages or wanted.max_per_stream == 1:
        return ()
    queue_id, stream_of = queue.record.queue_id, tx.memory.stream_of
    leases = leases_of(tx, before)
    last = leases[-1].numbers[-1]
    name = stream_of(last, queue_id)
    if not name:
        return ()
    backwards = (number for lease in reversed(leases) for number in reversed(lease.numbers))
    taken = sum(1 for _ in takewhile(lambda number: stream_of(number, queue_id) == name, backwards))
    limit = min(PIECE, wanted.max_per_stream - taken)
    return up_to_place(tx, queue.streams.go_on(name, last, limit), wanted.up_to)


def _lease(
    tx: Transaction, queue: Queue, before: ConsumerRecord, wanted: WantedClaim, plan: ClaimPlan
) -> ConsumerRecord:
    group = tx.next_group()
    terms = LeaseTerms(
        group=group,
        claim_id=before.claim_id or group,
        queue_id=queue.record.queue_id,
        home_id=queue.home_id,
        claimed_ms=tx.now_ms,
        expires_ms=NEVER_EXPIRES_MS,
        lease_ms=NEVER_EXPIRES_MS,
        consumer=before.name,
        token="",
        started=True,
    )
    messages = before.messages + len(plan.numbers)
    size = before.bytes + _bytes_of(tx, plan.numbers)
    is_last = len(plan.numbers) < PIECE or messages >= wanted.limit or size >= wanted.max_bytes
    tx.add(Claimed(GroupLease(terms, plan.numbers), plan.numbers, plan))
    return save(
        tx,
        before,
        phase="open" if is_last else "filling",
        number=wanted.number,
        claim_id=terms.claim_id,
        messages=messages,
        bytes=size,
        seen_ms=tx.now_ms,
    )


def _bytes_of(tx: Transaction, numbers: Sequence[int]) -> int:
    firsts = {block_of(number): number for number in numbers}
    sizes = {block: tx.memory.chunk_of(number).columns.message_sizes() for block, number in firsts.items()}
    return sum([sizes[number >> BLOCK_SHIFT][number & BLOCK_MASK] for number in numbers])


WORK_IN_STEPS: StepsTable = {ConsumersClaim: claim}
