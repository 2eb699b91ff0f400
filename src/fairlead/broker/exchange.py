"""Several requests as one: settles and enqueues in one commit, then a claim.

With the commit the outcome is remembered under the request's id, for twenty minutes: the same id again gives
the same answers and has no second effect. `Enqueue`, `EnqueueMany` and `Settle` under an id pass here too, as
an exchange of one. The claim follows under the same hold of the lock; losing it in a crash costs nothing,
since nobody got its deliveries. Its token is the request id, so a repeated request gets what is still leased.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

import msgspec

from fairlead.broker import claim as claiming
from fairlead.broker.core import Core
from fairlead.broker.enqueue import Prepared, ask_hook
from fairlead.broker.hooking import Answers, has_enqueue_hook, has_failure_hook
from fairlead.broker.settle import Batch, ask_hooks, must_last
from fairlead.broker.transaction import Transaction
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
from fairlead.errors import Unavailable
from fairlead.model.answered import Kept
from fairlead.model.checks import CheckedMessage, check_messages
from fairlead.model.facts import RequestRemembered, RequestsForgotten
from fairlead.model.ids import show_id
from fairlead.model.lease import Lease
from fairlead.model.settle import Fail, Settlement, SettleResult
from fairlead.request import Answer, Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange, answers_of, check_remembered, check_requests
from fairlead.verbs.settle import Settle

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Kept).decode


class Outcome(NamedTuple):
    """All results and all ids, each in the order of the requests. `commit` contains all of it."""

    settled: list[SettleResult]
    ids: list[bytes]
    commit: int


class Work(NamedTuple):
    """The requests of a call, checked. `messages` has each enqueue, in the order of the requests."""

    items: list[Settlement]
    messages: list[tuple[str, list[CheckedMessage]]]
    order: tuple[list[str], claiming.Order] | None
    request_id: bytes | None
    answered: list[bytes]

    def by_queue(self) -> dict[str, list[CheckedMessage]]:
        """One commit takes the messages of a queue together, so that they see each other's dedup keys."""
        together: dict[str, list[CheckedMessage]] = {}
        for queue, messages in self.messages:
            together.setdefault(queue, []).extend(messages)
        return together

    @property
    def message_count(self) -> int:
        return sum(len(messages) for _, messages in self.messages)


def run_once(request: Request[Answer], tx: Transaction) -> Answer:
    """Carry out a request whose answer is remembered under its id."""
    check_remembered(request)
    if isinstance(request, Exchange):
        return cast(Answer, request.run(tx))
    (answer,) = carry_out(tx.core, [request], tx.caller.request_id, tx.caller.answered)
    return cast(Answer, answer)


def carry_out(
    core: Core, requests: Sequence[Request[Any]], request_id: str | None, answered: Sequence[str]
) -> list[Any]:
    """One answer for each request, in their order. All of the requests are checked before any runs."""
    work = _check(core, requests, request_id, answered)
    with core.lock:
        known = _find_outcome(core, work)
        asks = known is None and _asks_hooks(core, work)
        if not asks:
            outcome, handout = _take(core, work, known, {})
    if asks:
        # Without the lock: another copy of the request may be carried out meanwhile.
        work = work._replace(
            messages=[(queue, ask_hook(core, queue, messages)) for queue, messages in work.messages]
        )
        answers = ask_hooks(core, work.items)
        with core.lock:
            outcome, handout = _take(core, work, _find_outcome(core, work), answers)
    if work.messages or must_last(work.items):
        core.confirm(outcome.commit)
    deliveries = handout.deliveries(core) if handout is not None else []
    return answers_of(requests, outcome.settled, map(show_id, outcome.ids), deliveries)


def _take(
    core: Core, work: Work, outcome: Outcome | None, answers: Answers
) -> tuple[Outcome, claiming.Handout | None]:
    """Carry the work out, unless its outcome is known, and hand out what was or still is claimed."""
    order = work.order
    if outcome is not None:
        leases = core.leases.under_token(order[1].token) if order is not None else []
    else:
        # A queue that does not exist must be noticed before anything is carried out.
        for name in order[0] if order is not None else ():
            core.queue(name)
        outcome = _commit(core, work, answers)
        leases = _claim_after(core, order) if order is not None else []
    live = [lease for lease in leases if lease.queue_id in core.by_id]
    return outcome, claiming.Handout(core, live) if live else None


def _commit(core: Core, work: Work, answers: Answers) -> Outcome:
    batch = Batch(core, answers)
    settled = _decide_in_order(batch, work.items) if work.items else []
    prepared = [Prepared(queue, messages) for queue, messages in work.by_queue().items()]
    added = {part.queue: iter(part.add_to(core, batch.moves, batch.moves.places())) for part in prepared}
    ids = [raw_id for queue, messages in work.messages for raw_id in islice(added[queue], len(messages))]
    if work.request_id is not None:
        remembered = _encode(keep(settled, ids))
        if not batch.over:
            # A request that ends a lease has its room kept; others could fill the disk with nothing but their
            # ids.
            core.store.check_room(len(remembered), in_reserve=True)
        batch.moves.facts.append(RequestRemembered(work.request_id, remembered))
    if work.answered:
        batch.moves.facts.append(RequestsForgotten(work.answered))
    batch.commit()
    core.answered.add(work.answered)
    for part in prepared:
        part.announce(core)
    return Outcome(settled, ids, core.store.last_commit)


def _asks_hooks(core: Core, work: Work) -> bool:
    """Whether a hook of a queue decides about any message or failure."""
    if any(has_enqueue_hook(core.queue(queue)) for queue, _ in work.messages):
        return True
    return any(isinstance(item, Fail) for item in work.items) and any(
        has_failure_hook(state) for state in core.by_id.values()
    )


def _claim_after(core: Core, order: tuple[list[str], claiming.Order]) -> list[Lease]:
    """A claim that cannot be written is an empty one: an error would make a caller do again what is done."""
    try:
        return claiming.claim_now(core, *order, expire=False)
    except Unavailable:
        return []


def _find_outcome(core: Core, work: Work) -> Outcome | None:
    core.check_open()
    request_id = work.request_id
    if request_id is None:
        return None
    if request_id in core.answered:
        raise request_id_taken(request_id, "the caller has said that this one was answered")
    raw = core.store.request(request_id)
    if raw is None:
        return None
    kept = _decode(raw)
    settled = read_kept(kept, request_id, items=len(work.items), messages=work.message_count)
    return Outcome(settled, kept.ids, core.store.last_commit)


def _decide_in_order(batch: Batch, items: list[Settlement]) -> list[SettleResult]:
    """The results are in the order given."""
    order = order_of_effects(items)
    results = dict(zip(order, batch.decide([items[at] for at in order]), strict=True))
    return [results[at] for at in range(len(items))]


def _check(
    core: Core, requests: Sequence[Request[Any]], request_id: str | None, answered: Sequence[str]
) -> Work:
    items: list[Settlement] = []
    messages: list[tuple[str, list[CheckedMessage]]] = []
    order = None
    raw_id = check_request_id(request_id, core.clock.now_ms())
    for request in check_requests(requests):
        if isinstance(request, Settle):
            items += check_items(request.items)
        elif isinstance(request, EnqueueMany):
            messages.append((request.queue, check_messages(request.messages)))
        elif isinstance(request, Enqueue):
            messages.append((request.queue, check_messages([request.message()])))
        else:
            order = _check_claim(request, raw_id)
    check_item_count(items)
    return Work(items, messages, order, raw_id, check_answered(answered, raw_id) if answered != () else [])


def _check_claim(claim: Claim, request_id: bytes | None) -> tuple[list[str], claiming.Order]:
    token = f"exchange:{show_id(request_id)}" if request_id else None
    return claiming.check_claim(
        claim.queue, claim.limit, claim.consumer, token, claim.started, claim.max_per_stream
    )
