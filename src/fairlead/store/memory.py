"""The port in memory, for tests: written apart from RocksDB's key layout, and stricter about nonsense.

A fact that does not fit what is stored (a lease on a message that is not ready, a move from where it is not)
raises `BrokenInvariant`, where a disk store would not pay for the read that finds out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fairlead.errors import BrokenInvariant, BrokerClosed, InvalidRequest
from fairlead.model import facts as f
from fairlead.model.access import AuditRecord, KeyRecord
from fairlead.model.clock_mark import BucketLevel, ClockMark
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.lane import DEAD_LETTER_LANE, Flag, move_row, row_flags, row_id, row_place, row_size
from fairlead.model.lease import Claim, Lease
from fairlead.model.message import HELD, Message, MessageState
from fairlead.model.names import Scoped
from fairlead.model.queue import Counters, QueueRecord
from fairlead.model.staging import Published, Publishing, StagedChunk
from fairlead.model.stream import StreamRecord, StreamRow
from fairlead.store.port import NO_EPOCHS

_MISSING: Any = object()


class MemoryStore:
    """Lives as long as the process; `reopen` is its restart, and nothing committed is ever lost."""

    def __init__(self) -> None:
        self._data = _Data()
        self._boot = 1
        self._closed = False

    def reopen(self) -> MemoryStore:
        """What opening the directory again is to a store on disk: the same data, the next boot. This object
        is closed.
        """
        self._closed = True
        again = MemoryStore()
        again._data = self._data
        again._boot = self._boot + 1
        return again

    @property
    def boot(self) -> int:
        return self._boot

    @property
    def last_commit(self) -> int:
        return self._data.last_commit

    @property
    def last_queue_id(self) -> int:
        return self._data.last_queue_id

    def acquire(self, queue_id: int) -> int:
        return self._boot

    def commit(self, facts: Sequence[f.Fact], epochs: Mapping[int, int] = NO_EPOCHS) -> int:
        data = self._data
        if self._closed:
            raise BrokerClosed
        try:
            for fact in facts:
                apply(data, fact)
            for queue_id in data.counted:
                counters = data.counters.rows.get(queue_id)
                if (
                    counters is not None
                    and min(counters.ready, counters.waiting, counters.leased, counters.done, counters.bytes)
                    < 0
                ):
                    raise BrokenInvariant(
                        f"expected the counters of queue id {queue_id} to stay at 0 or above, got {counters}"
                    )
        except BaseException:
            data.roll_back()
            raise
        data.keep()
        return data.last_commit

    def sync(self, commit: int) -> None:
        if self._closed:
            raise BrokerClosed

    def room(self, *, in_reserve: bool = False) -> int:
        return 1 << 62

    def check_room(self, incoming_bytes: int, *, in_reserve: bool = False) -> None:
        pass

    def checkpoint(self, path: Path) -> None:
        raise InvalidRequest("store", "one on disk to take a checkpoint of", "a MemoryStore")

    def close(self) -> None:
        self._closed = True

    def queues(self) -> list[QueueRecord]:
        return self._data.queues.values()

    def counters(self, queue_id: int) -> Counters:
        counters: Counters = self._data.counters.rows.get(queue_id, Counters())
        return counters

    def config(self, prefix: str = "") -> dict[str, str]:
        rows = self._data.config.rows
        return {key: rows[key] for key in self._data.config.order if key.startswith(prefix)}

    def clock_mark(self) -> ClockMark | None:
        mark: ClockMark | None = self._data.clock.rows.get("mark")
        return mark

    def bucket_levels(self) -> list[BucketLevel]:
        return self._data.buckets.values()

    def intents(self) -> list[f.Intent]:
        return self._data.intents.values()

    def api_keys(self) -> list[KeyRecord]:
        return self._data.keys.values()

    def audit(self, after: int, limit: int) -> list[AuditRecord]:
        return [record for _, record in self._data.audit.between(after + 1, 1 << 62, limit)]

    def last_audit(self) -> int:
        order = self._data.audit.order
        return order[-1] if order else 0

    def runbooks(self) -> dict[str, str]:
        rows = self._data.runbooks.rows
        return {project: rows[project] for project in self._data.runbooks.order}

    def consumers(self) -> list[ConsumerRecord]:
        return self._data.consumers.values()

    def claim_members(self, consumer: Scoped, number: int) -> list[bytes]:
        pages = [
            ids for _, ids in self._data.claim_members.between((consumer, number), (consumer, number + 1))
        ]
        return [ids[at : at + 16] for ids in pages for at in range(0, len(ids), 16)]

    def claim_outcomes(
        self, consumer: Scoped, number: int, start: int, limit: int
    ) -> list[tuple[str, bytes]]:
        return [
            said
            for _, said in self._data.claim_outcomes.between(
                (consumer, number, start), (consumer, number + 1), limit
            )
        ]

    def claim_choice(self, consumer: Scoped, number: int) -> tuple[str, ...]:
        chosen: tuple[str, ...] = self._data.claim_choices.rows.get((consumer, number), ())
        return chosen

    def lanes(self, queue_id: int) -> Iterator[tuple[bytes, bytes, bytes]]:
        first: dict[bytes, bytes] = {}
        last: dict[bytes, bytes] = {}
        for (_, lane, _), row in self._data.ready.between((queue_id,), (queue_id + 1,)):
            first.setdefault(lane, row)
            last[lane] = row
        yield from [(lane, first[lane], last[lane]) for lane in first]

    def rows_after(self, queue_id: int, lane: bytes, place: int, limit: int) -> list[bytes]:
        return [
            row
            for _, row in self._data.ready.between(
                (queue_id, lane, place + 1), (queue_id, lane, 1 << 64), limit
            )
        ]

    def ready(
        self, queue_id: int, lane_prefix: bytes, after: f.InReady | None, limit: int
    ) -> list[f.InReady]:
        start: tuple[Any, ...] = (queue_id, lane_prefix)
        if after is not None:
            start = max(start, (queue_id, after.lane, row_place(after.row) + 1))
        found: list[f.InReady] = []
        for (_, lane, _), row in self._data.ready.between(start, (queue_id + 1,)):
            if not lane.startswith(lane_prefix) or len(found) == limit:
                break
            found.append(f.InReady(queue_id, lane, row))
        return found

    def waiting(self, queue_id: int, after: f.InWaiting | None, limit: int) -> list[f.InWaiting]:
        start: tuple[Any, ...] = (
            (queue_id,) if after is None else (queue_id, after.due_ms, row_id(after.row) + b"\0")
        )
        return [spot for _, spot in self._data.waiting.between(start, (queue_id + 1,), limit)]

    def due(self, queue_id: int, until_ms: int, limit: int) -> list[f.InWaiting]:
        return [
            spot
            for _, spot in self._data.waiting.between((queue_id,), (queue_id, min(until_ms + 1, HELD)), limit)
        ]

    def next_due(self, queue_id: int) -> int | None:
        head = self._data.waiting.between((queue_id,), (queue_id, HELD), 1)
        return head[0][0][1] if head else None

    def expired(self, queue_id: int, until_ms: int, limit: int) -> list[tuple[int, bytes]]:
        return [
            (expires_ms, id)
            for (_, expires_ms, id), _ in self._data.ttl.between((queue_id,), (queue_id, until_ms + 1), limit)
        ]

    def next_expiry(self, queue_id: int) -> int | None:
        head = self._data.ttl.between((queue_id,), (queue_id + 1,), 1)
        return head[0][0][1] if head else None

    def dedup(self, queue_id: int, keys: Sequence[str]) -> list[tuple[bytes, int] | None]:
        return [self._data.dedup.rows.get((queue_id, key)) for key in keys]

    def dedup_over(self, queue_id: int, until_ms: int, limit: int) -> list[tuple[int, str, int]]:
        return [
            (queue_id, key, ended)
            for (_, ended, key), _ in self._data.dedup_end.between(
                (queue_id,), (queue_id, until_ms + 1), limit
            )
        ]

    def next_dedup_end(self, queue_id: int) -> int | None:
        head = self._data.dedup_end.between((queue_id,), (queue_id + 1,), 1)
        return head[0][0][1] if head else None

    def last_due(self, queue_id: int) -> int | None:
        rows = self._data.waiting.between((queue_id,), (queue_id, HELD))
        return rows[-1][0][1] if rows else None

    def done(self, queue_id: int, after: f.InDone | None, until_ms: int, limit: int) -> list[f.InDone]:
        start: tuple[Any, ...] = (
            (queue_id,) if after is None else (queue_id, after.done_ms, row_id(after.row) + b"\0")
        )
        return [spot for _, spot in self._data.done.between(start, (queue_id, until_ms + 1), limit)]

    def next_done(self, queue_id: int) -> int | None:
        head = self._data.done.between((queue_id,), (queue_id + 1,), 1)
        return head[0][0][1] if head else None

    def request(self, request_id: bytes) -> bytes | None:
        outcome: bytes | None = self._data.requests.rows.get(request_id)
        return outcome

    def requests_before(self, request_id: bytes, limit: int) -> list[bytes]:
        order = self._data.requests.order
        return order[: bisect_left(order, request_id)][:limit]

    def streams(self, queue_id: int, names: Sequence[str]) -> list[StreamRecord | None]:
        return [self._data.streams.rows.get((queue_id, name)) for name in names]

    def streams_after(self, queue_id: int, name: str, limit: int) -> list[tuple[str, StreamRecord]]:
        start = (queue_id, name + "\0") if name else (queue_id,)
        return [
            (stream, record)
            for (_, stream), record in self._data.streams.between(start, (queue_id + 1,), limit)
        ]

    def stream_rows(self, queue_id: int, name: str, after_seq: int, limit: int) -> list[StreamRow]:
        return [
            row
            for _, row in self._data.stream_rows.between(
                (queue_id, name, after_seq + 1), (queue_id, name, 1 << 64), limit
            )
        ]

    def messages(self, ids: Sequence[bytes]) -> list[Message | None]:
        return [self._data.messages.rows.get(id) for id in ids]

    def states(self, ids: Sequence[bytes]) -> list[MessageState | None]:
        return [self._data.states.rows.get(id) for id in ids]

    def ids_between(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        order = self._data.messages.order
        return order[bisect_left(order, low) : bisect_right(order, high)][:limit]

    def messages_from(
        self, queue_id: int, low: bytes, high: bytes, limit: int, max_bytes: int
    ) -> tuple[list[Message], bytes]:
        order = self._data.messages.order
        found: list[Message] = []
        size = 0
        for message in self.messages(order[bisect_left(order, low) : bisect_left(order, high)]):
            if message is not None and message.queue_id == queue_id:
                found.append(message)
                size += message.size
                if len(found) >= limit or size >= max_bytes:
                    return found, message.id + b"\0"
        return found, high

    def staged_chunks(self) -> list[StagedChunk]:
        return self._data.staged_chunks.values()

    def staged_body(self, write: Scoped, chunk: str) -> bytes | None:
        body: bytes | None = self._data.staged.rows.get((write, chunk))
        return body

    def publishing(self) -> list[Publishing]:
        return self._data.publishing.values()

    def published(self, write: Scoped) -> Published | None:
        record: Published | None = self._data.published.rows.get(write)
        return record

    def last_published(self, limit: int, before: tuple[int, Scoped] | None = None) -> list[Published]:
        order = self._data.published_end.order
        end = len(order) if before is None else bisect_left(order, before)
        return [self._data.published.rows[write] for _, write in reversed(order[max(0, end - limit) : end])]

    def published_over(self, until_ms: int, limit: int) -> list[tuple[int, Scoped]]:
        return [row for row, _ in self._data.published_end.between((0,), (until_ms + 1,), limit)]

    def next_published_end(self) -> int | None:
        order = self._data.published_end.order
        return order[0][0] if order else None

    def leases(self) -> list[Lease]:
        return [_forget_process(lease) for lease in self._data.leases.values()]

    def claims(self) -> list[tuple[int, Claim]]:
        return [(expires_ms, claim) for (expires_ms, _), claim in self._data.claims.between((0,), (1 << 64,))]


class _Table:
    """A sorted mapping that writes down, in a shared journal, how to undo each change."""

    def __init__(self, name: str, journal: list[tuple[_Table, Any, Any]]) -> None:
        self.name = name
        self.rows: dict[Any, Any] = {}
        self.order: list[Any] = []
        self._journal = journal

    def put(self, key: Any, value: Any) -> None:
        self._journal.append((self, key, self.rows.get(key, _MISSING)))
        self._set(key, value)

    def add(self, key: Any, value: Any) -> None:
        if key in self.rows:
            raise BrokenInvariant(f"expected {self.name} {key!r} to be new")
        self.put(key, value)

    def remove(self, key: Any) -> None:
        if key not in self.rows:
            raise BrokenInvariant(f"expected {self.name} {key!r} to be stored")
        self.discard(key)

    def discard(self, key: Any) -> None:
        if key in self.rows:
            self._journal.append((self, key, self.rows[key]))
            self._set(key, _MISSING)

    def between(self, low: Any, high: Any, limit: int = 1 << 62) -> list[tuple[Any, Any]]:
        start, end = bisect_left(self.order, low), bisect_left(self.order, high)
        return [(key, self.rows[key]) for key in self.order[start : min(end, start + limit)]]

    def values(self) -> list[Any]:
        return [self.rows[key] for key in self.order]

    def _set(self, key: Any, value: Any) -> None:
        if value is _MISSING:
            del self.rows[key]
            del self.order[bisect_left(self.order, key)]
        else:
            if key not in self.rows:
                insort(self.order, key)
            self.rows[key] = value


class _Data:
    """Tables by their sort key: ready (queue, lane, place), waiting (queue, due, id), claims (expires,
    claim), ...
    """

    def __init__(self) -> None:
        self._journal: list[tuple[_Table, Any, Any]] = []
        self.counted: set[int] = set()
        self.last_commit = 0
        self.last_queue_id = 0
        for name in self.__annotations__:
            setattr(self, name, _Table(name, self._journal))

    messages: _Table
    states: _Table
    ready: _Table
    waiting: _Table
    leases: _Table
    claims: _Table
    done: _Table
    ttl: _Table
    dedup: _Table
    dedup_end: _Table
    streams: _Table
    stream_rows: _Table
    queues: _Table
    counters: _Table
    requests: _Table
    config: _Table
    clock: _Table
    buckets: _Table
    intents: _Table
    keys: _Table
    audit: _Table
    runbooks: _Table
    staged: _Table
    staged_chunks: _Table
    publishing: _Table
    published: _Table
    published_end: _Table
    consumers: _Table
    claim_members: _Table
    claim_outcomes: _Table
    claim_choices: _Table

    def count(self, queue_id: int, **change: int) -> None:
        counters = self.counters.rows.get(queue_id)
        if counters is None:
            raise BrokenInvariant(f"expected queue id {queue_id} to exist")
        self.counters.put(
            queue_id,
            msgspec.structs.replace(
                counters, **{name: getattr(counters, name) + by for name, by in change.items()}
            ),
        )
        self.counted.add(queue_id)

    def keep(self) -> None:
        self._journal.clear()
        self.counted.clear()
        self.last_commit += 1
        self.last_queue_id = max([self.last_queue_id, *self.queues.order[-1:]])

    def roll_back(self) -> None:
        for table, key, old in reversed(self._journal):
            table._set(key, old)
        self._journal.clear()
        self.counted.clear()


def apply(data: _Data, fact: f.Fact) -> None:
    match fact:
        case f.Enqueued(queue_id, messages, _):
            for message in messages:
                data.messages.add(message.id, message)
                _enter(data, _first_spot(fact, message))
                _remember_dedup(data, queue_id, message)
                if message.expires_ms:
                    data.ttl.add((queue_id, message.expires_ms, message.id), None)
        case f.Quarantined(queue_id, messages, states):
            for message, state in zip(messages, states, strict=True):
                data.messages.add(message.id, message)
                data.states.add(message.id, state)
                _enter(
                    data,
                    f.InReady(
                        queue_id, DEAD_LETTER_LANE, message.row(state.place, message.flags | Flag.STATE)
                    ),
                )
        case f.Leased(claim, leases, followers):
            data.claims.put(((leases or followers)[0].expires_ms, claim.claim_id), claim)
            for lease in leases:
                _leave(data, f.InReady(lease.queue_id, lease.lane, lease.row))
                _enter(data, f.InLease(lease))
            for lease in followers:
                _leave(data, f.InStream(lease.queue_id, lease.lane, lease.row))
                _enter(data, f.InLease(lease))
        case f.Completed(leases, live_dedup):
            for lease in leases:
                _leave(data, f.InLease(lease))
                _forget(data, lease.id, row_flags(lease.row))
            for owner in live_dedup:
                data.dedup.remove(owner)
        case f.Moved():
            _move(data, fact)
        case f.Restated(lease, state):
            data.states.put(lease.id, state)
            _rewrite(data, lease)
        case f.Recounted(message_id, state):
            data.states.put(message_id, state)
        case f.Extended(claim, leases):
            data.claims.put((leases[0].expires_ms, claim.claim_id), claim)
            for lease in leases:
                _rewrite(data, lease)
        case f.Started(leases):
            for lease in leases:
                _rewrite(data, lease)
        case f.ClaimEnded(expires_ms, claim_id):
            data.claims.remove((expires_ms, claim_id))
        case f.StreamSaved(queue_id, stream, record):
            data.streams.put((queue_id, stream), record)
        case f.StreamEnded(queue_id, stream):
            data.streams.remove((queue_id, stream))
        case f.StreamJoined(queue_id, stream, row):
            data.stream_rows.add((queue_id, stream, row.seq), row)
        case f.StreamLeft(queue_id, stream, seq):
            data.stream_rows.remove((queue_id, stream, seq))
        case f.QueueSaved(record):
            data.queues.put(record.queue_id, record)
            if record.queue_id not in data.counters.rows:
                data.counters.put(record.queue_id, Counters())
        case f.QueueUnlinked(queue_id):
            if queue_id not in data.queues.rows:
                raise BrokenInvariant(f"expected queue id {queue_id} to exist")
            data.queues.put(queue_id, msgspec.structs.replace(data.queues.rows[queue_id], name=""))
        case f.QueueCleared(queue_id):
            data.queues.remove(queue_id)
            data.counters.remove(queue_id)
            for table in (data.dedup, data.dedup_end):
                for key, _ in table.between((queue_id,), (queue_id + 1,)):
                    table.remove(key)
        case f.RequestRemembered(request_id, outcome):
            data.requests.add(request_id, outcome)
        case f.RequestsForgotten(request_ids):
            for request_id in request_ids:
                data.requests.discard(request_id)
        case f.ConfigSet(key, value):
            data.config.put(key, value)
        case f.ConfigDeleted(key):
            data.config.discard(key)
        case f.ClockMarked(mark):
            data.clock.put("mark", mark)
        case f.BucketsSaved(levels, forgotten):
            for level in levels:
                data.buckets.put(level.key, level)
            for key in forgotten:
                data.buckets.discard(key)
        case f.KeySaved(record):
            data.keys.put(record.key_id, record)
        case f.KeyDropped(key_id):
            data.keys.discard(key_id)
        case f.AuditSaved(record):
            data.audit.put(record.number, record)
        case f.AuditForgotten(below):
            for number, _ in data.audit.between(0, below):
                data.audit.remove(number)
        case f.RunbookSaved(project, text):
            data.runbooks.put(project, text)
        case f.ConsumerSaved(record):
            data.consumers.put(record.key, record)
        case f.ConsumerDropped(consumer):
            data.consumers.remove(consumer)
        case f.MembersPinned(consumer, number, page, ids):
            data.claim_members.add((consumer, number, page), ids)
        case f.OutcomesRecorded(consumer, number, at, part, outcomes):
            data.claim_outcomes.add((consumer, number, at), (part, outcomes))
        case f.PartsChosen(consumer, number, parts):
            data.claim_choices.put((consumer, number), parts)
        case f.NumberedClaimForgotten(consumer, number, pages, calls):
            for page in range(pages):
                data.claim_members.remove((consumer, number, page))
            for at in range(calls):
                data.claim_outcomes.remove((consumer, number, at))
            data.claim_choices.discard((consumer, number))
        case f.DedupForgotten(rows):
            for queue_id, key, until_ms in rows:
                data.dedup_end.discard((queue_id, until_ms, key))
                held = data.dedup.rows.get((queue_id, key))
                if held is not None and held[1] == until_ms:
                    data.dedup.remove((queue_id, key))
        case f.TtlForgotten(queue_id, expires_ms, id):
            data.ttl.discard((queue_id, expires_ms, id))
        case f.IntentSaved(intent):
            data.intents.put(intent.intent_id, intent)
        case f.IntentEnded(intent_id):
            data.intents.discard(intent_id)
        case f.ChunkStaged(chunk, body):
            data.staged_chunks.put((chunk.write, chunk.chunk), chunk)
            data.staged.put((chunk.write, chunk.chunk), body)
        case f.ChunksDropped(write, chunks):
            for name in chunks:
                data.staged_chunks.remove((write, name))
                data.staged.remove((write, name))
        case f.PublishSaved(publishing):
            data.publishing.put(publishing.write, publishing)
        case f.PublishEnded(published):
            data.publishing.remove(published.write)
            data.published.add(published.write, published)
            data.published_end.add((published.until_ms, published.write), None)
        case f.PublishesForgotten(ended):
            for until_ms, write in ended:
                data.published_end.remove((until_ms, write))
                data.published.remove(write)
        case _:
            raise TypeError(f"expected a fact, got {fact!r}")


def _first_spot(fact: f.Enqueued, message: Message) -> f.Spot:
    row = message.row(message.place, message.flags)
    if message.due_ms:
        return f.InWaiting(fact.queue_id, message.due_ms, message.lane, row)
    if message.id in fact.behind:
        return f.InStream(fact.queue_id, message.lane, row)
    return f.InReady(fact.queue_id, message.lane, row)


def _move(data: _Data, fact: f.Moved) -> None:
    source, target = fact.source, fact.target
    _leave(data, source)
    if fact.expires_ms:
        life = (f.spot_queue_id(source), fact.expires_ms, fact.id)
        if target is not None and row_flags(f.spot_row(target)) & Flag.TTL:
            data.ttl.put(life, None)
        else:
            data.ttl.discard(life)
    if fact.live_dedup is not None:
        data.dedup.remove(fact.live_dedup)
    if target is None:
        _forget(data, fact.id, row_flags(f.spot_row(source)))
        return
    _enter(data, target)
    if fact.state is not None:
        data.states.put(fact.id, fact.state)


def _remember_dedup(data: _Data, queue_id: int, message: Message) -> None:
    if message.dedup_key:
        until_ms = 0 if message.live_dedup else message.dedup_until_ms
        data.dedup.put((queue_id, message.dedup_key), (message.id, until_ms))
        if until_ms:
            data.dedup_end.put((queue_id, until_ms, message.dedup_key), None)


def _forget(data: _Data, id: bytes, flags: int) -> None:
    data.messages.remove(id)
    if flags & Flag.STATE:
        data.states.remove(id)


def _enter(data: _Data, spot: f.Spot) -> None:
    match spot:
        case f.InReady(queue_id, lane, row):
            data.ready.add((queue_id, lane, row_place(row)), row)
            data.count(queue_id, ready=1, bytes=row_size(row))
        case f.InStream(queue_id, _, row):
            data.count(queue_id, ready=1, bytes=row_size(row))
        case f.InWaiting(queue_id, due_ms, lane, row):
            data.waiting.add(
                (queue_id, due_ms, row_id(row)),
                f.InWaiting(queue_id, due_ms, lane, move_row(row, 0, row_flags(row))),
            )
            data.count(queue_id, waiting=1, bytes=row_size(row))
        case f.InLease(lease):
            data.leases.add(lease.id, _forget_process(lease))
            data.count(lease.queue_id, leased=1, bytes=row_size(lease.row))
        case f.InDone(queue_id, done_ms, _, row):
            data.done.add((queue_id, done_ms, row_id(row)), spot)
            data.count(queue_id, done=1)


def _leave(data: _Data, spot: f.Spot) -> None:
    match spot:
        case f.InReady(queue_id, lane, row):
            data.ready.remove((queue_id, lane, row_place(row)))
            data.count(queue_id, ready=-1, bytes=-row_size(row))
        case f.InStream(queue_id, _, row):
            data.count(queue_id, ready=-1, bytes=-row_size(row))
        case f.InWaiting(queue_id, due_ms, _, row):
            data.waiting.remove((queue_id, due_ms, row_id(row)))
            data.count(queue_id, waiting=-1, bytes=-row_size(row))
        case f.InLease(lease):
            data.leases.remove(lease.id)
            data.count(lease.queue_id, leased=-1, bytes=-row_size(lease.row))
        case f.InDone(queue_id, done_ms, _, row):
            data.done.remove((queue_id, done_ms, row_id(row)))
            data.count(queue_id, done=-1)


def _rewrite(data: _Data, lease: Lease) -> None:
    data.leases.remove(lease.id)
    data.leases.add(lease.id, _forget_process(lease))


def _forget_process(lease: Lease) -> Lease:
    return Lease(
        lease.queue_id,
        lease.lane,
        lease.row,
        lease.claim_id,
        lease.expires_ms,
        lease.deliveries,
        lease.started,
    )
