"""Enqueueing messages, and quarantining them as dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fairlead.fields import DedupKey, ErrorText, Messages, QueueName, Reason, lasting
from fairlead.model.access import Right
from fairlead.model.durations import Duration
from fairlead.model.failure import FailureReason
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.limits import (
    MAX_DEDUP_KEY_BYTES,
    MAX_KEY_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_THROTTLE_KEYS,
    MAX_WEIGHT,
)
from fairlead.model.message import NewMessage
from fairlead.request import Request, Room, verb

if TYPE_CHECKING:
    pass


@verb("enqueue")
class Enqueue(Request[str], frozen=True):
    """Enqueue one message. Returns its id; for a duplicate, the id of the first message."""

    right = Right.PRODUCE
    room = Room.WEIGHS

    queue: QueueName
    payload: Annotated[
        bytes, Meta(description="The body, which fairlead does not look into.", max_length=MAX_PAYLOAD_BYTES)
    ]
    headers: Annotated[Mapping[str, str] | None, Meta(description="Names and values beside the body.")] = None
    fairness_key: Annotated[
        str, Meta(description="Whom the message belongs to: keys take turns.", max_length=MAX_KEY_BYTES)
    ] = DEFAULT_KEY
    weight: Annotated[
        int, Meta(description=f"The share of the key, 1 to {MAX_WEIGHT}; beyond, the nearer of the two.")
    ] = 1
    throttle_keys: Annotated[
        Sequence[str], Meta(description="Throttles that hold the message back.", max_length=MAX_THROTTLE_KEYS)
    ] = ()
    stream: Annotated[
        str | None,
        Meta(
            description="Messages of one stream are worked in order.", min_length=1, max_length=MAX_KEY_BYTES
        ),
    ] = None
    delay: Annotated[Duration | None, lasting("Deliver only after this time.")] = None
    dedup_key: Annotated[
        str | None,
        Meta(
            description="A second message with this key is the first one.",
            min_length=1,
            max_length=MAX_DEDUP_KEY_BYTES,
        ),
    ] = None
    ttl: Annotated[Duration | None, lasting("Time to live, instead of the time to live of the queue.")] = None

    def message(self) -> NewMessage:
        return NewMessage(
            self.payload,
            self.headers,
            self.fairness_key,
            self.weight,
            self.throttle_keys,
            self.stream,
            self.delay,
            self.dedup_key,
            self.ttl,
        )


@verb("enqueue_many")
class EnqueueMany(Request[list[str]], frozen=True):
    """Enqueue messages, all or none, in the given order, in one commit. Returns their ids."""

    right = Right.PRODUCE
    columns = "messages"
    room = Room.WEIGHS

    queue: QueueName
    messages: Messages


@verb("quarantine")
class Quarantine(Request[list[str]], frozen=True):
    """Add messages directly to the dead letters of a queue, with a record of the reason."""

    right = Right.QUARANTINE
    audited = True
    room = Room.WEIGHS

    queue: QueueName
    messages: Messages
    reason: Reason = FailureReason.UNKNOWN
    error: ErrorText = ""


@verb("twin")
class Twin(Request[str | None], frozen=True):
    """The id that an enqueue with this dedup key would return now; None if it would be a new message."""

    right = Right.PRODUCE
    repeatable = True

    queue: QueueName
    dedup_key: DedupKey
