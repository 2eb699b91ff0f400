"""A whole turn of work in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.model.access import Right
from fairlead.model.message import NewMessage
from fairlead.model.settle import Extend, Settlement
from fairlead.model.views import ExchangeResult
from fairlead.request import Request, Room, verb
from fairlead.verbs.claim import names_of

if TYPE_CHECKING:
    from fairlead.broker.transaction import Transaction
    from fairlead.middleware.rights import Rights


@verb("exchange")
class Exchange(Request[ExchangeResult], frozen=True):
    """Extend, complete, fail, release and enqueue in one commit, then claim.

    The same `request_id` (a UUIDv7) within ten minutes gives the same answers with no second effect, and of
    the claim what is still leased. `claim` has the fields of `claim`: queue, limit, max_per_stream, started.
    `answered` are the ids of earlier requests whose answers have arrived: the broker forgets them, and they
    must not be sent again.
    """

    bulk = True
    room = Room.WEIGHS

    consumer: str
    extend: Sequence[Extend] = ()
    settle: Sequence[Settlement] = ()
    enqueue: Mapping[str, Sequence[NewMessage]] | None = None
    claim: Mapping[str, Any] | None = None
    request_id: str | None = None
    answered: Sequence[str] = ()

    def run(self, tx: Transaction) -> ExchangeResult:
        from fairlead.broker.exchange import exchange

        return exchange(
            tx.core,
            self.consumer,
            extend=self.extend,
            settle=self.settle,
            enqueue={} if self.enqueue is None else self.enqueue,
            claim=self.claim,
            request_id=self.request_id,
            answered=self.answered,
        )

    def authorize(self, rights: Rights) -> Exchange:
        for queue in self.enqueue or {}:
            rights.need(Right.PRODUCE, queue)
        claim = self.claim
        for queue in names_of(claim.get("queue", ())) if isinstance(claim, Mapping) else ():
            rights.need(Right.CONSUME, queue)
        return msgspec.structs.replace(
            self,
            consumer=rights.scoped(self.consumer),
            extend=rights.own_items(self.extend),
            settle=rights.own_items(self.settle),
        )

    def visible(self, answer: ExchangeResult, rights: Rights) -> ExchangeResult:
        with rights.releasing(answer.deliveries):
            deliveries = rights.still_own(answer.deliveries)
        settled = rights.with_given_ids([*self.extend, *self.settle], answer.settled)
        return replace(answer, settled=tuple(settled), deliveries=deliveries)
