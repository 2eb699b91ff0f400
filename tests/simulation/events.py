"""What the witness sees of a commit, in terms that belong to no engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from fairlead.model.message import MessageState
from fairlead.model.queue import QueueRecord

READY, WAITING, LEASED, DONE = "ready", "waiting", "leased", "done"


class NewMessage(NamedTuple):
    """`seq` is 0 when no stream orders the message."""

    id: bytes
    payload: bytes
    throttles: tuple[str, ...]
    stream: str
    seq: int
    due_ms: int
    ttl_ms: int


class Enqueued(NamedTuple):
    queue_id: int
    messages: list[NewMessage]


class Quarantined(NamedTuple):
    """`queue_id` is that of the dead letters."""

    queue_id: int
    messages: list[NewMessage]
    states: list[MessageState]


class Member(NamedTuple):
    """A message in the hands of a consumer; `deliveries` counts this one."""

    id: bytes
    claim_id: int
    expires_ms: int
    started: bool
    deliveries: int = 0


class Leased(NamedTuple):
    consumer: str
    members: list[Member]


class Completed(NamedTuple):
    members: list[Member]


class Extended(NamedTuple):
    members: list[Member]


class Started(NamedTuple):
    members: list[Member]


class Place(NamedTuple):
    queue_id: int
    where: str
    throttles: tuple[str, ...] = ()
    stream: str = ""
    seq: int = 0
    due_ms: int = 0
    done_ms: int = 0


class Moved(NamedTuple):
    """`source` and `claim_id` are given by an engine whose facts say where a message was."""

    kind: str
    id: bytes
    target: Place | None
    state: MessageState | None
    source: Place | None = None
    claim_id: int = 0


class Restated(NamedTuple):
    """What is known of a message that is leased changed."""

    id: bytes
    claim_id: int
    state: MessageState


class Recounted(NamedTuple):
    id: bytes
    state: MessageState


class QueueSaved(NamedTuple):
    record: QueueRecord


class QueueUnlinked(NamedTuple):
    """A queue has no name any more, and its messages will go."""

    queue_id: int
    name: str


class QueueCleared(NamedTuple):
    """A queue without messages is gone."""

    queue_id: int


class QueueDeleted(NamedTuple):
    """A queue is gone with its messages and its dead letters."""

    queue_id: int


class StreamOpened(NamedTuple):
    """Which messages of a stream may pass others may have changed."""

    queue_id: int
    stream: str


class RequestRemembered(NamedTuple):
    """The session and the number, as one key."""

    key: bytes


class RequestsForgotten(NamedTuple):
    keys: Sequence[bytes]


class SessionsForgotten(NamedTuple):
    keys: Collection[bytes]


class IntentSaved(NamedTuple):
    intent: Any


class IntentEnded(NamedTuple):
    intent_id: int
