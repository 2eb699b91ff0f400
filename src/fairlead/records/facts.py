"""The facts of a transaction, named in the past tense. `Memory.apply` is their only reducer, and
`store/rows.py` writes the rows of what they touched.

Facts are columnar: one fact concerns a whole chunk or a list of numbers, never one object for each message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fairlead.model.queue import QueueRecord
from fairlead.records.chunk import PAGE_BYTES, Chunk, Columns, Head, LaneName
from fairlead.records.ids import COMMIT_SHIFT, id_prefix
from fairlead.records.lease import GroupLease
from fairlead.records.session import RememberedAnswer
from fairlead.records.state import Counts, DedupRow, OwnState
from fairlead.records.stream import Stream

if TYPE_CHECKING:
    from fairlead.schedule.plan import ClaimPlan
    from fairlead.schedule.throttle import Bucket
    from fairlead.store.kv.port import Table

#: Why a message moved alone.
Move = Literal["released", "returned", "retried", "delayed", "due", "held", "buried", "redriven", "completed"]
#: Why a message is gone without having been completed.
End = Literal["expired", "dropped", "completed"]
#: What caused the move or the end, if no caller asked for it; "" if one did.
Cause = Literal["", "lease_expiry", "retention", "kept_long_enough", "purge", "redrive"]

#: Rules by which a message dies without a failed try.
_DIED_UNFAILED = ("operator", "ttl", "max_deliveries")


class QueueStored(msgspec.Struct, frozen=True):
    """A queue is new, or has a new record."""

    record: QueueRecord


class QueueDeleted(msgspec.Struct, frozen=True):
    """A queue and its dead-letter queue were deleted, with their messages.

    `last_queue_id` is the highest id that a queue ever had, because ids are not reused. At open, `queue_id`
    is 0.
    """

    queue_id: int
    last_queue_id: int


class ChunkEnqueued(msgspec.Struct, frozen=True, gc=False):
    """A new chunk. `own` has the states of messages that begin with rows of their own because they wait or
    are dead. At open, `ready` names the messages that are implied and not leased; None, for a new chunk,
    means all implied ones.

    Once the transaction is written, the chunk also has the messages of `ChunkGrown`. Observers count all of
    it here.
    """

    chunk: Chunk
    own: dict[int, OwnState] = {}
    ready: Sequence[int] | None = None
    #: Published messages that are gone from the start, because other messages have their dedup keys.
    duplicates: int = 0


class ScatteredEnqueued(msgspec.Struct, frozen=True):
    """New messages behind a backlog, each in a cold chunk of its own.

    None of them has a stream, an end of life or a state of its own. Memory does not hold them, so the columns
    of the batch are enough until their heads are written.
    """

    queue_id: int
    #: The number of each message, which is the first one of a block.
    numbers: range
    enqueued_ms: int
    #: The time in their ids.
    id_ms: int
    columns: Columns
    payloads: Sequence[bytes]

    def by_commit(self) -> Iterator[tuple[bytes, range]]:
        """For each commit, the first half of the ids of its messages, and their numbers."""
        numbers = self.numbers
        for commit in range(numbers[0] >> COMMIT_SHIFT, (numbers[-1] >> COMMIT_SHIFT) + 1):
            start = max(numbers.start, commit << COMMIT_SHIFT)
            end = min(numbers.stop, commit + 1 << COMMIT_SHIFT)
            yield id_prefix(self.id_ms, commit), range(start, end, numbers.step)

    def heads(self) -> Iterator[tuple[Head, bytes]]:
        """The head and the payload of each message."""
        prefixes = [prefix for prefix, numbers in self.by_commit() for _ in numbers]
        messages = zip(self.numbers, prefixes, self.columns.one_by_one(), self.payloads, strict=True)
        for number, prefix, columns, payload in messages:
            inline = [payload] if len(payload) <= PAGE_BYTES else None
            yield Head(number, prefix, self.enqueued_ms, columns, inline, 0, True), payload

    def chunks(self) -> Iterator[Chunk]:
        """The chunks as memory would hold them."""
        for head, payload in self.heads():
            chunk = Chunk.of(self.queue_id, head, [payload])
            chunk.is_cold = True
            yield chunk


class ChunkGrown(msgspec.Struct, frozen=True):
    """Messages joined a chunk that is new in the same transaction, as `Chunk.grow` adds them. `own` has the
    states of those that wait.
    """

    chunk: Chunk
    columns: Columns
    payloads: Sequence[bytes]
    own: dict[int, OwnState] = {}


class ChunkDemoted(msgspec.Struct, frozen=True):
    """A hot chunk with implied messages became cold, so that memory need not hold them. None of its messages
    is leased, and no hot message of its lanes and streams comes after them.
    """

    chunk: Chunk


class ChunkThinned(msgspec.Struct, frozen=True):
    """A chunk was rewritten without the space of messages that are gone: `after` replaces `before`, with the
    same numbers and states.
    """

    before: Chunk
    after: Chunk


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """Messages were leased. `plan` is the scheduler's plan; None at open, where leased messages were never
    scheduled.
    """

    lease: GroupLease
    numbers: Sequence[int]
    plan: ClaimPlan | None


class LeaseCompleted(msgspec.Struct, frozen=True, gc=False):
    """Members of a lease were completed and are gone."""

    lease: GroupLease
    numbers: Sequence[int]


class LeaseSplit(msgspec.Struct, frozen=True):
    """Members of `before` continue under `after`: the same claim with another expiry, or started."""

    before: GroupLease
    after: GroupLease
    numbers: Sequence[int]


class MessageMoved(msgspec.Struct, frozen=True):
    """A message changed alone: from now on it has a row of its own. Its body stays in its chunk.

    `why` is None at open. `claim_id` is the claim that held it until now; 0 if none did.
    """

    number: int
    state: OwnState
    why: Move | None
    claim_id: int = 0
    cause: Cause = ""

    @property
    def ends_failed_try(self) -> bool:
        """Whether the move follows a failure: another try, now or later, or death."""
        if self.why == "buried":
            return self.state.rule not in _DIED_UNFAILED
        return self.why in ("retried", "delayed")


class MessagesMoved(msgspec.Struct, frozen=True):
    """Messages of one queue moved in this order, each as in `MessageMoved`: their waits ended, or all of them
    failed under `lease` and get another try. Places at the tail are in the order of the messages.
    """

    queue_id: int
    numbers: Sequence[int]
    states: Sequence[OwnState]
    why: Literal["due", "retried", "delayed"]
    lease: GroupLease | None = None

    def one_by_one(self) -> Iterator[MessageMoved]:
        claim_id = 0 if self.lease is None else self.lease.terms.claim_id
        for number, state in zip(self.numbers, self.states, strict=True):
            yield MessageMoved(number, state, self.why, claim_id)


class MessageRestated(msgspec.Struct, frozen=True):
    """The state of a message changed, but not its place."""

    number: int
    state: OwnState


class MessageGone(msgspec.Struct, frozen=True):
    """A message ended, whatever its state. `queue_id` is the queue that it was in, `claim_id` the claim that
    held it; 0 if none did.
    """

    number: int
    why: End
    queue_id: int
    claim_id: int = 0
    cause: Cause = ""


class PassAllowed(msgspec.Struct, frozen=True):
    """Messages of a stream may pass earlier ones that wait; and all messages after a seq may, unless it is 0."""

    queue_id: int
    stream: str
    numbers: Sequence[int]
    all_after: int


class KeysRemembered(msgspec.Struct, frozen=True):
    """Dedup keys of a queue stand for these messages."""

    queue_id: int
    rows: dict[str, DedupRow]


class KeysForgotten(msgspec.Struct, frozen=True):
    """Dedup keys of a queue no longer stand for a message."""

    queue_id: int
    keys: Sequence[str]


class WindowsEnded(msgspec.Struct, frozen=True):
    """Windows of dedup keys ended: (their end, key). `next_ms` is when the next window may end; 0 if there is
    none. At open, `ended` is empty.
    """

    queue_id: int
    ended: Sequence[tuple[int, str]]
    next_ms: int


class CountsRead(msgspec.Struct, frozen=True):
    """At open: the counts of a queue. The facts that follow do not count."""

    queue_id: int
    counts: Counts


class DoneRead(msgspec.Struct, frozen=True):
    """Retained completed messages of a queue were read. `first_ms` is when the first one was completed; 0 if
    the queue retains none.
    """

    queue_id: int
    first_ms: int


class DueRead(msgspec.Struct, frozen=True):
    """Waiting messages were read. `next_ms` is when the next wait may end; 0 if no message waits."""

    queue_id: int
    next_ms: int


class LivesEnded(msgspec.Struct, frozen=True):
    """Lives ended: (end, first number of the chunk). `next_ms` is when the next lives may end; 0 if there are
    none. At open, `ended` is empty.
    """

    queue_id: int
    ended: Sequence[tuple[int, int]]
    next_ms: int


class ChunksRead(msgspec.Struct, frozen=True):
    """Cold chunks were read into memory, where they stay while there is room."""

    chunks: Sequence[Chunk]


class StatesRead(msgspec.Struct, frozen=True):
    """States of messages were read into memory, where they stay until the transaction ends."""

    states: dict[int, OwnState]


class LaneFound(msgspec.Struct, frozen=True):
    """At open: the messages of a lane among those of hot chunks. The lane continues on disk at `cold_from`;
    0: it does not. `weight` is that of its last message; 0 if that one is in a hot chunk.
    """

    queue_id: int
    lane: LaneName
    weight: int
    numbers: Sequence[int]
    cold_from: int


class LaneRead(msgspec.Struct, frozen=True):
    """The next messages of a lane were read into memory. It continues on disk at `cold_from`; 0: it does not."""

    queue_id: int
    lane: LaneName
    numbers: Sequence[int]
    cold_from: int


class StreamRead(msgspec.Struct, frozen=True):
    """The next messages of a stream were read into memory. It continues on disk at the seq `cold_from`; 0: it
    does not.
    """

    queue_id: int
    stream: Stream
    numbers: Sequence[int]
    cold_from: int


class ConfigChanged(msgspec.Struct, frozen=True):
    """Keys of the runtime configuration got these values; None: the key was deleted."""

    entries: dict[str, str | None]


class BucketChanged(msgspec.Struct, frozen=True):
    """A throttle was configured, or its configuration was deleted: then its bucket is idle, and its tokens
    count if it is configured again. None: the idle bucket was forgotten.
    """

    throttle_key: str
    bucket: Bucket | None
    is_idle: bool
    at_ms: int


class RecordsChanged(msgspec.Struct, frozen=True):
    """Records of a table beside the messages, such as API keys, changed, by their keys in the table; None:
    the record was deleted.
    """

    table: Table
    records: dict[bytes, Any]


class AnswerRemembered(msgspec.Struct, frozen=True):
    """A request of a session took a row of the session, in place of requests whose answers have arrived.

    `arrived`: the numbers of those requests; `emptied`: their rows, without the one that was taken.
    """

    session: bytes
    row: int
    record: RememberedAnswer
    arrived: Sequence[int] = ()
    emptied: Sequence[int] = ()


class PagesStaged(msgspec.Struct, frozen=True):
    """Payloads of staged messages were stored in pages under this number, from one page on; None: all of its
    pages were deleted.
    """

    queue_id: int
    number: int
    pages: Sequence[Sequence[bytes]] | None
    first_page: int = 0


StateFact = (
    QueueStored
    | QueueDeleted
    | ConfigChanged
    | BucketChanged
    | ChunkEnqueued
    | ScatteredEnqueued
    | ChunkGrown
    | ChunkDemoted
    | ChunkThinned
    | Claimed
    | LeaseCompleted
    | LeaseSplit
    | MessageMoved
    | MessagesMoved
    | MessageRestated
    | MessageGone
    | PassAllowed
    | KeysRemembered
    | KeysForgotten
    | WindowsEnded
    | LivesEnded
    | RecordsChanged
    | AnswerRemembered
    | PagesStaged
)
#: Memory learned more of what is stored, and nothing changed: such a fact is not written.
ReadFact = CountsRead | DoneRead | DueRead | ChunksRead | StatesRead | LaneFound | LaneRead | StreamRead
