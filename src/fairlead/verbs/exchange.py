"""Several requests in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.request import Request, Room, verb
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.settle import Settle

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights

#: What an exchange may contain, and at most one `Claim`. None of these is audited.
ACCEPTED = (Settle, Enqueue, EnqueueMany, Claim)


def check_requests(requests: object) -> Sequence[Settle | Enqueue | EnqueueMany | Claim]:
    """The requests of an exchange. Raises `InvalidRequest` for anything else."""
    expected = f"a list of {', '.join(kind.__name__ for kind in ACCEPTED)}, with at most one Claim"
    if not isinstance(requests, Sequence) or isinstance(requests, (str, bytes)):
        raise InvalidRequest("requests", expected, type(requests))
    for request in requests:
        if not isinstance(request, ACCEPTED):
            raise InvalidRequest("requests", expected, type(request))
    claims = [request for request in requests if isinstance(request, Claim)]
    if len(claims) > 1:
        raise InvalidRequest("requests", expected, "several claims")
    for claim in claims:
        if claim.wait is not None:
            raise InvalidRequest("wait", "none for a claim in an exchange, which does not wait", claim.wait)
        if claim.token is not None:
            raise InvalidRequest(
                "token", "none for a claim in an exchange: send it in a session", claim.token
            )
    return requests


def answers_of(
    requests: Sequence[Request[Any]], settled: Iterable[Any], ids: Iterable[str], deliveries: list[Any]
) -> list[Any]:
    """The answer to each request, in order, from the results of all items and the ids of all messages."""
    results, shown = iter(settled), iter(ids)
    answers: list[Any] = []
    for request in requests:
        if isinstance(request, Settle):
            answers.append(list(islice(results, len(request.items))))
        elif isinstance(request, EnqueueMany):
            answers.append(list(islice(shown, len(request.messages))))
        elif isinstance(request, Enqueue):
            answers.append(next(shown))
        else:
            answers.append(deliveries)
    return answers


@verb("exchange")
class Exchange(Request[list[Any]], frozen=True):
    """Carry out several requests in one call: settles and enqueues in one commit, then a claim.

    The answers are in the order of the requests. Effects are in a fixed order: extensions, completions,
    failures, releases, enqueues, claim. If a request is refused as a whole, the whole call is refused before
    any of it runs. The claim does not wait.
    """

    room = Room.WEIGHS

    requests: Sequence[Request[Any]]

    def authorize(self, rights: Rights) -> Exchange:
        """Each request needs its own right, before any of them runs."""
        allowed = [one.authorize(rights) for one in check_requests(self.requests)]
        return msgspec.structs.replace(self, requests=allowed)

    def visible(self, answer: list[Any], rights: Rights) -> list[Any]:
        return [one.visible(part, rights) for one, part in zip(self.requests, answer, strict=True)]
