"""Requests that are too large for one hold of the lock are carried out in parts: each part is one
transaction, and waiting threads get the lock in between.

A request that joins a transaction, or that must have its effect once, stays whole: it is one write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.decide.exchange import check_item_count, check_items
from fairlead.engine.chunk_messages import with_bodies
from fairlead.engine.read_ahead import read_ahead
from fairlead.engine.transaction import NO_ANSWERS
from fairlead.engine.work.claim import check_claim, claim_now, still_leased
from fairlead.engine.work.large_enqueue import (
    enqueue_in_parts,
    is_large_enqueue,
    is_large_quarantine,
    quarantine_in_parts,
)
from fairlead.engine.work.settle import settle
from fairlead.errors import FairleadError
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_ANSWER_BYTES
from fairlead.model.settle import Complete, Release, SettleResult
from fairlead.request import Caller, Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import EnqueueMany, Quarantine
from fairlead.verbs.settle import Settle

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Messages of one part, which takes a few milliseconds.
CLAIM_PART = 1000
SETTLE_PART = 50
#: Completions cost a fraction of other outcomes, and a chunk that is completed at once needs no row of
#: states.
COMPLETE_PART = 500


def is_large(request: Request[Any]) -> bool:
    if type(request) is EnqueueMany:
        return is_large_enqueue(request)
    if type(request) is Quarantine:
        return is_large_quarantine(request)
    if type(request) is Claim:
        # A longer run of a stream would end with its part.
        is_long_run = isinstance(request.max_per_stream, int) and request.max_per_stream > CLAIM_PART
        return isinstance(request.limit, int) and request.limit > CLAIM_PART and not is_long_run
    items = request.items if type(request) is Settle else ()
    # A list is a sequence: testing against the abstract class costs more than everything else.
    if not (type(items) is list or isinstance(items, Sequence)):
        return False
    return len(items) > SETTLE_PART and len(items) > _part_of(items)


def _part_of(items: Sequence[Any]) -> int:
    if len(items) <= SETTLE_PART:
        return SETTLE_PART
    return COMPLETE_PART if set(map(type, items)) == {Complete} else SETTLE_PART


def claim_in_parts(engine: Engine, request: Claim, caller: Caller) -> list[Delivery]:
    """The first part waits if necessary. An error in a later part ends the claim with the messages that it
    has.
    """
    names = check_claim(request)
    if request.token:
        with engine.transaction() as tx:
            held, unread = still_leased(tx, request.token), engine.take_unread()
        if held := with_bodies(engine, unread, held):
            return held
    part = msgspec.structs.replace(request, limit=CLAIM_PART)
    found: list[Delivery] = engine.do(part, caller)
    count = len(found)
    while count == CLAIM_PART and len(found) < request.limit:
        room_bytes = MAX_ANSWER_BYTES - sum([len(one.payload) for one in found])
        if room_bytes <= 0:
            break
        part = msgspec.structs.replace(part, limit=min(CLAIM_PART, request.limit - len(found)))
        try:
            read_ahead(engine, names, part.limit)
            with engine.transaction() as tx:
                queues = [tx.queue(name) for name in _going_on(found[-1].queue, names)]
                more, unread = claim_now(tx, queues, part, max_bytes=room_bytes), engine.take_unread()
            more = with_bodies(engine, unread, more)
        except FairleadError:
            break
        found += more
        count = len(more)
    return found


def _going_on(last: str, names: Sequence[str]) -> list[str]:
    """The queues from the one that gave the last message on: those before it gave what they could."""
    queues = list(dict.fromkeys(names))
    at = queues.index(last)
    return queues[at:] + queues[:at]


def settle_in_parts(engine: Engine, request: Settle, caller: Caller) -> list[SettleResult]:
    """Settle in the order of the items. An error leaves the parts before it settled: a repeated call finds
    them ended.
    """
    items = check_items(request.items)
    check_item_count(items)
    results: list[SettleResult] = []
    for some in _parts(items):
        part = Settle(some)
        answers = engine.hooking.ask([part]) if engine.hooking.is_used else NO_ANSWERS
        with engine.transaction(answers) as tx:
            results += settle(tx, part)
    engine.confirm()
    return results


def _parts(items: Sequence[Any]) -> list[Sequence[Any]]:
    """The items in parts. Whether a release lets its message pass depends on the failures of the same call,
    so a call with releases stays whole.
    """
    if any(isinstance(item, Release) and not item.keep_order for item in items):
        return [items]
    size = _part_of(items)
    return [items[start : start + size] for start in range(0, len(items), size)]


#: The work of a large request. None: it must be one transaction nevertheless.
IN_PARTS: dict[type[Request[Any]], Callable[[Any, Any, Caller], Any]] = {
    EnqueueMany: enqueue_in_parts,
    Quarantine: quarantine_in_parts,
    Claim: claim_in_parts,
    Settle: settle_in_parts,
}
