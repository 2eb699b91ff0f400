"""What a commit is made of: typed facts, in the past tense, with everything the store must remember and
nothing to decide.

The three hot transitions have batch forms of their own (`Enqueued`, `Leased`, `Completed`). Every other
transition of a message is a `Moved`: it leaves exactly one spot and enters at most one, so that "every
message is in exactly one place" is the shape of the data and not a hope.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.model.access import AuditRecord, KeyRecord
from fairlead.model.clock_mark import BucketLevel, ClockMark
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.lease import Claim, Lease
from fairlead.model.message import Message, MessageState
from fairlead.model.names import Scoped
from fairlead.model.queue import QueueRecord
from fairlead.model.staging import Published, Publishing, StagedChunk
from fairlead.model.stream import StreamRecord, StreamRow


class InReady(msgspec.Struct, frozen=True, gc=False):
    queue_id: int
    lane: bytes
    row: bytes


class InStream(msgspec.Struct, frozen=True, gc=False):
    """Ready, but not at the front of its stream: counted, found through its stream, in no ready row."""

    queue_id: int
    lane: bytes
    row: bytes


class InWaiting(msgspec.Struct, frozen=True, gc=False):
    """`row` has place 0. `due_ms` may be `HELD`."""

    queue_id: int
    due_ms: int
    lane: bytes
    row: bytes


class InLease(msgspec.Struct, frozen=True, gc=False):
    lease: Lease


class InDone(msgspec.Struct, frozen=True, gc=False):
    """Completed and kept to be looked at (`retain_completed`). `row` has place 0 and no stream: it holds
    nobody up.
    """

    queue_id: int
    done_ms: int
    lane: bytes
    row: bytes


Spot = InReady | InStream | InWaiting | InLease | InDone


def spot_row(spot: Spot) -> bytes:
    return spot.lease.row if isinstance(spot, InLease) else spot.row


def spot_lane(spot: Spot) -> bytes:
    return spot.lease.lane if isinstance(spot, InLease) else spot.lane


def spot_queue_id(spot: Spot) -> int:
    return spot.lease.queue_id if isinstance(spot, InLease) else spot.queue_id


#: The events of the lifecycle table (decide/lifecycle.py) that move one message.
MoveKind = Literal[
    "released",
    "retried",
    "delayed",
    "due",
    "buried",
    "redriven",
    "dropped",
    "expired",
    "held",
    "completed",
    "promoted",
    "demoted",
]


#: What made a message move, where its kind does not tell; "": somebody asked for it.
Cause = Literal["", "lease_expiry", "retention", "purge", "delete", "redrive"]


class Enqueued(msgspec.Struct, frozen=True):
    """New messages; each enters ready at its `place`, or waiting when it has a `due_ms`. All of one queue.

    Those in `behind` enter their stream instead of the ready rows.
    """

    queue_id: int
    messages: list[Message]
    behind: frozenset[bytes] = frozenset()


class Quarantined(msgspec.Struct, frozen=True):
    """New messages put straight into a dead-letter queue, each with its state; ready there at `state.place`."""

    queue_id: int
    messages: list[Message]
    states: list[MessageState]


class Leased(msgspec.Struct, frozen=True):
    """Messages left ready under one claim, new or, if it is a numbered one, known. All leases have the
    claim's expiry.

    `followers` are the later messages of a run: they left their streams, not the ready rows. Either may be
    empty.
    """

    claim: Claim
    leases: list[Lease]
    followers: list[Lease] = []


class Completed(msgspec.Struct, frozen=True):
    """Leased messages are gone. `live_dedup` are the (queue_id, dedup key) rows that end with them; their
    time-to-live rows end by `TtlForgotten` facts in the same commit.
    """

    leases: list[Lease]
    live_dedup: list[tuple[int, str]]


class Moved(msgspec.Struct, frozen=True):
    """One message left `source` and entered `target` (None: it is gone).

    `state` replaces the stored state; None leaves it as it is, and a gone message loses it. The flags in the
    target's row say whether a state is stored. `expires_ms` names the time-to-live row, (source queue,
    expires_ms, id): written when the target's flags say that there is one (it may be there already), else
    removed. `live_dedup` names the dedup row to remove, also when the message moves on (a dead letter has
    neither row); 0 and None: none. `cause` is for those who watch; a store has no use for it.
    """

    kind: MoveKind
    id: bytes
    source: Spot
    target: Spot | None
    state: MessageState | None
    expires_ms: int = 0
    live_dedup: tuple[int, str] | None = None
    cause: Cause = ""


#: Rules by which a message dies without a failed try.
_DIED_UNFAILED = ("operator", "ttl", "max_deliveries")


def ends_failed_try(fact: Moved) -> bool:
    """Whether the move is what followed a failure: another try, now or later, or death."""
    if fact.kind == "buried":
        return fact.state is not None and fact.state.rule not in _DIED_UNFAILED
    return fact.kind in ("retried", "delayed")


class Restated(msgspec.Struct, frozen=True):
    """A leased message's state changed without a move (progress, carry). `lease` has the STATE flag set."""

    lease: Lease
    state: MessageState


class Recounted(msgspec.Struct, frozen=True):
    """The failure count of a live message was set; the message stays where it is."""

    message_id: bytes
    state: MessageState


class Extended(msgspec.Struct, frozen=True):
    """Leases now expire at their (new) `expires_ms`, which all of them share; all belong to `claim`."""

    claim: Claim
    leases: list[Lease]


class Started(msgspec.Struct, frozen=True):
    leases: list[Lease]


class ClaimEnded(msgspec.Struct, frozen=True):
    """No lease of this claim has this expiry any more."""

    expires_ms: int
    claim_id: int


class StreamSaved(msgspec.Struct, frozen=True):
    queue_id: int
    stream: str
    record: StreamRecord


class StreamEnded(msgspec.Struct, frozen=True):
    """None of its messages is live."""

    queue_id: int
    stream: str


class StreamJoined(msgspec.Struct, frozen=True):
    """A message behind the first one of its stream."""

    queue_id: int
    stream: str
    row: StreamRow


class StreamLeft(msgspec.Struct, frozen=True):
    """A message is gone from its stream, or is its first one now."""

    queue_id: int
    stream: str
    seq: int


class QueueSaved(msgspec.Struct, frozen=True):
    """A queue was created or changed."""

    record: QueueRecord


class QueueUnlinked(msgspec.Struct, frozen=True):
    """The name is free again; the rows go by the steps of an intent."""

    queue_id: int
    name: str


class QueueCleared(msgspec.Struct, frozen=True):
    """Nothing of the queue is left but this fact; its counters go too."""

    queue_id: int


class RequestRemembered(msgspec.Struct, frozen=True):
    """The answer to a request under an id, kept in the same commit as its effects."""

    request_id: bytes
    outcome: bytes


class RequestsForgotten(msgspec.Struct, frozen=True):
    """Too old, or their answers have arrived. Ids that are not remembered are fine."""

    request_ids: list[bytes]


class ConfigSet(msgspec.Struct, frozen=True):
    key: str
    value: str


class ConfigDeleted(msgspec.Struct, frozen=True):
    key: str


class ClockMarked(msgspec.Struct, frozen=True):
    """In place of the mark before."""

    mark: ClockMark


class BucketsSaved(msgspec.Struct, frozen=True):
    """What token buckets hold, in place of what was remembered of them. Those in `forgotten` have no
    configuration and are full.
    """

    levels: list[BucketLevel]
    forgotten: list[str] = []


class KeySaved(msgspec.Struct, frozen=True):
    """An API key was made, changed or used."""

    record: KeyRecord


class KeyDropped(msgspec.Struct, frozen=True):
    key_id: str


class AuditSaved(msgspec.Struct, frozen=True):
    """An entry was appended, or its own outcome came to be known."""

    record: AuditRecord


class AuditForgotten(msgspec.Struct, frozen=True):
    """Entries numbered below this are too old to keep."""

    below: int


class RunbookSaved(msgspec.Struct, frozen=True):
    """What is in force in a project; "" is no project."""

    project: str
    text: str


class ChunkStaged(msgspec.Struct, frozen=True):
    """A chunk of a staged write, in place of an earlier one of that name."""

    chunk: StagedChunk
    body: bytes


class ChunksDropped(msgspec.Struct, frozen=True):
    """They are messages now, or never will be."""

    write: Scoped
    chunks: list[str]


class PublishSaved(msgspec.Struct, frozen=True):
    """A staged write was published, or has come further."""

    record: Publishing


class PublishEnded(msgspec.Struct, frozen=True):
    """All of it is messages; that it was published is remembered."""

    record: Published


class PublishesForgotten(msgspec.Struct, frozen=True):
    rows: list[tuple[int, Scoped]]  # until_ms, write


class ConsumerSaved(msgspec.Struct, frozen=True):
    record: ConsumerRecord


class ConsumerDropped(msgspec.Struct, frozen=True):
    consumer: Scoped


class MembersPinned(msgspec.Struct, frozen=True):
    """The next messages of a numbered claim, in the order in which it is read: ids of 16 bytes, one behind
    the other.
    """

    consumer: Scoped
    number: int
    page: int
    ids: bytes


class OutcomesRecorded(msgspec.Struct, frozen=True):
    """What was said in one call about members of a numbered claim; `at` orders the calls, `outcomes` are
    packed `Recorded`.
    """

    consumer: Scoped
    number: int
    at: int
    part: str
    outcomes: bytes


class PartsChosen(msgspec.Struct, frozen=True):
    """Whose outcomes count; in place of what was chosen before."""

    consumer: Scoped
    number: int
    parts: tuple[str, ...]


class NumberedClaimForgotten(msgspec.Struct, frozen=True):
    """It is over: so many pages of members, outcomes of so many calls, and the choice go. Its messages have
    moved on, or do so with their queue.
    """

    consumer: Scoped
    number: int
    pages: int
    calls: int


class DedupForgotten(msgspec.Struct, frozen=True):
    """Windows that are over."""

    rows: list[tuple[int, str, int]]  # queue_id, dedup key, until_ms


class TtlForgotten(msgspec.Struct, frozen=True):
    """A time-to-live row ends: its message is gone, or leased, and then it is looked at again when the lease
    ends.
    """

    queue_id: int
    expires_ms: int
    id: bytes


class Intent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A long operation in durable, bounded steps.

    `cutoff` freezes the selection: only what had a place up to it is touched. `cursor` is how far it has
    come.
    """

    intent_id: int
    kind: Literal["purge", "delete", "redrive"]
    queue_id: int
    created_ms: int
    cutoff: int
    cursor: int = 0
    done: int = 0
    limit: int = 0
    rate: float = 0.0
    clear_progress: bool = False
    filter: dict[str, object] = {}
    #: An id made when the intent was: whatever sorts before it was enqueued earlier.
    marker: bytes = b""


class IntentSaved(msgspec.Struct, frozen=True):
    intent: Intent


class IntentEnded(msgspec.Struct, frozen=True):
    intent_id: int


Fact = (
    Enqueued
    | Quarantined
    | Leased
    | Completed
    | Moved
    | Restated
    | Recounted
    | Extended
    | Started
    | ClaimEnded
    | QueueSaved
    | QueueUnlinked
    | QueueCleared
    | StreamSaved
    | StreamEnded
    | StreamJoined
    | StreamLeft
    | RequestRemembered
    | RequestsForgotten
    | ConfigSet
    | ConfigDeleted
    | ClockMarked
    | BucketsSaved
    | KeySaved
    | KeyDropped
    | AuditSaved
    | AuditForgotten
    | RunbookSaved
    | ConsumerSaved
    | ConsumerDropped
    | MembersPinned
    | OutcomesRecorded
    | PartsChosen
    | NumberedClaimForgotten
    | DedupForgotten
    | TtlForgotten
    | IntentSaved
    | IntentEnded
    | ChunkStaged
    | ChunksDropped
    | PublishSaved
    | PublishEnded
    | PublishesForgotten
)
