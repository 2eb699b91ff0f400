"""Messages out: the scheduler plans, one fact leases."""

from __future__ import annotations

from fairlead.decide.arguments import check_bool, check_consumer, check_count, check_token
from fairlead.engine.memory import Queue
from fairlead.engine.moves import end_lives, expire_leases, wake_due
from fairlead.engine.transaction import Transaction
from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.durations import to_ms
from fairlead.model.limits import MAX_ANSWER_BYTES, MAX_CLAIM
from fairlead.records.facts import Claimed
from fairlead.records.ids import BLOCK_MASK
from fairlead.records.lease import GroupLease, LeaseTerms
from fairlead.schedule.plan import ClaimPlan
from fairlead.verbs.claim import Claim


def claim(tx: Transaction, request: Claim) -> list[Delivery]:
    check_claim(request)
    queues = [tx.queue(name) for name in dict.fromkeys(request.queues())]
    if request.token:
        held = [lease for lease in tx.memory.by_token.get(request.token, ()) if lease.live]
        if held:
            return _again(tx, held)
    if len(queues) > 1:
        tx.memory.claim_turn += 1
        at = tx.memory.claim_turn % len(queues)
        queues = queues[at:] + queues[:at]
    # In all queues before any is planned: what is due in one may make a message of another ready.
    expire_leases(tx)
    for queue in queues:
        wake_due(tx, queue)
        end_lives(tx, queue)
    found: list[Delivery] = []
    for queue in queues:
        if len(found) < request.limit:
            found += _claim_of(tx, queue, request, request.limit - len(found))
    return found


def check_claim(request: Claim) -> None:
    queue, names = request.queue, request.queues()
    if not isinstance(queue, str) and (not names or not all(isinstance(name, str) for name in names)):
        raise InvalidRequest("queue", "a queue name or a list of them", queue)
    check_bool(request.started, "started")
    check_count(request.max_per_stream, "max_per_stream", most=MAX_CLAIM)
    check_count(request.limit, "limit", most=MAX_CLAIM)
    check_consumer(request.consumer)
    check_token(request.token)
    if request.wait is not None:
        to_ms(request.wait, "wait")


def _again(tx: Transaction, leases: list[GroupLease]) -> list[Delivery]:
    """The deliveries that are still leased under the token of the claim."""
    held = tx.memory.in_claim_order(leases)
    return [delivery for lease, number in held for delivery in tx.deliveries(lease, [number])]


def _claim_of(tx: Transaction, queue: Queue, request: Claim, limit: int) -> list[Delivery]:
    most = min(limit, _allowance(tx, queue, request.consumer))
    if queue.record.paused or most < 1:
        return []
    plan = _plan(tx, queue, most)
    if not plan.numbers:
        # No message moves, but keys without messages leave the ring. Turns are hints, so there is no fact.
        queue.schedule.apply(plan)
        return []
    lease_ms, claim_id = queue.record.config.visibility_timeout_ms, tx.next_group()
    terms = LeaseTerms(
        group=claim_id,
        claim_id=claim_id,
        queue_id=queue.record.queue_id,
        home_id=queue.home_id,
        claimed_ms=tx.now_ms,
        expires_ms=tx.now_ms + lease_ms,
        lease_ms=lease_ms,
        consumer=request.consumer,
        token=request.token or "",
        started=request.started,
    )
    lease = GroupLease(terms, plan.numbers)
    tx.add(Claimed(lease, plan.numbers, plan))
    return tx.deliveries(lease, plan.numbers)


def _allowance(tx: Transaction, queue: Queue, consumer: str) -> int:
    """How many more messages of the queue the consumer may hold."""
    most = queue.record.config.max_unsettled_per_consumer
    if not most:
        return MAX_CLAIM
    leases = tx.memory.by_consumer.get(consumer, ())
    return most - sum(lease.live for lease in leases if lease.terms.queue_id == queue.record.queue_id)


def _plan(tx: Transaction, queue: Queue, limit: int) -> ClaimPlan:
    """Ends before the answer gets too large; it has at least one message."""
    plan = queue.schedule.plan(limit, tx.now_ms)
    if queue.counts.bytes <= MAX_ANSWER_BYTES:
        return plan
    size = 0
    for count, number in enumerate(plan.numbers, 1):
        size += tx.memory.chunk_of(number).columns.size_of(number & BLOCK_MASK)
        if size >= MAX_ANSWER_BYTES:
            return queue.schedule.plan(count, tx.now_ms)
    return plan
