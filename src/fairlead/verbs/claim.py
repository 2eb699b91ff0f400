"""Leasing messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fairlead.errors import FairleadError
from fairlead.fields import Consumer, MaxPerStream, Wait
from fairlead.model.access import Right
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_CLAIM, MAX_CLAIM_TOKEN_BYTES
from fairlead.request import Request, Room, patience_of, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


@verb("claim")
class Claim(Request[list[Delivery]], frozen=True):
    """Lease up to `limit` messages, waiting up to `wait` for the first.

    `max_per_stream` lets one claim take a run of a stream, in order. `token` makes the claim idempotent:
    while any of its messages is leased, the same token returns these instead of more. `started=False` is for
    prefetching: send `Start` before work begins; until then, expiry counts as a release.
    """

    right = Right.CONSUME
    room = Room.LEASES
    # A claim that a power cut undoes is delivered again.
    durable = False

    queue: Annotated[str | Sequence[str], Meta(description="One queue, or several that take turns.")]
    limit: Annotated[int, Meta(description="Most messages.", ge=1, le=MAX_CLAIM)] = 1
    wait: Wait = None
    consumer: Consumer = ""
    max_per_stream: MaxPerStream = 1
    token: Annotated[
        str | None,
        Meta(description="Makes the claim idempotent.", min_length=1, max_length=MAX_CLAIM_TOKEN_BYTES),
    ] = None
    started: Annotated[bool, Meta(description="Whether work begins at once.")] = True

    def patience_ms(self) -> int:
        return patience_of(self.wait)

    def queues(self) -> Sequence[str]:
        """One name or several; none for a value that the engine refuses."""
        queue: object = self.queue
        if isinstance(queue, str):
            return (queue,)
        if isinstance(queue, Sequence) and all(isinstance(name, str) for name in queue):
            return queue
        return ()

    def authorize(self, rights: Rights) -> Claim:
        """The names of consumers and claims get a prefix with the key's id, so that no other key can use
        them.
        """
        super().authorize(rights)
        consumer, token = rights.scoped_consumer(self.consumer), rights.scoped_token(self.token)
        return msgspec.structs.replace(self, consumer=consumer, token=token)

    def visible(self, answer: list[Delivery], rights: Rights) -> list[Delivery]:
        """Return messages of queues on which the caller has lost the right to their places: the key may have
        been revoked while the claim waited, and a token may bring messages of such a queue.
        """
        if not answer:
            return answer
        try:
            if self.wait is not None:
                for queue in self.queues():
                    rights.need(Right.CONSUME, queue)
            return rights.still_own(answer)
        except FairleadError:
            rights.release(answer)
            raise
