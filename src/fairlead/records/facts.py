"""What a transaction is made of, in the past tense. `Memory.apply` is the only reducer of facts, and what it
touched becomes rows in `store/rows.py`.

Facts are columnar: one fact is about a whole chunk or a list of numbers, never about one object per message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from fairlead.model.queue import QueueRecord
from fairlead.records.chunk import Chunk
from fairlead.records.lease import GroupLease
from fairlead.records.state import DedupRow, OwnState

if TYPE_CHECKING:
    from fairlead.schedule.plan import ClaimPlan
    from fairlead.schedule.throttle import Bucket

#: Why a message moved on its own.
Move = Literal["released", "retried", "delayed", "due", "held", "buried", "redriven"]
#: Why a message is gone without having been completed.
End = Literal["expired", "dropped", "completed"]


class QueueStored(msgspec.Struct, frozen=True):
    """A queue is new, or has a new record."""

    record: QueueRecord


class ChunkEnqueued(msgspec.Struct, frozen=True):
    """`ready`: the numbers to schedule; None, for a new chunk, means all of them."""

    chunk: Chunk
    ready: Sequence[int] | None = None


class Claimed(msgspec.Struct, frozen=True):
    """Messages are leased. `plan` is what the scheduler decided; None at open, where leased messages were
    never scheduled.
    """

    lease: GroupLease
    numbers: Sequence[int]
    plan: ClaimPlan | None


class LeaseCompleted(msgspec.Struct, frozen=True):
    """Members of a lease are done and gone."""

    lease: GroupLease
    numbers: Sequence[int]


class LeaseSplit(msgspec.Struct, frozen=True):
    """Members of `before` go on under `after`: the same claim with another expiry, or started."""

    before: GroupLease
    after: GroupLease
    numbers: Sequence[int]


class MessageMoved(msgspec.Struct, frozen=True):
    """Something happened to one message alone: from now on it has a row of its own. Its body stays in its
    chunk. `why` is None at open.
    """

    number: int
    state: OwnState
    why: Move | None


class MessageRestated(msgspec.Struct, frozen=True):
    """A message stays where it is, and what is known of it changed."""

    number: int
    state: OwnState


class MessageGone(msgspec.Struct, frozen=True):
    """A message ended, wherever it was."""

    number: int
    why: End


class KeysRemembered(msgspec.Struct, frozen=True):
    """Dedup keys of a queue stand for these messages from now on."""

    queue_id: int
    rows: dict[str, DedupRow]


class KeysForgotten(msgspec.Struct, frozen=True):
    """Dedup keys of a queue stand for no message any more."""

    queue_id: int
    keys: Sequence[str]


class WindowsEnded(msgspec.Struct, frozen=True):
    """Windows of dedup keys are over: (their end, key). `next_ms` is when the next window may end; 0: there is
    none. At open `ended` is empty.
    """

    queue_id: int
    ended: Sequence[tuple[int, str]]
    next_ms: int


class ConfigChanged(msgspec.Struct, frozen=True):
    """Keys of the runtime configuration have these values from now on; None: they have none."""

    entries: dict[str, str | None]


class BucketChanged(msgspec.Struct, frozen=True):
    """A throttle was configured, or is no longer: then its bucket is idle, and what it holds counts if it is
    configured again. None: the idle bucket is forgotten.
    """

    throttle_key: str
    bucket: Bucket | None
    is_idle: bool
    at_ms: int


StateFact = (
    QueueStored
    | ConfigChanged
    | BucketChanged
    | ChunkEnqueued
    | Claimed
    | LeaseCompleted
    | LeaseSplit
    | MessageMoved
    | MessageRestated
    | MessageGone
    | KeysRemembered
    | KeysForgotten
    | WindowsEnded
)
