"""The transaction that a verb works in: questions about memory, fresh numbers, and `add(fact)`.

A verb reads and checks first and adds facts last. `add` applies a fact at once, so that later steps of the
same transaction see it; the lock is held until the write, so no other thread does. There is no undo: if the
write fails, or a verb raises after it added a fact, the transaction is lost and the engine loads the touched
queues anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.config import Settings
from fairlead.decide.failure_breaker import BreakerState
from fairlead.decide.retry import HookAnswer
from fairlead.engine.chunk_messages import ChunkMessages
from fairlead.engine.closed_throttles import open_throttle
from fairlead.engine.cold import bring, bring_chunks, read_lane, read_members_of, read_on
from fairlead.engine.growing import GrowingChunk
from fairlead.engine.memory import Memory
from fairlead.engine.queue import Queue
from fairlead.engine.reduce.hot_room import may_grow
from fairlead.engine.reduce.throttles import follow_probes
from fairlead.errors import ExternalQueue, FairleadError, QueueNotFound, Unavailable
from fairlead.model.checks import MessageColumns
from fairlead.model.delivery import Delivery
from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.model.limits import COUNT_LIMIT
from fairlead.model.names import Scoped, check_queue_name, taken_name
from fairlead.records.chunk import Chunk, Columns, LaneName
from fairlead.records.facts import StateFact
from fairlead.records.ids import (
    BLOCK_MASK,
    BLOCK_SHIFT,
    COMMIT_SHIFT,
    MAX_BLOCKS,
    MAX_CLAIMS,
    claim_group,
    find_number,
    id_of,
    id_prefix,
)
from fairlead.records.lease import GroupLease
from fairlead.records.state import DedupRow, OwnState
from fairlead.request import LOCAL, Caller, Request
from fairlead.store.index_rows import read_done, read_due, read_latest_due, read_lives
from fairlead.store.kv.port import KeyValueStore, Table
from fairlead.store.rows import read_dedup, read_records, read_windows, scan_records
from fairlead.store.stream_rows import read_members

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: The work of verbs that are one transaction each.
WorkTable = dict[type[Request[Any]], "Callable[[Transaction, Any], Any]"]
#: The work of verbs that open a transaction for each of their steps.
StepsTable = dict[type[Request[Any]], "Callable[[Engine, Any, Caller], Any]"]


class HookAnswers:
    """Answers of hooks about messages and failures, obtained before a transaction and without the lock."""

    __slots__ = ("failures", "lanes", "messages")

    def __init__(self, failures: dict[tuple[int, int], HookAnswer | None] | None = None) -> None:
        #: By the identity of the request: its messages with the results of `on_enqueue` applied.
        self.messages: dict[int, MessageColumns] = {}
        #: By (number, claim): the answer of `on_failure`; None for a call that failed or was bypassed.
        self.failures = {} if failures is None else failures
        #: By number: the packed lane and the weight of a dead letter that returns.
        self.lanes: dict[int, tuple[bytes, int]] = {}


NO_ANSWERS = HookAnswers()


class StoredAhead(NamedTuple):
    """A large payload that was stored before the transaction of its enqueue, as the only part of a staged write."""

    payload: bytes
    write: Scoped


#: A transaction is full at this number of requests, bytes of enqueued messages, or milliseconds of work. A
#: request may overshoot; `turns.runs_alone` names those that would overshoot by much.
MAX_TURN_REQUESTS = 1000
MAX_TURN_BYTES = 4 << 20
MAX_TURN_MS = 5

#: By (queue, reason): hints, which a reopening forgets.
Breakers = dict[tuple[int, FailureReason], BreakerState]


class Transaction:
    __slots__ = ("_blocks", "_claims", "_engine", "_gathered", "_growing", "_place", "_start", "_wall_ms", "ahead", "began_ms", "bytes", "caller",
                 "commit", "epoch", "facts", "has_gathered", "hooks", "id_ms", "lost", "memory", "now_ms",
                 "reopened", "requests", "store")  # fmt: skip

    def __init__(
        self, engine: Engine, commit: int, epoch: int, now_ms: int, id_ms: int, hooks: HookAnswers
    ) -> None:
        self._engine = engine
        self.memory: Memory = engine.memory
        self.store: KeyValueStore = engine.store
        #: The number of the commit. A large transaction uses the numbers of several.
        self.commit = commit
        self.epoch = epoch
        self.now_ms = now_ms
        self._wall_ms = 0
        #: The time in new ids; it never goes back.
        self.id_ms = id_ms
        #: Answers of hooks from before the transaction.
        self.hooks = hooks
        self.facts: list[StateFact] = []
        self._blocks = 0
        self._claims = 0
        self._place = 0
        #: By queue: the last chunk that enqueues of this transaction made.
        self._growing: dict[int, Chunk | GrowingChunk] = {}
        #: Whether there are gathered messages without a fact; and the number of changes without a fact of
        #: their own, minus the facts that all of them share.
        self.has_gathered = False
        self._gathered = 0
        #: The number of changes when the current request began.
        self._start = 0
        #: By queue and stream: the fairness key of the first message that the current request returns to a
        #: stream without live messages. Facts are added when all of them are known, so streams do not know it
        #: yet.
        self.reopened: dict[tuple[int, str], str] = {}
        #: Requests, and steps of requests, that joined; and the bytes of enqueued messages.
        self.requests = 0
        self.bytes = 0
        #: When it began, in steady time; only for transactions that requests may join.
        self.began_ms = 0
        #: The caller of the current request.
        self.caller = LOCAL
        #: The payload of the current request, if it was stored before.
        self.ahead: StoredAhead | None = None
        #: Why nothing of it will be written; None while it continues.
        self.lost: str | None = None

    @property
    def wall_ms(self) -> int:
        """For times that are not compared with those of messages, such as the ends of keys."""
        self._wall_ms = self._wall_ms or self._engine.clock.now_ms()
        return self._wall_ms

    def by_wall(self, at_ms: int) -> int:
        """A time of the store in wall-clock time."""
        return self._engine.time.by_wall(at_ms)

    @property
    def random(self) -> Random:
        return self._engine.random

    @property
    def breakers(self) -> Breakers:
        return self._engine.breakers

    @property
    def settings(self) -> Settings:
        return self._engine.settings

    def add(self, fact: StateFact) -> None:
        self.facts.append(fact)
        self.memory.apply(fact)
        if self.memory.buckets.closed and self.memory.buckets.has_probes(self.now_ms):
            self._follow_probes(fact)

    def _follow_probes(self, fact: StateFact) -> None:
        """A key is open once enough probes were answered. Waiting claims check again when more messages may
        be delivered.
        """
        if not follow_probes(self.memory, fact, self.now_ms):
            return
        self._engine.waiters.wake_all()
        for throttle_key in [key for key, closed in self.memory.buckets.closed.items() if closed.is_open]:
            open_throttle(self, throttle_key)

    def start_request(self, caller: Caller = LOCAL) -> None:
        """Begin a request. Raises `Unavailable` in a lost transaction."""
        if self.lost is not None:
            raise self.lost_error()
        self.caller = caller
        self.requests += 1
        self._start = len(self.facts) + self._gathered
        if self.reopened:
            self.reopened = {}

    @property
    def is_full(self) -> bool:
        """Whether a gathered transaction should end before its next request, because others wait for the
        lock.
        """
        if self.requests >= MAX_TURN_REQUESTS or self.bytes >= MAX_TURN_BYTES:
            return True
        return self._engine.clock.monotonic_ms() - self.began_ms >= MAX_TURN_MS

    def lost_error(self) -> Unavailable:
        """A new error for each caller: one that is raised twice carries two tracebacks."""
        return Unavailable(f"nothing of this transaction was written, send it again: {self.lost}")

    @property
    def has_changed(self) -> bool:
        """Whether the current request has changed anything: then it can no longer be refused alone."""
        return len(self.facts) + self._gathered != self._start

    def queue(self, name: object) -> Queue:
        queue = self.memory.by_name.get(name) if isinstance(name, str) else None
        if queue is None:
            raise self._no_queue(name)
        return queue

    def _no_queue(self, name: object) -> FairleadError:
        missing = check_queue_name(name)
        if any(missing in names for names in self.memory.records[Table.EXTERNAL_QUEUES].values()):
            return ExternalQueue(missing, taken_name(missing))
        return QueueNotFound(missing)

    # Messages: verbs ask here and not in memory, which need not hold every message

    def find_messages(self, raw_ids: Sequence[bytes]) -> dict[bytes, int]:
        """The numbers of live messages with these ids, in one read of each kind."""
        self.bring([number for number in map(find_number, raw_ids) if number is not None])
        found = {raw_id: self.memory.find_message(raw_id) for raw_id in raw_ids}
        return {raw_id: number for raw_id, number in found.items() if number is not None}

    def state_of(self, number: int) -> OwnState:
        return self.memory.state_of(number)

    def states_of(self, numbers: Sequence[int]) -> list[OwnState]:
        """The states of messages, in one read of each kind."""
        self.bring(numbers)
        return [self.memory.state_of(number) for number in numbers]

    def bring(self, numbers: Sequence[int]) -> None:
        """Load these messages into memory while the transaction lasts."""
        bring(self.memory, self.store, numbers)

    def bring_chunks(self, numbers: Sequence[int]) -> None:
        """Load the chunks of messages whose states are in memory, because they are leased or in a lane."""
        if self.memory.cold_count:
            bring_chunks(self.memory, self.store, numbers)

    def lane_after(self, queue: Queue, lane: LaneName, place: int, limit: int) -> list[int]:
        """The next messages of a lane after a place and in order, in memory or on disk."""
        in_memory = queue.schedule.messages_after(lane, place, limit)
        cold_from = queue.schedule.cold_from(lane)
        if not cold_from:
            return in_memory
        # Fronts of streams may be behind messages on disk, which go first.
        places = [self.memory.place_of(number) for number in in_memory]
        before = bisect_left(places, cold_from)
        start, on_disk = max(cold_from, place + 1), list[int]()
        while start and before + len(on_disk) < limit:
            part = read_lane(self.memory, self.store, queue, lane, start, limit - before - len(on_disk))
            on_disk += part.numbers
            start = part.next_place
        behind = sorted([*in_memory[before:], *on_disk], key=self.memory.place_of)
        return [*in_memory[:before], *behind][:limit]

    def stream_after(self, queue: Queue, name: str, seq: int, limit: int) -> list[int]:
        """The next messages of a stream after a seq and in order, in memory or on disk."""
        stream, seq_of = queue.streams.find(name), self.memory.seq_of
        if stream is None:
            return []
        at = stream.index_after(seq, seq_of)
        found = stream.numbers[at : at + limit]
        start = max(stream.cold_from, seq + 1) if stream.cold_from else 0
        while start and len(found) < limit:
            part = read_members_of(self.memory, self.store, queue, name, start, limit - len(found))
            found += part.numbers
            start = part.next_place
        return found

    def count_members(self, queue: Queue, name: str, start: int) -> int:
        """About how many messages of a stream are on disk from a seq on: those of a chunk that begins after
        it count until all of them have left.
        """
        rows = read_members(self.store, self.memory.changes, queue.home_id, name, start, limit=COUNT_LIMIT)
        return self._count_in_chunk(name, start) + sum([one.row.count or 1 for one in rows])

    def _count_in_chunk(self, stream: str, start: int) -> int:
        """The messages of a stream from a seq on in the chunk of that seq, if its row comes earlier."""
        self.bring_chunks([start])
        chunk = self.memory.chunks.get(start >> BLOCK_SHIFT)
        members = [] if chunk is None or not chunk.is_cold else chunk.members_of(stream)
        if chunk is None or not members or members[0] >= start:
            return 0
        return len(chunk.in_stream(stream, start, None))

    def read_on(self, queue: Queue, needs: Mapping[LaneName, int]) -> None:
        """Load the next messages of these lanes, which the scheduler lacks."""
        read_on(self.memory, self.store, queue, needs)

    # Rows, as this transaction will leave them

    def record(self, table: Table, key: bytes) -> Any:
        """The record of a table with that key, or None."""
        return self.records(table, [key])[0]

    def records(self, table: Table, keys: Sequence[bytes]) -> list[Any]:
        """The records with these keys, in one read; None where there is no record."""
        return read_records(self.store, self.memory.changes, table, keys)

    def scan_records(
        self,
        table: Table,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int,
        reverse: bool = False,
    ) -> list[tuple[bytes, Any]]:
        """The first records with `start <= key < end`; with `reverse` the last ones, the last one first."""
        return scan_records(self.store, self.memory.changes, table, start, end, limit=limit, reverse=reverse)

    def dedup_rows(self, queue_id: int, keys: Sequence[str]) -> dict[str, DedupRow]:
        """The rows of dedup keys, in one read."""
        return read_dedup(self.store, self.memory.changes, queue_id, keys)

    def windows(self, queue_id: int, limit: int) -> list[tuple[int, str]]:
        """The windows of dedup keys that end first: (end, key)."""
        return read_windows(self.store, queue_id, limit)

    def due(self, queue: Queue, limit: int, after: tuple[int, int] = (0, 0)) -> list[tuple[int, int]]:
        """(due time, number) of waiting messages of the queue after that one, the earliest first. No dead
        letter waits.
        """
        if queue.is_dead_letter_queue:
            return []
        known = None if after != (0, 0) else self.memory.known_waits.first(queue.record.queue_id, limit)
        if known is not None:
            return known
        return read_due(self.store, self.memory.changes, queue.home_id, after, limit)

    def done(self, queue: Queue, limit: int, after: tuple[int, int] = (0, 0)) -> list[tuple[int, int]]:
        """(time of completion, number) of retained messages of the queue, the earliest first. No dead letter
        is retained in this sense.
        """
        if queue.is_dead_letter_queue:
            return []
        return read_done(self.store, self.memory.changes, queue.home_id, after, limit)

    def latest_due(self, queue: Queue) -> int | None:
        """The latest due time of a waiting message; None if none waits for a time."""
        return read_latest_due(self.store, self.memory.changes, queue.record.queue_id)

    def lives(self, queue: Queue, limit: int) -> list[tuple[int, int]]:
        """(end of a life, first number of its chunk), the earliest first."""
        return read_lives(self.store, self.memory.changes, queue.record.queue_id, limit)

    # Fresh numbers

    def next_block(self) -> int:
        """The first number of a fresh chunk: greater than every number assigned before, less than every later
        one.
        """
        self.add_gathered()
        self._growing.clear()
        return self.next_shared_block()

    def next_shared_block(self) -> int:
        """As `next_block`, for an enqueue: chunks of other queues keep growing."""
        if self._blocks >= MAX_BLOCKS:
            self._next_commit()
        self._blocks += 1
        # Places assigned before come before the messages of the new chunk; later ones are in a new block.
        self._place = 0
        return self.commit << COMMIT_SHIFT | self._blocks - 1 << BLOCK_SHIFT

    def next_shared_blocks(self, count: int) -> range:
        """The first numbers of that many fresh chunks, in consecutive blocks. No enqueue joins a chunk before
        them.
        """
        first = self.next_shared_block()
        commits, blocks = divmod(self._blocks + count - 2, MAX_BLOCKS)
        for _ in range(commits):
            self._next_commit()
        self._blocks = blocks + 1
        return range(first, first + (count << BLOCK_SHIFT), 1 << BLOCK_SHIFT)

    def growing_chunk(self, queue: Queue, columns: Columns) -> GrowingChunk | None:
        """The chunk that messages with these columns can join; None if they need a chunk of their own."""
        growing = self._find_growing(queue)
        return growing if growing is not None and may_grow(self.memory, growing.chunk, columns) else None

    def _find_growing(self, queue: Queue) -> GrowingChunk | None:
        if not self._growing:
            return None
        growing = self._growing.get(queue.record.queue_id)
        if isinstance(growing, Chunk):
            # Most transactions enqueue once, so the first enqueue makes no object for a second one.
            growing = self._growing[queue.record.queue_id] = GrowingChunk(growing)
        return growing

    def let_grow(self, chunk: Chunk) -> None:
        """Later enqueues of this transaction may join the chunk, until a number after it is assigned."""
        self._growing[chunk.queue_id] = chunk

    def gather(self, queue: Queue, payload: bytes, key: str, weight: int) -> str | None:
        """The id of a plain message that joins a growing chunk, at the latest before the next read of
        messages: adding many at once costs a fraction of adding each. None: it must be added now.
        """
        growing = self._find_growing(queue)
        if growing is None:
            return None
        number = growing.gather(self.memory, self.settings, payload, key, weight)
        if number is None:
            self.add_gathered()
            return None
        self._gathered += 1
        self.has_gathered = True
        return show_id(id_of(growing.chunk.prefix, number))

    def add_gathered(self) -> None:
        """Called before anything but an enqueue of a plain message."""
        if not self.has_gathered:
            return
        self.has_gathered = False
        for growing in self._growing.values():
            fact = growing.take_gathered() if isinstance(growing, GrowingChunk) else None
            if fact is not None:
                # The messages that it stands for have been counted.
                self._gathered -= 1
                self.add(fact)

    def let_none_grow(self, queue: Queue) -> None:
        """No later enqueue joins an existing chunk of the queue."""
        self.add_gathered()
        self._growing.pop(queue.record.queue_id, None)

    def next_place(self) -> int:
        """A place at the tail: greater than every number assigned before, less than every later one."""
        if self._place & BLOCK_MASK == 0:
            self._place = self.next_block()
        self._place += 1
        return self._place - 1

    def next_prefix(self) -> bytes:
        return id_prefix(self.id_ms, self.commit)

    def next_group(self) -> int:
        """The id of a claim, or of a part of one that continues separately."""
        if self._claims >= MAX_CLAIMS:
            self._next_commit()
        self._claims += 1
        return claim_group(self.epoch, self.commit, self._claims)

    def _next_commit(self) -> None:
        self.commit += 1
        self._blocks = self._claims = self._place = 0

    # Answers

    def deliveries(self, lease: GroupLease, numbers: Sequence[int]) -> list[Delivery]:
        memory, terms = self.memory, lease.terms
        if memory.cold_count:
            self.bring_chunks(numbers)
        queue = memory.by_id[terms.queue_id]
        source_name = memory.by_id[queue.home_id].name if queue.is_dead_letter_queue else None
        name, claim_id, until_ms = queue.record.name, terms.claim_id, terms.expires_ms
        own, found = memory.own, list[Delivery]()
        for block, members in by_block(numbers):
            stored = self._stored(memory.chunks[block])
            if not own:
                found += [
                    Delivery(stored, None, name, claim_id, until_ms, 1, source_name, number)
                    for number in members
                ]
                continue
            for number in members:
                state = own.get(number)
                count = 1 if state is None else state.deliveries + 1
                found.append(Delivery(stored, state, name, claim_id, until_ms, count, source_name, number))
        return found

    def _stored(self, chunk: Chunk) -> ChunkMessages:
        is_ordered = self.memory.by_id[chunk.queue_id].is_ordered
        if chunk.payloads is not None:
            return ChunkMessages(chunk, chunk.columns, chunk.payloads, is_ordered)
        unread = self._engine.unread
        if chunk.block not in unread:
            unread[chunk.block] = ChunkMessages(chunk, chunk.columns, (), is_ordered)
        return unread[chunk.block]


def by_block(numbers: Sequence[int]) -> Iterable[tuple[int, Iterable[int]]]:
    """(block, consecutive numbers of it). There is usually one block, so that case comes first."""
    if len(numbers) == 1:
        return [(numbers[0] >> BLOCK_SHIFT, numbers)]
    first = min(numbers) >> BLOCK_SHIFT
    if max(numbers) >> BLOCK_SHIFT == first:
        return [(first, numbers)]
    return groupby(numbers, key=block_of)


def block_of(number: int) -> int:
    return number >> BLOCK_SHIFT
