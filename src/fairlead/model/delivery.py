"""A message as a consumer receives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from fairlead.model.failure import FailureRecord, Progress
from fairlead.model.ids import show_id
from fairlead.model.lane import lane_key, lane_throttle_keys
from fairlead.model.message import Message, MessageState, lane_of, seq_of, unpack_headers, weight_of

if TYPE_CHECKING:
    from fairlead.model.delivery_columns import DeliveryColumns

_UNTOUCHED = MessageState(queue_id=0)


class StoredMessages(Protocol):
    """The messages of an engine by number, built on access."""

    def message(self, number: int) -> Message: ...

    def raw_id(self, number: int) -> bytes: ...

    def payload(self, number: int) -> bytes: ...

    def columns_of(self, deliveries: Sequence[Delivery]) -> DeliveryColumns:
        """The columns of deliveries of the same engine, wherever their messages are stored."""


class Delivery(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One message under one lease. Times are epoch milliseconds.

    The object holds little on purpose: the fields of the message are read from the stored records on access,
    because batches of 500 are built far more often than all their fields are read.
    """

    #: The message, or the source that finds the message by its number.
    stored: Message | StoredMessages
    state: MessageState | None
    queue: str
    claim_id: int
    lease_until: int
    deliveries: int
    source: str | None = None
    number: int = 0

    @property
    def message(self) -> Message:
        stored = self.stored
        return stored if isinstance(stored, Message) else stored.message(self.number)

    @property
    def raw_id(self) -> bytes:
        stored = self.stored
        return stored.id if isinstance(stored, Message) else stored.raw_id(self.number)

    @property
    def id(self) -> str:
        return show_id(self.raw_id)

    @property
    def lease(self) -> str:
        """The token that settles this delivery and no other."""
        return f"{self.claim_id:x}"

    @property
    def payload(self) -> bytes:
        stored = self.stored
        return stored.payload if isinstance(stored, Message) else stored.payload(self.number)

    @property
    def headers(self) -> dict[str, str]:
        return unpack_headers(self.message.headers)

    @property
    def fairness_key(self) -> str:
        return lane_key(lane_of(self.message, self.state))

    @property
    def weight(self) -> int:
        return weight_of(self.message, self.state)

    @property
    def throttle_keys(self) -> tuple[str, ...]:
        return lane_throttle_keys(lane_of(self.message, self.state))

    @property
    def stream(self) -> str | None:
        return self.message.stream or None

    @property
    def seq(self) -> int:
        """The message's order in its stream; 0 without a stream."""
        return seq_of(self.message, self.state)

    @property
    def enqueued_at(self) -> int:
        return self.message.enqueued_ms

    @property
    def attempts(self) -> int:
        """Failed tries so far in the message's current life: 0 on the first delivery."""
        return (self.state or _UNTOUCHED).attempts

    @property
    def progress(self) -> Progress:
        return Progress((self.state or _UNTOUCHED).progress)

    @property
    def carry(self) -> bytes:
        return (self.state or _UNTOUCHED).carry

    @property
    def failures(self) -> tuple[FailureRecord, ...]:
        return (self.state or _UNTOUCHED).failures

    @property
    def dead_since(self) -> int | None:
        return (self.state or _UNTOUCHED).dead_since_ms or None

    def _compared(self) -> tuple[object, ...]:
        shared = self.state, self.queue, self.claim_id, self.lease_until, self.deliveries, self.source
        return (self.message, *shared)

    def __eq__(self, other: object) -> bool:
        return self._compared() == other._compared() if isinstance(other, Delivery) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._compared())

    def __repr__(self) -> str:
        # Without the payload, which may be large or secret.
        return f"Delivery(id={self.id!r}, queue={self.queue!r}, fairness_key={self.fairness_key!r}, attempts={self.attempts})"
