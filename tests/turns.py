"""A turn of work: what a busy consumer settles, enqueues and claims in one exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from fairlead import Delivery, NewMessage
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
    place: Mapping[str, Any] | None = None,
) -> Turn:
    """Make the turn through any face that has `exchange` and `once`; `place` is one in a session."""
    requests = requests_of(consumer, settle, enqueue, claim)
    if place is None:
        answers = x.exchange(requests)
    else:
        answers = x.once(Exchange(requests), **place)
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


def new_place(x: Any) -> dict[str, Any]:
    """The first place in a session of its own, for `once`."""
    session = uuid4().hex
    x.open_session(session)
    return {"session": session, "number": 1}


def next_place(place: Mapping[str, Any]) -> dict[str, Any]:
    """The place behind this one, whose answer has arrived."""
    return {"session": place["session"], "number": place["number"] + 1, "arrived": place["number"]}
