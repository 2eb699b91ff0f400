"""Reporting outcomes of deliveries. The first outcome of a delivery counts; one bad item never affects
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fairlead.fields import Consumer, ErrorText, MessageId, QueueName, Reason
from fairlead.model.access import Right
from fairlead.model.failure import FailureReason
from fairlead.model.limits import MAX_BATCH_MESSAGES
from fairlead.model.settle import Settlement, SettleResult
from fairlead.request import Request, Room, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


@verb("settle")
class Settle(Request[list[SettleResult]], frozen=True):
    """Report outcomes of deliveries, with one result for each. A stale lease changes nothing and answers
    `lost_lease`.

    A few thousand completions are one commit; a call with more items is settled part by part, in order.
    """

    room = Room.WEIGHS

    items: Annotated[Sequence[Settlement], Meta(description="The outcomes.", max_length=MAX_BATCH_MESSAGES)]

    def authorize(self, rights: Rights) -> Settle:
        items = rights.own_items(self.items)
        return self if items is self.items else msgspec.structs.replace(self, items=items)

    def visible(self, answer: list[SettleResult], rights: Rights) -> list[SettleResult]:
        return rights.with_given_ids(self.items, answer)


@verb("ack")
class Ack(Request[SettleResult], frozen=True):
    """Complete a message under its current lease. Not fenced: a late caller may settle another consumer's
    delivery.
    """

    right = Right.CONSUME
    room = Room.FITS

    queue: QueueName
    message_id: MessageId


@verb("nack")
class Nack(Request[SettleResult], frozen=True):
    """Fail a message under its current lease; not fenced, like `ack`."""

    right = Right.CONSUME
    room = Room.FITS

    queue: QueueName
    message_id: MessageId
    error: ErrorText = ""
    reason: Reason = FailureReason.UNKNOWN


@verb("goodbye")
class Goodbye(Request[int], frozen=True):
    """Release all messages that a consumer has leased to their places. Returns their number."""

    room = Room.FITS

    consumer: Consumer

    def authorize(self, rights: Rights) -> Goodbye:
        return msgspec.structs.replace(self, consumer=rights.scoped_consumer(self.consumer))
