"""Claims: the scheduler plans, and one fact leases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from fairlead.decide.arguments import check_bool, check_consumer, check_count, check_token
from fairlead.engine.moves import (
    end_keeping,
    end_lives,
    end_retention,
    expire_leases,
    forget_keys,
    wake_due,
)
from fairlead.engine.operations import is_purged
from fairlead.engine.queue import Queue
from fairlead.engine.room import leases_that_fit
from fairlead.engine.transaction import Transaction, WorkTable
from fairlead.engine.waiting import allowance
from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.durations import to_ms
from fairlead.model.limits import MAX_ANSWER_BYTES, MAX_CLAIM, MAX_CLAIM_TOKEN_BYTES, MAX_CONSUMER_BYTES
from fairlead.records.facts import Claimed
from fairlead.records.ids import BLOCK_MASK
from fairlead.records.lease import GroupLease, LeaseTerms
from fairlead.request import patience_of
from fairlead.schedule.draft import Followers, Run
from fairlead.schedule.plan import ClaimPlan
from fairlead.verbs.claim import Claim

#: Characters of a name or a token that need no closer check.
_SHORT = min(MAX_CONSUMER_BYTES, MAX_CLAIM_TOKEN_BYTES)


def claim(tx: Transaction, request: Claim) -> list[Delivery]:
    if request.token is None and is_good_at_a_glance(request):
        return claim_now(tx, [tx.queue(request.queue)], request)
    names = check_claim(request)
    if request.token:
        held = still_leased(tx, request.token)
        if held:
            return held
    queues = [tx.queue(name) for name in dict.fromkeys(names)]
    return claim_now(tx, in_turn(tx, queues), request)


def in_turn(tx: Transaction, queues: list[Queue]) -> list[Queue]:
    """The queues, beginning with another one for each claim."""
    if len(queues) < 2:
        return queues
    tx.memory.claim_turn += 1
    at = tx.memory.claim_turn % len(queues)
    return queues[at:] + queues[:at]


def claim_now(
    tx: Transaction,
    queues: list[Queue],
    request: Claim,
    *,
    expire: bool = True,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> list[Delivery]:
    """Claim from one queue after the other until the deliveries have `max_bytes` together. `expire=False`
    leaves expired leases to the timer.
    """
    # Before anything changes, because a refusal after that would lose the transaction.
    limit = leases_that_fit(tx, request.limit)
    run_queues_due(tx, queues, expire=expire)
    found: list[Delivery] = []
    for queue in queues:
        if len(found) >= limit or max_bytes <= 0:
            break
        claimed = _claim_of(tx, queue, request, limit - len(found), max_bytes)
        found += claimed
        if len(queues) > 1:
            max_bytes -= sum([_size_of(tx, delivery.number) for delivery in claimed])
    return found


def run_queues_due(tx: Transaction, queues: Sequence[Queue], *, expire: bool = True) -> None:
    """Do due work in all queues before planning any: it may make a message of another queue ready."""
    expiries = tx.memory.expiries
    if expire and expiries and expiries[0][0] <= tx.now_ms:
        expire_leases(tx)
    for queue in queues:
        if not queue.may_have_due(tx.now_ms):
            continue
        wake_due(tx, queue)
        end_lives(tx, queue)
        if queue.record.source_id:
            end_retention(tx, queue)
        end_keeping(tx, queue)


def check_claim(request: Claim) -> Sequence[str]:
    """Check the request, and return the names of its queues."""
    queue, names = request.queue, request.queues()
    if not isinstance(queue, str) and (not names or not all(isinstance(name, str) for name in names)):
        raise InvalidRequest("queue", "a queue name or a list of them", queue)
    check_bool(request.started, "started")
    check_count(request.max_per_stream, "max_per_stream", most=MAX_CLAIM)
    check_count(request.limit, "limit", most=MAX_CLAIM)
    if request.consumer != "":
        check_consumer(request.consumer)
    check_token(request.token)
    if request.wait is not None:
        to_ms(request.wait, "wait")
    return names


def is_good_at_a_glance(request: Claim) -> bool:
    """Whether all values are valid according to types and lengths alone, as in nearly every claim: one queue,
    and a short name and token or none.
    """
    if type(request.queue) is not str or type(request.started) is not bool:
        return False
    if type(request.limit) is not int or not 0 < request.limit <= MAX_CLAIM:
        return False
    if type(request.max_per_stream) is not int or request.max_per_stream != 1:
        return False
    consumer, token = request.consumer, request.token
    if consumer != "" and not (type(consumer) is str and consumer.isascii() and len(consumer) <= _SHORT):
        return False
    if token is not None and not (type(token) is str and token.isascii() and 0 < len(token) <= _SHORT):
        return False
    return request.wait is None or patience_of(request.wait) > 0


def still_leased(tx: Transaction, token: str | None) -> list[Delivery]:
    """The deliveries that are still leased under the token of a claim."""
    leases = [lease for lease in tx.memory.by_token.get(token or "", ()) if lease.live]
    held = tx.memory.in_claim_order(leases)
    return [delivery for lease, number in held for delivery in tx.deliveries(lease, [number])]


def _claim_of(tx: Transaction, queue: Queue, request: Claim, limit: int, max_bytes: int) -> list[Delivery]:
    most = limit
    if queue.record.config.max_unsettled_per_consumer:
        most = min(limit, allowance(tx.memory, queue, request.consumer))
    if queue.record.paused or most < 1 or is_purged(tx, queue.record.queue_id):
        return []
    if not queue.counts.ready and forget_keys(tx, queue):
        return []
    plan = plan_within(tx, queue, most, max_bytes, max_per_stream=request.max_per_stream)
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
        # An instance of a subclass of str cannot be stored.
        consumer=str(request.consumer),
        token=str(request.token or ""),
        started=request.started,
    )
    lease = GroupLease(terms, plan.numbers)
    tx.add(Claimed(lease, plan.numbers, plan))
    return tx.deliveries(lease, plan.numbers)


def plan_within(
    tx: Transaction,
    queue: Queue,
    limit: int,
    max_bytes: int,
    *,
    max_per_stream: int,
    up_to: int | None = None,
    run: Run = (),
) -> ClaimPlan:
    """The plan of a claim, which ends with the message that reaches `max_bytes`; nothing after the place
    `up_to` is taken. `run` is the rest of a run from an earlier plan of the same claim.
    """
    in_runs = max_per_stream > 1 and queue.is_ordered and _may_have_runs(queue, up_to)
    followers = _followers(tx, queue, max_per_stream - 1, up_to) if in_runs else None
    plan = queue.schedule.plan(limit, tx.now_ms, followers=followers, up_to=up_to, run=run)
    while plan.needs:
        tx.read_on(queue, plan.needs)
        plan = queue.schedule.plan(limit, tx.now_ms, followers=followers, up_to=up_to, run=run)
    if tx.memory.cold_count:
        tx.bring_chunks(plan.numbers)
    if queue.counts.bytes <= max_bytes:
        return plan
    size = 0
    for count, number in enumerate(plan.numbers, 1):
        size += _size_of(tx, number)
        if size >= max_bytes:
            return queue.schedule.plan(count, tx.now_ms, followers=followers, up_to=up_to, run=run)
    return plan


def _size_of(tx: Transaction, number: int) -> int:
    return tx.memory.chunk_of(number).columns.size_of(number & BLOCK_MASK)


def _may_have_runs(queue: Queue, up_to: int | None) -> bool:
    """Whether the plan must look for runs of streams.

    Without streams there are none, and the scheduler takes whole rounds at a time. Memory may not know that
    no stream is left, so this shortcut is only for queues where both ways of planning give the same order: no
    lane needs tokens, and no key sits out.
    """
    return queue.streams.has_any or queue.schedule.has_throttled or up_to is not None


def _followers(tx: Transaction, queue: Queue, most: int, up_to: int | None) -> Followers:
    """Returns the function that names the messages to deliver after the head of a stream."""
    streams, memory, queue_id = queue.streams, tx.memory, queue.record.queue_id

    def followers(head: int, room: int) -> Run:
        name = memory.stream_of(head, queue_id)
        return up_to_place(tx, streams.followers(name, head, min(most, room)), up_to) if name else ()

    return followers


def up_to_place(tx: Transaction, run: Run, up_to: int | None) -> Run:
    """The part of the run before its first message after the place."""
    if up_to is None:
        return run
    return list(takewhile(lambda item: tx.memory.place_of(item[1]) <= up_to, run))


WORK: WorkTable = {
    Claim: claim,
}
