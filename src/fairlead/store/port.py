"""The contract every store keeps: it remembers facts and answers questions, and never decides.

Promises of every implementation (tests/conformance checks them):
* `commit` is all or nothing, also across a crash, and numbers its commits 1, 2, 3, ... without gaps in one life.
* After `sync(n)` returned, commit `n` and all before it survive a power cut. Without it they survive a killed process.
* Answers reflect every commit that returned. Counters change in the same commit as the messages they count.
* A failed commit raises and changes nothing that an answer would show.

All calls are made by one thread at a time, except `sync`, `messages`, `messages_from`, `states` and
`staged_body`, which may run beside anything. Rows and lanes are the packed values of `model/lane.py`; to the
store they are opaque, apart from their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fairlead.model.access import AuditRecord, KeyRecord
from fairlead.model.clock_mark import BucketLevel, ClockMark
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.facts import Fact, InDone, InReady, Intent, InWaiting
from fairlead.model.lease import Claim, Lease
from fairlead.model.message import Message, MessageState
from fairlead.model.names import Scoped
from fairlead.model.queue import Counters, QueueRecord
from fairlead.model.staging import Published, Publishing, StagedChunk
from fairlead.model.stream import StreamRecord, StreamRow

NO_EPOCHS: Mapping[int, int] = {}


class Store(Protocol):
    @property
    def boot(self) -> int:
        """How often this data was opened for writing; synced before the first commit of this life."""
        ...

    @property
    def last_commit(self) -> int: ...

    @property
    def last_queue_id(self) -> int:
        """The highest queue id ever saved: ids are never reused."""
        ...

    def acquire(self, queue_id: int) -> int:
        """Become the queue's only broker; returns the epoch that commits claiming or settling in it must
        carry.
        """
        ...

    def commit(self, facts: Sequence[Fact], epochs: Mapping[int, int] = NO_EPOCHS) -> int:
        """Remember all facts or none, and return the commit's number. Raises `StoreFull`, `StoreFailed`,
        `EpochStale`.
        """
        ...

    def sync(self, commit: int) -> None:
        """Return once the commit would survive a power cut; concurrent callers share one sync. Raises
        `StoreFailed`.
        """
        ...

    def room(self, *, in_reserve: bool = False) -> int:
        """How many bytes may still be stored above the reserve, 0 or less when it has begun to be used.

        `in_reserve`: above the floor of the reserve, which is left to requests that free space.
        """
        ...

    def check_room(self, incoming_bytes: int, *, in_reserve: bool = False) -> None:
        """Raise `StoreFull` when there is no `room` for so much more."""
        ...

    def checkpoint(self, path: Path) -> None:
        """A consistent copy of everything committed, at a path that does not exist yet."""
        ...

    def close(self) -> None: ...

    # Queues, configuration, time, intents

    def queues(self) -> list[QueueRecord]:
        """Every queue that is not cleared yet; an unlinked one has the empty name."""
        ...

    def counters(self, queue_id: int) -> Counters: ...

    def config(self, prefix: str = "") -> dict[str, str]:
        """In key order."""
        ...

    def clock_mark(self) -> ClockMark | None:
        """The last one committed."""
        ...

    def bucket_levels(self) -> list[BucketLevel]:
        """In order of their keys."""
        ...

    def intents(self) -> list[Intent]:
        """In order of `intent_id`."""
        ...

    # Keys, audit, runbooks

    def api_keys(self) -> list[KeyRecord]:
        """In order of `key_id`."""
        ...

    def audit(self, after: int, limit: int) -> list[AuditRecord]:
        """Entries with a greater number, in order."""
        ...

    def last_audit(self) -> int:
        """The greatest number, 0 when there is no entry."""
        ...

    def runbooks(self) -> dict[str, str]:
        """Texts by project, in order of the projects."""
        ...

    # Consumers

    def consumers(self) -> list[ConsumerRecord]:
        """In order of their queues and names."""
        ...

    def claim_members(self, consumer: Scoped, number: int) -> list[bytes]:
        """The ids of a numbered claim that is not over, in its order."""
        ...

    def claim_outcomes(
        self, consumer: Scoped, number: int, start: int, limit: int
    ) -> list[tuple[str, bytes]]:
        """(part, outcomes) of the calls from that one on, in their order."""
        ...

    def claim_choice(self, consumer: Scoped, number: int) -> tuple[str, ...]: ...

    # Ready messages

    def lanes(self, queue_id: int) -> Iterator[tuple[bytes, bytes, bytes]]:
        """(lane, first row, last row) of every lane with ready messages, by skipping from lane to lane, never
        walking rows.
        """
        ...

    def rows_after(self, queue_id: int, lane: bytes, place: int, limit: int) -> list[bytes]:
        """The lane's rows with a place greater than `place`, in order. Walks over no removed row at or below
        `place`.
        """
        ...

    def ready(self, queue_id: int, lane_prefix: bytes, after: InReady | None, limit: int) -> list[InReady]:
        """Ready messages in (lane, place) order, of the lanes whose id begins with the prefix, after a given
        one.
        """
        ...

    # Waiting, time to live, dedup

    def waiting(self, queue_id: int, after: InWaiting | None, limit: int) -> list[InWaiting]:
        """Waiting messages in (due, id) order, after a given one. Held ones come last."""
        ...

    def due(self, queue_id: int, until_ms: int, limit: int) -> list[InWaiting]:
        """Waiting messages due at or before that instant, in (due, id) order. Never held ones."""
        ...

    def next_due(self, queue_id: int) -> int | None:
        """The earliest due time of the queue; None when nothing waits, or all that waits is held."""
        ...

    def expired(self, queue_id: int, until_ms: int, limit: int) -> list[tuple[int, bytes]]:
        """(expires_ms, id) whose time to live ends at or before that instant, in order."""
        ...

    def next_expiry(self, queue_id: int) -> int | None: ...

    def dedup(self, queue_id: int, keys: Sequence[str]) -> list[tuple[bytes, int] | None]:
        """Per key the (message id, until_ms) remembered for it; until_ms 0 is a live one."""
        ...

    def dedup_over(self, queue_id: int, until_ms: int, limit: int) -> list[tuple[int, str, int]]:
        """(queue_id, dedup key, until_ms) of windows that ended at or before that instant, in order of their
        end.
        """
        ...

    def next_dedup_end(self, queue_id: int) -> int | None: ...

    def last_due(self, queue_id: int) -> int | None:
        """The latest due time of the queue; None as for `next_due`."""
        ...

    # Done

    def done(self, queue_id: int, after: InDone | None, until_ms: int, limit: int) -> list[InDone]:
        """Completed messages that are kept, done at or before that instant, in (done, id) order, after a
        given one.
        """
        ...

    def next_done(self, queue_id: int) -> int | None:
        """When the first of them was done."""
        ...

    # Requests

    def request(self, request_id: bytes) -> bytes | None:
        """The outcome remembered for it."""
        ...

    def requests_before(self, request_id: bytes, limit: int) -> list[bytes]:
        """Remembered ids that sort before this one, in order."""
        ...

    # Streams

    def streams(self, queue_id: int, names: Sequence[str]) -> list[StreamRecord | None]: ...

    def streams_after(self, queue_id: int, name: str, limit: int) -> list[tuple[str, StreamRecord]]:
        """Streams with live messages, each once, in an order of the store's own, after the one named ("":
        from the start).
        """
        ...

    def stream_rows(self, queue_id: int, name: str, after_seq: int, limit: int) -> list[StreamRow]:
        """Live messages behind the first one, with a greater seq than the one given, in order."""
        ...

    # Messages and leases

    def messages(self, ids: Sequence[bytes]) -> list[Message | None]: ...

    def states(self, ids: Sequence[bytes]) -> list[MessageState | None]: ...

    def ids_between(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        """Ids of stored messages from `low` to `high`, both included, in order."""
        ...

    def messages_from(
        self, queue_id: int, low: bytes, high: bytes, limit: int, max_bytes: int
    ) -> tuple[list[Message], bytes]:
        """Messages that were enqueued into that queue, wherever they are, with ids from `low` on and before
        `high`, in order.

        At most `limit`, and up to the first with which they have `max_bytes`. Also says where to go on, for a
        call walks over a bounded number of others: at `high` there are no more.
        """
        ...

    # Staged writes

    def staged_chunks(self) -> list[StagedChunk]:
        """Every chunk that is stored, in order of write and name."""
        ...

    def staged_body(self, write: Scoped, chunk: str) -> bytes | None: ...

    def publishing(self) -> list[Publishing]:
        """Writes that were published and are not yet all messages."""
        ...

    def published(self, write: Scoped) -> Published | None:
        """What is remembered of a write that is done."""
        ...

    def last_published(self, limit: int, before: tuple[int, Scoped] | None = None) -> list[Published]:
        """Those remembered longest first; with `before`, those that come behind that one (until_ms, write) in
        this order.
        """
        ...

    def published_over(self, until_ms: int, limit: int) -> list[tuple[int, Scoped]]:
        """(until_ms, write) of writes remembered up to that instant or an earlier one, in order."""
        ...

    def next_published_end(self) -> int | None: ...

    def leases(self) -> list[Lease]:
        """All leases, `deadline_ms` and `consumer` unset."""
        ...

    def claims(self) -> list[tuple[int, Claim]]:
        """(expires_ms, claim) of every group of leases that expires together."""
        ...
