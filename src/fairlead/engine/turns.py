"""The size of one gathered transaction, so that no caller waits long for the lock.

A caller that gathers requests, as a door does in a turn of its event loop, ends the transaction as soon as it
is full, and runs a request alone if it would fill one by itself:

    with engine.transaction() as tx:
        while waiting and not tx.is_full and not runs_alone(waiting[0]):
            answers.append(engine.do(waiting.popleft()))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.engine.transaction import MAX_TURN_BYTES
from fairlead.engine.work import WORK
from fairlead.engine.work.ahead import is_large_payload
from fairlead.model.checks import CheckedColumns
from fairlead.request import Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.settle import Settle

#: Messages or deliveries of one request. One with more runs alone.
MAX_TURN_ITEMS = 1000


def runs_alone(request: Request[Any]) -> bool:
    """Whether a request must not join a gathered transaction: it works in steps, each with a hold of the
    lock, or it is as large as a whole turn. For a malformed request the answer does not matter.
    """
    if type(request) not in WORK:
        return True
    if isinstance(request, Enqueue):
        return is_large_payload(request)
    if isinstance(request, Claim):
        return isinstance(request.limit, int) and request.limit > MAX_TURN_ITEMS
    if isinstance(request, Settle):
        return _count(request.items) > MAX_TURN_ITEMS
    if isinstance(request, (EnqueueMany, Quarantine)):
        return _count(request.messages) > MAX_TURN_ITEMS or _bytes(request.messages) > MAX_TURN_BYTES
    if isinstance(request, Exchange):
        return isinstance(request.requests, Sequence) and any(map(runs_alone, request.requests))
    return False


def _count(items: object) -> int:
    return len(items) if isinstance(items, Sequence) else 0


def _bytes(messages: object) -> int:
    if isinstance(messages, CheckedColumns):
        return sum(map(len, messages.columns.payloads))
    if not isinstance(messages, Sequence):
        return 0
    payloads = [getattr(message, "payload", None) for message in messages]
    return sum([len(payload) for payload in payloads if isinstance(payload, bytes)])
