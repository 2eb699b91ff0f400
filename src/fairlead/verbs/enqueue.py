"""Putting messages into a queue, or straight into its dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fairlead.model.access import Right
from fairlead.model.durations import Duration
from fairlead.model.failure import FailureReason
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.message import NewMessage
from fairlead.request import Request, Room, verb

if TYPE_CHECKING:
    from fairlead.broker.transaction import Transaction


@verb("enqueue")
class Enqueue(Request[str], frozen=True):
    """Put one message into a queue. Returns its id; for a duplicate, the id of the first."""

    bulk = True
    right = Right.PRODUCE
    room = Room.WEIGHS

    queue: str
    payload: bytes
    headers: Mapping[str, str] | None = None
    fairness_key: str = DEFAULT_KEY
    weight: int = 1
    throttle_keys: Sequence[str] = ()
    stream: str | None = None
    delay: Duration | None = None
    dedup_key: str | None = None
    ttl: Duration | None = None

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

    def run(self, tx: Transaction) -> str:
        from fairlead.broker.enqueue import enqueue_many

        return enqueue_many(tx.core, self.queue, [self.message()])[0]


@verb("enqueue_many")
class EnqueueMany(Request[list[str]], frozen=True):
    """Put messages into a queue, all or none, in the order given, in one commit. Returns their ids."""

    bulk = True
    right = Right.PRODUCE
    room = Room.WEIGHS

    queue: str
    messages: Sequence[NewMessage]

    def run(self, tx: Transaction) -> list[str]:
        from fairlead.broker.enqueue import enqueue_many

        return enqueue_many(tx.core, self.queue, self.messages)


@verb("quarantine")
class Quarantine(Request[list[str]], frozen=True):
    """Put messages straight into the dead letters of a queue, with a record of why."""

    right = Right.QUARANTINE
    audited = True
    room = Room.WEIGHS

    queue: str
    messages: Sequence[NewMessage]
    reason: FailureReason | str | int = FailureReason.UNKNOWN
    error: str = ""

    def run(self, tx: Transaction) -> list[str]:
        from fairlead.broker.enqueue import quarantine

        return quarantine(tx.core, self.queue, self.messages, self.reason, self.error)


@verb("twin")
class Twin(Request[str | None], frozen=True):
    """The id that an enqueue with this dedup key would return now; None: it would be a new message."""

    right = Right.PRODUCE
    repeatable = True

    queue: str
    dedup_key: str

    def run(self, tx: Transaction) -> str | None:
        from fairlead.broker.looking import twin

        return twin(tx.core, self.queue, self.dedup_key)
