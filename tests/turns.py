"""A turn of work: what a busy consumer settles, enqueues and claims in one exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairlead import Delivery, NewMessage
from fairlead.model.ids import IdSource, show_id
from fairlead.model.settle import Settlement, SettleResult
from fairlead.request import Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.settle import Settle


class Turn(NamedTuple):
    """The answers, by kind: `enqueued` has the ids by queue."""

    settled: list[SettleResult]
    enqueued: dict[str, list[str]]
    deliveries: list[Delivery]


def requests_of(
    consumer: str = "",
    settle: Sequence[Settlement] = (),
    enqueue: Mapping[str, Sequence[NewMessage]] | None = None,
    claim: Mapping[str, Any] | None = None,
) -> list[Request[Any]]:
    requests: list[Request[Any]] = [Settle(settle)] if settle else []
    requests += [EnqueueMany(queue, messages) for queue, messages in (enqueue or {}).items()]
    if claim is not None:
        requests.append(Claim(consumer=consumer, **claim))
    return requests


def turn(
    x: Any,
    consumer: str = "",
    settle: Sequence[Settlement] = (),
    enqueue: Mapping[str, Sequence[NewMessage]] | None = None,
    claim: Mapping[str, Any] | None = None,
    request_id: Any = None,
    answered: Any = (),
) -> Turn:
    """Make the turn through any face that has `exchange` and `once`."""
    requests = requests_of(consumer, settle, enqueue, claim)
    if request_id is None and answered == ():
        answers = x.exchange(requests)
    else:
        answers = x.once(Exchange(requests), request_id, answered=answered)
    return sorted_answers(requests, answers)


def sorted_answers(requests: Sequence[Request[Any]], answers: Sequence[Any]) -> Turn:
    found = Turn([], {}, [])
    for request, answer in zip(requests, answers, strict=True):
        if isinstance(request, Settle):
            found.settled.extend(answer)
        elif isinstance(request, EnqueueMany):
            found.enqueued[request.queue] = answer
        else:
            found.deliveries.extend(answer)
    return found


def new_id(broker: Any) -> str:
    """A request id of this moment."""
    return show_id(IdSource().next(broker.clock.now_ms(), 1)[0])
