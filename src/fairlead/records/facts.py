"""What a transaction is made of, in the past tense. `Memory.apply` is the only reducer of facts, and what it
touched becomes rows in `store/rows.py`.

Facts are columnar: one fact is about a whole chunk or a list of numbers, never about one object per message.
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

#: Why a message moved on its own.
Move = Literal["released", "returned", "retried", "delayed", "due", "held", "buried", "redriven", "completed"]
#: Why a message is gone without having been completed.
End = Literal["expired", "dropped", "completed"]
#: What made it move or end, where nobody asked for it; "": somebody did.
Cause = Literal["", "lease_expiry", "retention", "kept_long_enough", "purge", "redrive"]

#: Rules by which a message dies without a failed try.
_DIED_UNFAILED = ("operator", "ttl", "max_deliveries")


class QueueStored(msgspec.Struct, frozen=True):
    """A queue is new, or has a new record."""

    record: QueueRecord


class QueueDeleted(msgspec.Struct, frozen=True):
    """A queue and its dead-letter queue are gone, with their messages. `last_queue_id` is the highest id that a
    queue had, because no id is given twice. At open `queue_id` is 0.
    """

    queue_id: int
    last_queue_id: int


class ChunkEnqueued(msgspec.Struct, frozen=True, gc=False):
    """`own`: the states of messages that begin with rows of their own: they wait, or are dead. At open `ready`
    names the messages that are implied and not leased; None, for a new chunk, means all that are implied.

    Once the transaction is written, the chunk also has what `ChunkGrown` added. Observers count all of it here.
    """

    chunk: Chunk
    own: dict[int, OwnState] = {}
    ready: Sequence[int] | None = None
    #: Published messages that are gone from the start, because others have their dedup keys.
    duplicates: int = 0


class ScatteredEnqueued(msgspec.Struct, frozen=True):
    """New messages behind a backlog, each in a cold chunk of its own. None of them has a stream, an end of its life or a
    state of its own. Memory does not hold them, so the columns of the batch suffice until their heads are written.
    """

    queue_id: int
    #: The number of each message: the first one of a block.
    numbers: range
    enqueued_ms: int
    #: The time in their ids.
    id_ms: int
    columns: Columns
    payloads: Sequence[bytes]

    def by_commit(self) -> Iterator[tuple[bytes, range]]:
        """The first half of the ids, and the numbers, of the messages of each commit."""
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
        """As memory would hold them."""
        for head, payload in self.heads():
            chunk = Chunk.of(self.queue_id, head, [payload])
            chunk.is_cold = True
            yield chunk


class ChunkGrown(msgspec.Struct, frozen=True):
    """Messages join a chunk that is new in the same transaction, as `Chunk.grow` does it. `own`: the states of those
    that wait.
    """

    chunk: Chunk
    columns: Columns
    payloads: Sequence[bytes]
    own: dict[int, OwnState] = {}


class ChunkDemoted(msgspec.Struct, frozen=True):
    """A hot chunk with implied messages is cold from now on: memory need not hold them. None of its messages is leased,
    and no hot message of its lanes and streams stands behind them.
    """

    chunk: Chunk


class ChunkThinned(msgspec.Struct, frozen=True):
    """A chunk is written anew without what messages took that are gone: `after` takes the place of `before`, with the same
    numbers and states.
    """

    before: Chunk
    after: Chunk


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """Messages are leased. `plan` is what the scheduler decided; None at open, where leased messages were
    never scheduled.
    """

    lease: GroupLease
    numbers: Sequence[int]
    plan: ClaimPlan | None


class LeaseCompleted(msgspec.Struct, frozen=True, gc=False):
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
    chunk. `why` is None at open. `claim_id` is the claim that held it until now; 0: none did.
    """

    number: int
    state: OwnState
    why: Move | None
    claim_id: int = 0
    cause: Cause = ""

    @property
    def ends_failed_try(self) -> bool:
        """Whether it follows a failure: another try, now or later, or death."""
        if self.why == "buried":
            return self.state.rule not in _DIED_UNFAILED
        return self.why in ("retried", "delayed")


class MessagesMoved(msgspec.Struct, frozen=True):
    """Messages of one queue move in this order, as `MessageMoved` says it of one: their waits are over, or all of them
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
    """A message stays where it is, and what is known of it changed."""

    number: int
    state: OwnState


class MessageGone(msgspec.Struct, frozen=True):
    """A message ended, wherever it was. `queue_id` is the queue that it was in, `claim_id` the claim that held it;
    0: none did.
    """

    number: int
    why: End
    queue_id: int
    claim_id: int = 0
    cause: Cause = ""


class PassAllowed(msgspec.Struct, frozen=True):
    """Messages of a stream may pass earlier ones that wait; and all after a seq may, unless it is 0."""

    queue_id: int
    stream: str
    numbers: Sequence[int]
    all_after: int


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


class CountsRead(msgspec.Struct, frozen=True):
    """At open: what a queue has. The facts that follow count nothing."""

    queue_id: int
    counts: Counts


class DoneRead(msgspec.Struct, frozen=True):
    """Completed messages that a queue keeps were read. `first_ms` is when the first one was completed; 0: the queue
    keeps none.
    """

    queue_id: int
    first_ms: int


class DueRead(msgspec.Struct, frozen=True):
    """Messages that wait were read. `next_ms` is when the next wait may end; 0: no message waits."""

    queue_id: int
    next_ms: int


class LivesEnded(msgspec.Struct, frozen=True):
    """Lives were ended: (end, first number of the chunk). `next_ms` is when the next ones may end; 0: there are
    none. At open `ended` is empty.
    """

    queue_id: int
    ended: Sequence[tuple[int, int]]
    next_ms: int


class ChunksRead(msgspec.Struct, frozen=True):
    """Cold chunks are in memory, for as long as there is room."""

    chunks: Sequence[Chunk]


class StatesRead(msgspec.Struct, frozen=True):
    """States of messages are in memory, until the transaction ends."""

    states: dict[int, OwnState]


class LaneFound(msgspec.Struct, frozen=True):
    """At open: a lane has these messages among those of hot chunks, and goes on on disk at `cold_from`; 0:
    nowhere. `weight` is that of its last message; 0: a hot chunk has it.
    """

    queue_id: int
    lane: LaneName
    weight: int
    numbers: Sequence[int]
    cold_from: int


class LaneRead(msgspec.Struct, frozen=True):
    """The next messages of a lane are in memory; it goes on on disk at `cold_from`; 0: nowhere."""

    queue_id: int
    lane: LaneName
    numbers: Sequence[int]
    cold_from: int


class StreamRead(msgspec.Struct, frozen=True):
    """The next messages of a stream are in memory; it goes on on disk at the seq `cold_from`; 0: nowhere."""

    queue_id: int
    stream: Stream
    numbers: Sequence[int]
    cold_from: int


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


class RecordsChanged(msgspec.Struct, frozen=True):
    """Records of a table that stand beside the messages, such as API keys, by their keys in the table; None: the
    record is gone.
    """

    table: Table
    records: dict[bytes, Any]


class AnswerRemembered(msgspec.Struct, frozen=True):
    """A request of a session takes a row of the session, in place of those whose answers have arrived.

    `arrived`: their numbers; `emptied`: their rows, without the one that is taken.
    """

    session: bytes
    row: int
    record: RememberedAnswer
    arrived: Sequence[int] = ()
    emptied: Sequence[int] = ()


class PagesStaged(msgspec.Struct, frozen=True):
    """Payloads of staged messages are stored in pages under this number, from one page on; None: all pages are gone."""

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
#: Memory knows more of what is stored, and nothing changed: such a fact is not written.
ReadFact = CountsRead | DoneRead | DueRead | ChunksRead | StatesRead | LaneFound | LaneRead | StreamRead
