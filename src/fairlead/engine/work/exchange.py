"""Several requests as one: settles, enqueues and a claim in one transaction.

In a session the claim has a token made of the request's number, so a repeated request gets the deliveries that are
still leased.

Everything is checked and read before the first fact, so that a refusal leaves the neighbours in the transaction alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from fairlead.decide.exchange import check_item_count, check_items, order_of_effects
from fairlead.engine.reduce.chunks import hold_scattered
from fairlead.engine.reduce.streams import update_fronts
from fairlead.engine.transaction import Transaction, WorkTable
from fairlead.engine.work import enqueue
from fairlead.engine.work.claim import check_claim, claim_now, in_turn
from fairlead.engine.work.settle import Settling
from fairlead.errors import Unavailable
from fairlead.model.checks import CheckedMessage, by_column
from fairlead.model.delivery import Delivery
from fairlead.model.settle import Settlement, SettleResult
from fairlead.request import Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange, answers_of, check_requests
from fairlead.verbs.settle import Settle


class Work(NamedTuple):
    """The checked requests of a call. `messages` has each enqueue, in the order of the requests."""

    items: list[Settlement]
    messages: list[tuple[str, list[CheckedMessage]]]
    claim: Claim | None

    def by_queue(self) -> dict[str, list[CheckedMessage]]:
        """The messages of each queue together, so that they see each other's dedup keys and count together."""
        together: dict[str, list[CheckedMessage]] = {}
        for queue, messages in self.messages:
            together.setdefault(queue, []).extend(messages)
        return together


def exchange(tx: Transaction, request: Exchange) -> list[Any]:
    """One answer for each request, in their order."""
    settled, ids, deliveries = _take(tx, _check(tx, request.requests))
    return answers_of(request.requests, settled, ids, deliveries)


def _take(tx: Transaction, work: Work) -> tuple[list[SettleResult], list[str], list[Delivery]]:
    together = work.by_queue()
    for name in together:
        tx.queue(name)
    queues = [] if work.claim is None else [tx.queue(name) for name in dict.fromkeys(work.claim.queues())]
    prepared = {name: enqueue.prepare(tx, name, by_column(some)) for name, some in together.items()}
    settling, order = Settling(tx), order_of_effects(work.items)
    decided = dict(zip(order, settling.decide_all([work.items[at] for at in order]), strict=True))
    # From here on nothing is refused.
    results = dict(zip(order, settling.carry_out([decided[at] for at in order]), strict=True))
    settled = [results[at] for at in range(len(work.items))]
    if work.items:
        # Keys whose deliveries ended come before the keys of new messages.
        update_fronts(tx.memory)
        prepared = {name: _after_settles(tx, together[name], part) for name, part in prepared.items()}
    added = {name: iter(enqueue.add(tx, part)) for name, part in prepared.items()}
    ids = [shown for name, messages in work.messages for shown in islice(added[name], len(messages))]
    deliveries: list[Delivery] = []
    if work.claim is not None:
        # The claim sees what was just settled and enqueued.
        update_fronts(tx.memory)
        hold_scattered(tx.memory)
        facts = len(tx.facts)
        try:
            deliveries = claim_now(tx, in_turn(tx, queues), work.claim, expire=False)
        except Unavailable:
            # An error would make the caller repeat everything else, which was possible. An empty claim costs
            # nothing.
            if len(tx.facts) != facts:
                raise
    return settled, ids, deliveries


def _after_settles(
    tx: Transaction, messages: Sequence[CheckedMessage], prepared: enqueue.Prepared
) -> enqueue.Prepared:
    """Check again after the settles: one may have freed a dedup key, or ended a stream. The room that its
    message leaves counts already.
    """
    if not prepared.has_dedup_keys and not prepared.queue.is_ordered:
        return prepared
    return enqueue.prepare(tx, prepared.queue.name, by_column(messages), is_bounded=False)


def _check(tx: Transaction, requests: Sequence[Request[Any]]) -> Work:
    items: list[Settlement] = []
    messages: list[tuple[str, list[CheckedMessage]]] = []
    claim = None
    for request in check_requests(requests):
        if isinstance(request, Settle):
            items += check_items(request.items)
        elif isinstance(request, EnqueueMany):
            messages.append((request.queue, enqueue.checked(tx, request, request.messages)))
        elif isinstance(request, Enqueue):
            messages.append((request.queue, enqueue.checked(tx, request, [request.message()])))
        else:
            claim = _check_claim(tx, request)
    check_item_count(items)
    return Work(items, messages, claim)


def _check_claim(tx: Transaction, claim: Claim) -> Claim:
    check_claim(claim)
    token = tx.caller.claim_token
    return claim if token is None else replace(claim, token=token)


WORK: WorkTable = {
    Exchange: exchange,
}
