"""Several requests as one: settles, enqueues and a claim in one transaction.

In the same write the answer is remembered under the request's id, and the same id again gives the same answer and has
no second effect. `Enqueue`, `EnqueueMany` and `Settle` under an id pass here too, as an exchange of one. The token of
the claim is the request id, so a repeated request gets the deliveries that are still leased.

Everything is checked and read before the first fact, so that a refusal leaves the neighbours in the transaction alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from fairlead.decide.exchange import (
    check_answered,
    check_item_count,
    check_items,
    check_request_id,
    keep,
    order_of_effects,
    read_kept,
    request_id_taken,
)
from fairlead.engine.answers import answer_key
from fairlead.engine.transaction import Transaction, WorkTable
from fairlead.engine.work import enqueue
from fairlead.engine.work.claim import check_claim, claim_now, in_turn, still_leased
from fairlead.engine.work.settle import Settling
from fairlead.errors import Unavailable
from fairlead.model.answered import Kept
from fairlead.model.checks import CheckedMessage, by_column
from fairlead.model.delivery import Delivery
from fairlead.model.ids import find_id, show_id
from fairlead.model.settle import Settlement, SettleResult
from fairlead.records.facts import RecordsChanged
from fairlead.request import Request
from fairlead.store.kv.port import Table
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange, answers_of, check_remembered, check_requests
from fairlead.verbs.settle import Settle

#: What a remembered answer takes for an item or a message.
_RESULT_BYTES = 64


class Work(NamedTuple):
    """The requests of a call, checked. `messages` has each enqueue, in the order of the requests."""

    items: list[Settlement]
    messages: list[tuple[str, list[CheckedMessage]]]
    claim: Claim | None
    request_id: bytes | None
    answered: list[bytes]

    def by_queue(self) -> dict[str, list[CheckedMessage]]:
        """The messages of a queue together, so that they see each other's dedup keys and count together."""
        together: dict[str, list[CheckedMessage]] = {}
        for queue, messages in self.messages:
            together.setdefault(queue, []).extend(messages)
        return together

    @property
    def message_count(self) -> int:
        return sum(len(messages) for _, messages in self.messages)


def run_once(tx: Transaction, request: Request[Any]) -> Any:
    """Carry out a request whose answer is remembered under its id."""
    check_remembered(request)
    if isinstance(request, Exchange):
        return exchange(tx, request)
    return _carry_out(tx, [request])[0]


def exchange(tx: Transaction, request: Exchange) -> list[Any]:
    return _carry_out(tx, request.requests)


def _carry_out(tx: Transaction, requests: Sequence[Request[Any]]) -> list[Any]:
    """One answer for each request, in their order."""
    work = _check(tx, requests)
    kept = _find_kept(tx, work)
    if kept is not None:
        assert work.request_id is not None
        settled = read_kept(kept, work.request_id, items=len(work.items), messages=work.message_count)
        deliveries = [] if work.claim is None else still_leased(tx, work.claim.token)
        return answers_of(requests, settled, map(show_id, kept.ids), deliveries)
    settled, ids, deliveries = _take(tx, work)
    return answers_of(requests, settled, ids, deliveries)


def _take(tx: Transaction, work: Work) -> tuple[list[SettleResult], list[str], list[Delivery]]:
    together = work.by_queue()
    for name in together:
        tx.queue(name)
    queues = [] if work.claim is None else [tx.queue(name) for name in dict.fromkeys(work.claim.queues())]
    prepared = {name: enqueue.prepare(tx, name, by_column(some)) for name, some in together.items()}
    settling, order = Settling(tx), order_of_effects(work.items)
    decided = dict(zip(order, settling.decide_all([work.items[at] for at in order]), strict=True))
    if work.request_id is not None and not settling.ends_deliveries:
        # A request that ends a lease has its room kept; others could fill the disk with nothing but their ids.
        size = _RESULT_BYTES * (len(work.items) + work.message_count)
        tx.store.check_room(size, in_reserve=True)
    # From here on nothing is refused.
    results = dict(zip(order, settling.carry_out([decided[at] for at in order]), strict=True))
    settled = [results[at] for at in range(len(work.items))]
    if work.items:
        # Keys whose deliveries ended come before the keys of new messages.
        tx.memory.update_fronts()
        prepared = {name: _after_settles(tx, together[name], part) for name, part in prepared.items()}
    added = {name: iter(enqueue.add(tx, part)) for name, part in prepared.items()}
    ids = [shown for name, messages in work.messages for shown in islice(added[name], len(messages))]
    _remember(tx, work, settled, ids)
    deliveries: list[Delivery] = []
    if work.claim is not None:
        # What was just settled and enqueued is there for the claim.
        tx.memory.update_fronts()
        tx.memory.hold_scattered()
        facts = len(tx.facts)
        try:
            deliveries = claim_now(tx, in_turn(tx, queues), work.claim, expire=False)
        except Unavailable:
            # An error would make the caller do again the rest, which can be done. An empty claim costs nothing.
            if len(tx.facts) != facts:
                raise
    return settled, ids, deliveries


def _after_settles(
    tx: Transaction, messages: Sequence[CheckedMessage], prepared: enqueue.Prepared
) -> enqueue.Prepared:
    """A delivery that was just settled may have set a dedup key free, or ended its stream. Its message made room."""
    if not prepared.has_dedup_keys and not prepared.queue.is_ordered:
        return prepared
    return enqueue.prepare(tx, prepared.queue.name, by_column(messages), is_bounded=False)


def _remember(tx: Transaction, work: Work, settled: list[SettleResult], ids: list[str]) -> None:
    changed: dict[bytes, Kept | None] = {answer_key(tx.caller, one): None for one in work.answered}
    tx.forgotten += changed
    if work.request_id is not None:
        raw_ids = [find_id(shown) or b"" for shown in ids]
        changed[answer_key(tx.caller, work.request_id)] = keep(settled, raw_ids)
    if changed:
        tx.add(RecordsChanged(Table.ANSWERS, changed))


def _find_kept(tx: Transaction, work: Work) -> Kept | None:
    if work.request_id is None:
        return None
    key = answer_key(tx.caller, work.request_id)
    if key in tx.answered or key in tx.forgotten:
        raise request_id_taken(work.request_id, "the caller has said that this one was answered")
    kept: Kept | None = tx.record(Table.ANSWERS, key)
    return kept


def _check(tx: Transaction, requests: Sequence[Request[Any]]) -> Work:
    items: list[Settlement] = []
    messages: list[tuple[str, list[CheckedMessage]]] = []
    claim = None
    request_id = check_request_id(tx.caller.request_id, tx.wall_ms)
    for request in check_requests(requests):
        if isinstance(request, Settle):
            items += check_items(request.items)
        elif isinstance(request, EnqueueMany):
            messages.append((request.queue, enqueue.checked(tx, request, request.messages)))
        elif isinstance(request, Enqueue):
            messages.append((request.queue, enqueue.checked(tx, request, [request.message()])))
        else:
            claim = _check_claim(tx, request, request_id)
    check_item_count(items)
    answered = tx.caller.answered
    return Work(
        items, messages, claim, request_id, check_answered(answered, request_id) if answered != () else []
    )


def _check_claim(tx: Transaction, claim: Claim, request_id: bytes | None) -> Claim:
    check_claim(claim)
    if request_id is None:
        return claim
    return replace(claim, token=f"exchange:{tx.caller.key_id or ''}:{show_id(request_id)}")


WORK: WorkTable = {
    Exchange: exchange,
}
