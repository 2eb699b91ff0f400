"""One call for a whole turn of work: extend, complete, fail, release, enqueue, claim.

Everything but the claim is one commit, and with it the outcome is remembered for ten minutes under the
request's id: the same id again gives the same answers and has no second effect. The claim follows under the
same hold of the lock; losing it in a crash costs nothing, since nobody got its deliveries. Its token is the
request id, so a repeated request gets what is still leased of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fairlead.broker import claim as claiming
from fairlead.broker.core import Core
from fairlead.broker.enqueue import Prepared, ask_hook
from fairlead.broker.hooking import Answers, has_enqueue_hook, has_failure_hook
from fairlead.broker.requests import check_consumer
from fairlead.broker.settle import Batch, ask_hooks, must_last
from fairlead.errors import InvalidRequest, RequestExpired, Unavailable
from fairlead.model.checks import CheckedMessage, check_messages
from fairlead.model.facts import RequestRemembered, RequestsForgotten
from fairlead.model.ids import find_id, id_time_ms, show_id
from fairlead.model.lease import Lease
from fairlead.model.limits import MAX_ANSWERED, MAX_BATCH_MESSAGES, MAX_REQUEST_AGE_MS
from fairlead.model.message import NewMessage
from fairlead.model.settle import Complete, Extend, Fail, Release, Settlement, SettleResult, Start
from fairlead.model.views import ExchangeResult

_CLAIM_FIELDS = {"queue", "limit", "max_per_stream", "started"}
#: When in a turn each kind of item takes effect.
_TURN: dict[type, int] = {Extend: 0, Start: 0, Complete: 1, Fail: 2, Release: 3}


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """What is kept under the id of a request. Of an item that was completed, which most are, only the
    message's id.
    """

    settled: list[SettleResult | bytes]
    enqueued: dict[str, list[bytes]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Kept).decode


class Outcome(NamedTuple):
    """`commit` is one that all of it is in."""

    settled: list[SettleResult]
    enqueued: dict[str, list[bytes]]
    commit: int


class Turn(NamedTuple):
    """A call, checked."""

    items: list[Settlement]
    messages: dict[str, list[CheckedMessage]]
    order: tuple[list[str], claiming.Order] | None
    request: bytes | None
    answered: list[bytes]


def exchange(
    core: Core,
    consumer: str,
    *,
    extend: Sequence[Extend],
    settle: Sequence[Settlement],
    enqueue: Mapping[str, Sequence[NewMessage]],
    claim: Mapping[str, Any] | None,
    request_id: str | None,
    answered: Sequence[str],
) -> ExchangeResult:
    items = _check_items(extend, settle)
    raw_request = _check_request(core, request_id)
    received = _check_answered(answered, raw_request) if answered != () else []
    order = _check_claim(claim, check_consumer(consumer), raw_request)
    if not isinstance(enqueue, Mapping):
        raise InvalidRequest("enqueue", "a mapping of queue name to a list of NewMessage", type(enqueue))
    turn = Turn(
        items,
        {name: check_messages(messages) for name, messages in enqueue.items()},
        order,
        raw_request,
        received,
    )
    with core.lock:
        known = _find_outcome(core, raw_request)
        asks = known is None and _asks_hooks(core, turn)
        if not asks:
            outcome, handout = _take(core, turn, known, {})
    if asks:
        # Without the lock: another copy of the request may be carried out meanwhile.
        turn = turn._replace(
            messages={name: ask_hook(core, name, messages) for name, messages in turn.messages.items()}
        )
        answers = ask_hooks(core, items)
        with core.lock:
            outcome, handout = _take(core, turn, _find_outcome(core, raw_request), answers)
    if turn.messages or must_last(items):
        core.confirm(outcome.commit)
    ids = {name: [show_id(raw_id) for raw_id in raw_ids] for name, raw_ids in outcome.enqueued.items()}
    return ExchangeResult(
        tuple(outcome.settled), ids, handout.deliveries(core) if handout is not None else []
    )


def _take(
    core: Core, turn: Turn, outcome: Outcome | None, answers: Answers
) -> tuple[Outcome, claiming.Handout | None]:
    """Carry the turn out, unless its outcome is known, and hand out what was or still is claimed."""
    order = turn.order
    if outcome is not None:
        leases = core.leases.under_token(order[1].token) if order is not None else []
    else:
        # A queue that is not there must be noticed before anything is carried out.
        for name in order[0] if order is not None else ():
            core.queue(name)
        outcome = _work(core, turn, answers)
        leases = _claim_after(core, order) if order is not None else []
    return outcome, claiming.Handout(
        core, [lease for lease in leases if lease.queue_id in core.by_id]
    ) if leases else None


def _work(core: Core, turn: Turn, answers: Answers) -> Outcome:
    batch = Batch(core, answers)
    settled = _decide_in_order(batch, turn.items) if turn.items else []
    prepared = [Prepared(name, messages) for name, messages in turn.messages.items()]
    enqueued = {part.queue: part.add_to(core, batch.moves, batch.moves.places()) for part in prepared}
    if turn.request is not None:
        kept = Kept(
            [result.raw_id if result.outcome == "completed" else result for result in settled], enqueued
        )
        remembered = _encode(kept)
        if not batch.over:
            # A request that ends a lease has its room kept; others could fill the disk with nothing but their
            # ids.
            core.store.check_room(len(remembered), in_reserve=True)
        batch.moves.facts.append(RequestRemembered(turn.request, remembered))
    if turn.answered:
        batch.moves.facts.append(RequestsForgotten(turn.answered))
    batch.commit()
    core.answered.add(turn.answered)
    for part in prepared:
        part.announce(core)
    return Outcome(settled, enqueued, core.store.last_commit)


def _asks_hooks(core: Core, turn: Turn) -> bool:
    """Is there anything in the turn that a queue's hook has a say in?"""
    if any(has_enqueue_hook(core.queue(name)) for name in turn.messages):
        return True
    return any(isinstance(item, Fail) for item in turn.items) and any(
        has_failure_hook(state) for state in core.by_id.values()
    )


def _claim_after(core: Core, order: tuple[list[str], claiming.Order]) -> list[Lease]:
    """The work is done by now: a claim that cannot be written is an empty one, or a caller would do the work
    again.
    """
    try:
        return claiming.claim_now(core, *order, expire=False)
    except Unavailable:
        return []


def _find_outcome(core: Core, raw_request: bytes | None) -> Outcome | None:
    core.check_open()
    if raw_request is None:
        return None
    if raw_request in core.answered:
        raise InvalidRequest(
            "request_id",
            "a new one, because the caller has said that this one was answered",
            show_id(raw_request),
        )
    raw = core.store.request(raw_request)
    if raw is None:
        return None
    kept = _decode(raw)
    settled = [
        SettleResult(result, "completed") if isinstance(result, bytes) else result for result in kept.settled
    ]
    return Outcome(settled, kept.enqueued, core.store.last_commit)


def _decide_in_order(batch: Batch, items: list[Settlement]) -> list[SettleResult]:
    """Extends, completes, fails, releases take effect in this order; the results are in the order given."""
    if len(set(map(type, items))) < 2:
        return batch.decide(items)
    order = sorted(range(len(items)), key=lambda at: _TURN.get(type(items[at]), 0))
    results = dict(zip(order, batch.decide([items[at] for at in order]), strict=True))
    return [results[at] for at in range(len(items))]


def _check_items(extend: Sequence[Extend], settle: Sequence[Settlement]) -> list[Settlement]:
    for field, items in (("extend", extend), ("settle", settle)):
        if type(items) is not list and (not isinstance(items, Sequence) or isinstance(items, (str, bytes))):
            raise InvalidRequest(field, "a list", type(items))
    if extend and any(not isinstance(item, Extend) for item in extend):
        raise InvalidRequest("extend", "a list of Extend", sorted({type(item).__name__ for item in extend}))
    if len(extend) + len(settle) > MAX_BATCH_MESSAGES:
        raise InvalidRequest(
            "settle", f"at most {MAX_BATCH_MESSAGES} in one call", f"{len(extend) + len(settle)} items"
        )
    return [*extend, *settle]


def _check_claim(
    claim: Mapping[str, Any] | None, consumer: str, raw_request: bytes | None
) -> tuple[list[str], claiming.Order] | None:
    if claim is None:
        return None
    if not isinstance(claim, Mapping) or "queue" not in claim or not _CLAIM_FIELDS.issuperset(claim):
        raise InvalidRequest(
            "claim",
            'a mapping such as {"queue": "orders", "limit": 100}, with ' + ", ".join(sorted(_CLAIM_FIELDS)),
            claim,
        )
    token = f"exchange:{show_id(raw_request)}" if raw_request else None
    return claiming.check_claim(
        claim["queue"],
        claim.get("limit", 1),
        consumer,
        token,
        claim.get("started", True),
        claim.get("max_per_stream", 1),
    )


def _check_request(core: Core, request_id: str | None) -> bytes | None:
    if request_id is None:
        return None
    raw_id = find_id(request_id)
    if raw_id is None or raw_id[6] >> 4 != 7:
        raise InvalidRequest("request_id", "a UUIDv7", request_id)
    # By the wall clock: the id carries that of another machine.
    age_ms = core.clock.now_ms() - id_time_ms(raw_id)
    if not -MAX_REQUEST_AGE_MS <= age_ms <= MAX_REQUEST_AGE_MS:
        raise RequestExpired(str(request_id), age_ms)
    return raw_id


def _check_answered(answered: Sequence[str], raw_request: bytes | None) -> list[bytes]:
    if (
        not isinstance(answered, Sequence)
        or isinstance(answered, (str, bytes))
        or len(answered) > MAX_ANSWERED
    ):
        raise InvalidRequest("answered", f"a list of at most {MAX_ANSWERED} request ids", answered)
    received: dict[bytes, None] = {}
    for request_id in answered:
        raw_id = find_id(request_id)
        if raw_id is None or raw_id[6] >> 4 != 7 or raw_id == raw_request:
            raise InvalidRequest("answered", "UUIDv7 ids of other requests than this one", request_id)
        received[raw_id] = None
    return list(received)
