"""One call for a whole turn of work: extend, complete, fail, release, enqueue, claim.

Everything but the claim is one commit, and with it the outcome is remembered for ten minutes under the request's id: the
same id again gives the same answers and has no second effect. The claim follows under the same hold of the lock; losing
it in a crash costs nothing, since nobody got its deliveries. Its token is the request id, so a repeated request gets what
is still leased of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlead.broker import claim as claiming
from fairlead.broker.core import Core
from fairlead.broker.enqueue import Prepared, ask_hook
from fairlead.broker.hooking import Answers
from fairlead.broker.requests import check_consumer
from fairlead.broker.settle import Batch, ask_hooks
from fairlead.errors import InvalidRequest, RequestExpired, Unavailable
from fairlead.model.checks import check_messages
from fairlead.model.facts import RequestRemembered
from fairlead.model.ids import find_id, id_time_ms, show_id
from fairlead.model.lease import Lease
from fairlead.model.limits import MAX_BATCH_MESSAGES, MAX_REQUEST_AGE_MS
from fairlead.model.message import NewMessage
from fairlead.model.settle import Complete, Extend, Fail, Release, Settlement, SettleResult, Start
from fairlead.model.views import ExchangeResult

_CLAIM_FIELDS = {"queue", "limit", "max_per_stream", "started"}
#: When in a turn each kind of item takes effect.
_TURN: dict[type, int] = {Extend: 0, Start: 0, Complete: 1, Fail: 2, Release: 3}


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """What is kept under the id of a request."""

    settled: list[SettleResult]
    enqueued: dict[str, list[bytes]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Kept).decode


def exchange(
    core: Core,
    consumer: str,
    *,
    extend: Sequence[Extend],
    settle: Sequence[Settlement],
    enqueue: Mapping[str, Sequence[NewMessage]],
    claim: Mapping[str, Any] | None,
    request_id: str | None,
) -> ExchangeResult:
    items = _check_items(extend, settle)
    raw_request = _check_request(core, request_id)
    order = _check_claim(claim, check_consumer(consumer), raw_request)
    if not isinstance(enqueue, Mapping):
        raise InvalidRequest("enqueue", "a mapping of queue name to a list of NewMessage", enqueue)
    checked = {name: check_messages(messages) for name, messages in enqueue.items()}
    with core.lock:
        outcome = _find_outcome(core, raw_request)
    # Hooks are asked without the lock, and not again about what has been answered.
    prepared = [Prepared(name, ask_hook(core, name, messages)) for name, messages in checked.items()] if outcome is None else []
    answers = ask_hooks(core, items) if outcome is None else {}
    with core.lock:
        outcome = outcome or _find_outcome(core, raw_request)
        if outcome is not None:
            leases = core.leases.under_token(order[1].token) if order else []
        else:
            # A queue that is not there must be noticed before anything is carried out.
            for name in order[0] if order else ():
                core.queue(name)
            outcome = _work(core, items, prepared, answers, raw_request)
            leases = _claim_after(core, order) if order else []
        handout = claiming.Handout(core, [lease for lease in leases if lease.queue_id in core.by_id])
        commit = core.store.last_commit
    core.confirm(commit)
    ids = {name: [show_id(raw_id) for raw_id in raw_ids] for name, raw_ids in outcome.enqueued.items()}
    return ExchangeResult(tuple(outcome.settled), ids, handout.deliveries(core))


def _work(core: Core, items: list[Settlement], prepared: list[Prepared], answers: Answers, raw_request: bytes | None) -> Kept:
    batch = Batch(core, answers)
    settled = _decide_in_order(batch, items)
    places = batch.moves.places()
    enqueued: dict[str, list[bytes]] = {}
    for part in prepared:
        enqueued[part.queue] = part.add_to(core, batch.moves, places)
    outcome = Kept(settled, enqueued)
    if raw_request is not None:
        batch.moves.facts.append(RequestRemembered(raw_request, _encode(outcome)))
    batch.commit()
    for part in prepared:
        part.announce(core)
    return outcome


def _claim_after(core: Core, order: tuple[list[str], claiming.Order]) -> list[Lease]:
    """The work is done by now: a claim that cannot be written is an empty one, or a caller would do the work again."""
    try:
        return claiming.claim_now(core, *order, expire=False)
    except Unavailable:
        return []


def _find_outcome(core: Core, raw_request: bytes | None) -> Kept | None:
    core.check_open()
    kept = core.store.request(raw_request) if raw_request is not None else None
    return _decode(kept) if kept is not None else None


def _decide_in_order(batch: Batch, items: list[Settlement]) -> list[SettleResult]:
    """Extends, completes, fails, releases take effect in this order; the results are in the order given."""
    order = sorted(range(len(items)), key=lambda at: _TURN.get(type(items[at]), 0))
    results = dict(zip(order, batch.decide([items[at] for at in order]), strict=True))
    return [results[at] for at in range(len(items))]


def _check_items(extend: Sequence[Extend], settle: Sequence[Settlement]) -> list[Settlement]:
    for field, items in (("extend", extend), ("settle", settle)):
        if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
            raise InvalidRequest(field, "a list", items)
    if any(not isinstance(item, Extend) for item in extend):
        raise InvalidRequest("extend", "a list of Extend", extend)
    if len(extend) + len(settle) > MAX_BATCH_MESSAGES:
        raise InvalidRequest("settle", f"at most {MAX_BATCH_MESSAGES} in one call", f"{len(extend) + len(settle)} items")
    return [*extend, *settle]


def _check_claim(claim: Mapping[str, Any] | None, consumer: str, raw_request: bytes | None) -> tuple[list[str], claiming.Order] | None:
    if claim is None:
        return None
    if not isinstance(claim, Mapping) or "queue" not in claim or not _CLAIM_FIELDS.issuperset(claim):
        raise InvalidRequest("claim", 'a mapping such as {"queue": "orders", "limit": 100}, with ' + ", ".join(sorted(_CLAIM_FIELDS)), claim)
    token = f"exchange:{show_id(raw_request)}" if raw_request else None
    return claiming.check_claim(claim["queue"], claim.get("limit", 1), consumer, token, claim.get("started", True), claim.get("max_per_stream", 1))


def _check_request(core: Core, request_id: str | None) -> bytes | None:
    if request_id is None:
        return None
    raw_id = find_id(request_id)
    if raw_id is None or raw_id[6] >> 4 != 7:
        raise InvalidRequest("request_id", "a UUIDv7", request_id)
    age_ms = core.clock.now_ms() - id_time_ms(raw_id)
    if not -MAX_REQUEST_AGE_MS <= age_ms <= MAX_REQUEST_AGE_MS:
        raise RequestExpired(str(request_id), age_ms)
    return raw_id
