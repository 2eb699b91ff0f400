"""Everything the engine knows without reading, and the only place where it changes: `apply(fact)`, live and at
open alike.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any

import msgspec

from fairlead.config import Settings
from fairlead.decide.lifecycle import NOWHERE, Where, check_step, place_of
from fairlead.decide.retry import has_jitter
from fairlead.engine import cold
from fairlead.engine.blocks import Blocks
from fairlead.engine.cold import bring, bring_chunks, cached_weight, read_on, read_stream_on
from fairlead.engine.consumers import ConsumerIndex
from fairlead.engine.demotion import DemotionSearch
from fairlead.engine.known_waits import KnownWaits
from fairlead.engine.session_index import SessionIndex
from fairlead.engine.staged import StagedIndex
from fairlead.engine.streams import QueueStreams
from fairlead.engine.thinning import is_sparse
from fairlead.errors import BrokenInvariant
from fairlead.model.config_keys import WEIGHT
from fairlead.model.lane import lane_key, lane_throttle_keys
from fairlead.model.queue import QueueRecord
from fairlead.records.chunk import (
    GONE,
    IMPLIED,
    MAX_SHARED_BYTES,
    OWN,
    PAGE_BYTES,
    Chunk,
    Columns,
    LaneName,
    by_chunk,
)
from fairlead.records.facts import (
    BucketChanged,
    ChunkDemoted,
    ChunkEnqueued,
    ChunkGrown,
    ChunksRead,
    ChunkThinned,
    Claimed,
    ConfigChanged,
    CountsRead,
    DoneRead,
    DueRead,
    KeysForgotten,
    KeysRemembered,
    LaneFound,
    LaneRead,
    LeaseCompleted,
    LeaseSplit,
    LivesEnded,
    MessageGone,
    MessageMoved,
    MessageRestated,
    MessagesMoved,
    Move,
    PagesStaged,
    PassAllowed,
    QueueDeleted,
    QueueStored,
    ReadFact,
    RecordsChanged,
    ScatteredEnqueued,
    StateFact,
    StatesRead,
    StreamRead,
    WindowsEnded,
)
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT, MAX_CHUNK_MESSAGES, find_number
from fairlead.records.lease import NEVER_EXPIRES_MS, GroupLease
from fairlead.records.state import Counts, MemberRow, OwnState, RunRow
from fairlead.records.stream import Stream
from fairlead.schedule.drr import Container, Scheduler
from fairlead.schedule.throttle import Bucket, Buckets
from fairlead.store.changes import Changes
from fairlead.store.cold_rows import find_last_cold, run_of_one
from fairlead.store.kv.port import KeyValueStore, Table
from fairlead.store.rows import RECORDS_IN_MEMORY, claim_of_outcomes
from fairlead.store.stream_rows import has_members, read_members

#: Of a memory that no engine works with. An engine has `body_cache_bytes` of its settings.
DEFAULT_BODY_BYTES = 64 << 20
#: Cold chunks, or streams, that are looked at in one go when too many are in memory.
_LET_GO_AT_ONCE = 500
#: Leases that ended before their time are forgotten when there are more of them than this, and than others.
_MIN_ENDED = 100
#: Dead letters share one lane, so that their order is that of their deaths.
DEAD_LANE: LaneName = ("default",)


class Queue:
    __slots__ = (
        "blocks",
        "counts",
        "first_done_ms",
        "has_jitter",
        "home_id",
        "is_dead_letter_queue",
        "is_ordered",
        "leases",
        "next_due_ms",
        "next_life_ms",
        "next_window_ms",
        "record",
        "schedule",
        "served_ms",
        "streams",
        "takes_all",
    )  # fmt: skip

    def __init__(
        self, record: QueueRecord, schedule: Scheduler, streams: QueueStreams, blocks: Blocks
    ) -> None:
        self.set_record(record)
        self.schedule = schedule
        self.streams = streams
        self.counts = Counts()
        #: Chunks of messages that were enqueued here.
        self.blocks = blocks
        self.leases: dict[int, GroupLease] = {}
        #: When a wait, a life or the window of a dedup key may end next; 0: there is none.
        self.next_due_ms = 0
        #: When a completed message that is kept may have been completed first; 0: there is none.
        self.first_done_ms = 0
        self.next_life_ms = 0
        self.next_window_ms = 0
        #: When messages were claimed last, as far as is known.
        self.served_ms = 0

    def set_record(self, record: QueueRecord) -> None:
        """With what follows from it: verbs ask for that many times as often as it changes."""
        self.record = record
        self.is_dead_letter_queue = record.source_id != 0
        config = record.config
        #: Whether it takes messages as they come: no time to live and no limit of its own.
        self.takes_all = not (record.source_id or config.ttl_ms or config.max_messages or config.max_bytes)
        #: Whether streams order its messages. It does not change while the queue has messages.
        self.is_ordered = record.config.ordering != "none"
        #: Whether chance decides about its retries.
        self.has_jitter = has_jitter(record.config)
        #: The queue under which the rows of its messages are stored.
        self.home_id = record.source_id or record.queue_id

    @property
    def name(self) -> str:
        return self.record.name

    def containers(self) -> list[Container]:
        """What may have as many items as the queue has keys or messages."""
        return [*self.schedule.containers(), self.streams.by_name, self.leases]

    def may_have_due(self, now_ms: int) -> bool:
        """Whether a wait, a life or the time of a kept message may be over; leases and windows are looked at
        elsewhere.
        """
        if self.first_done_ms:
            return True
        if self.is_dead_letter_queue:
            # Nothing waits there, and retention ends those that nobody holds.
            return self.counts.ready > 0
        return 0 < self.next_due_ms <= now_ms or 0 < self.next_life_ms <= now_ms

    @property
    def end_of_keeping_ms(self) -> int:
        """When the message that was completed first has been kept long enough; at once, if the queue keeps none any
        more.
        """
        kept_ms = self.record.config.retain_completed_ms
        return self.first_done_ms + kept_ms if kept_ms else 0


class Memory:
    """A cache of rows. It has all leases and lanes, all hot chunks with their streams, and the states of messages that
    are leased, or in the part of a lane or a stream in memory. Others are read by `cold.py`, and let go when the
    transaction ends.
    """

    #: An object with more than 30 attributes has them in a dictionary, where every look costs more.
    __slots__ = (
        "_discarded",
        "_ended_expiries",
        "_gone_queues",
        "_store",
        "_unswept",
        "body_bytes",
        "buckets",
        "by_consumer",
        "by_id",
        "by_name",
        "by_token",
        "cached_members",
        "cached_messages",
        "changes",
        "chunks",
        "claim_turn",
        "cold_chunks",
        "cold_count",
        "cold_streams",
        "config",
        "consumers",
        "demoted",
        "demotion",
        "ended_deliveries",
        "expiries",
        "found_lanes",
        "held",
        "hot_messages",
        "idle_buckets",
        "known_waits",
        "last_queue_id",
        "max_body_bytes",
        "own",
        "read_bodies",
        "records",
        "sessions",
        "sparse",
        "staged",
        "thinned_lanes",
        "touched_states",
        "touched_streams",
        "used_streams",
        "wanted_hot_messages",
        "weights",
    )

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self.by_name: dict[str, Queue] = {}
        self.by_id: dict[int, Queue] = {}
        self.chunks: dict[int, Chunk] = {}
        self.own: dict[int, OwnState] = {}
        #: Live messages of hot chunks, where those of chunks with streams count for several.
        self.hot_messages = 0
        #: Cold chunks in memory by block, the one that was wanted longest ago first; what they count for; and how many
        #: cold chunks there are.
        self.cold_chunks: dict[int, Chunk] = {}
        self.cached_messages = 0
        self.cold_count = 0
        #: Looks for chunks that make room; and those that the transaction made cold, which nobody wants soon.
        self.demotion = DemotionSearch()
        self.demoted: list[Chunk] = []
        #: Payloads that are stored in pages and kept in memory, for claims that come soon: how many bytes, and how
        #: many at most. Heads have small payloads inside, which do not count.
        self.body_bytes = 0
        self.max_body_bytes = DEFAULT_BODY_BYTES
        #: How many messages the settings let memory hold. There are never more than `HOT_MESSAGES`.
        self.wanted_hot_messages = cold.HOT_MESSAGES
        #: Chunks whose payloads were read since the last transaction, without the lock.
        self.read_bodies: deque[Chunk] = deque()
        #: By block: the queue of each chunk that was found to be sparse since the last look of the timer.
        self.sparse: dict[int, int] = {}
        self.known_waits = KnownWaits()
        #: Messages whose states the transaction read or changed.
        self.touched_states: set[int] = set()
        self.held: dict[int, GroupLease] = {}
        #: Heap of (expiry, claim, lease): a tie of numbers costs less than one of leases. A lease without members is skipped
        #: when its time comes, or goes with many others; and how many may have none.
        self.expiries: list[tuple[int, int, GroupLease]] = []
        self._ended_expiries = 0
        #: Consumers of this engine, with what they hold; and claims by the token of their caller.
        self.by_consumer: dict[str, set[GroupLease]] = {}
        self.by_token: dict[str, set[GroupLease]] = {}
        #: Records beside the messages, by table and key; of tables whose records are all in memory.
        self.records: dict[Table, dict[bytes, Any]] = {table: {} for table in RECORDS_IN_MEMORY}
        self.consumers = ConsumerIndex()
        self.staged = StagedIndex()
        self.sessions = SessionIndex()
        self.config: dict[str, str] = {}
        #: Weights of keys that are configured, by the name of the queue.
        self.weights: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self.buckets = Buckets()
        #: Buckets of throttles that are not configured at the moment.
        self.idle_buckets: dict[str, Bucket] = {}
        #: The highest id that a queue had: ids are never used again.
        self.last_queue_id = 0
        #: Which of several queues a claim tries first.
        self.claim_turn = 0
        #: By (queue, stream): streams whose front may be another one now; `update_fronts` finds it.
        self.touched_streams: dict[tuple[int, str], Stream] = {}
        #: By (queue, stream): streams that the transaction looked at; and those in memory that need not be, the one that
        #: was wanted longest ago first, with how many messages they have.
        self.used_streams: set[tuple[int, str]] = set()
        self.cold_streams: dict[tuple[int, str], Stream] = {}
        self.cached_members = 0
        #: By (queue, lane): lanes that lost messages other than by a claim.
        self.thinned_lanes: dict[tuple[int, LaneName], None] = {}
        #: (place, queue, fairness key) of deliveries that ended in queues with a limit of unsettled messages
        #: per key; `update_fronts` lets others go out in their place.
        self.ended_deliveries: list[tuple[int, int, str]] = []
        #: At open, by queue and lane: ready messages of hot chunks, before they stand in their lanes.
        self.found_lanes: defaultdict[int, defaultdict[LaneName, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        #: What deleted queues leave behind: their ids, numbers whose states are still here, and objects to be freed.
        self._gone_queues: set[int] = set()
        self._unswept: list[int] = []
        self._discarded: list[object] = []
        self.changes = Changes()

    # Questions

    def chunk_of(self, number: int) -> Chunk:
        """Of a live message. Callers that want many messages bring them first; this reads one."""
        chunk = self.chunks.get(number >> BLOCK_SHIFT)
        if chunk is None:
            bring_chunks(self, self._store, [number])
            chunk = self.chunks[number >> BLOCK_SHIFT]
        return chunk

    def has_room_for_lanes(self, settings: Settings, queue: Queue, most: int) -> bool:
        """Whether so many new lanes are certainly not too many."""
        # An upper bound of the lanes of all queues, each of which has a message. With many queues it costs less than their
        # sum, and suffices while few chunks are cold.
        others = self.hot_messages + len(self.own) + self.cold_count * MAX_CHUNK_MESSAGES + len(self.by_id)
        if others + most <= settings.lanes_per_queue and others + most <= settings.active_lanes:
            return True
        if queue.schedule.lane_count + most > settings.lanes_per_queue:
            return False
        return others + most <= settings.active_lanes or self.count_lanes() + most <= settings.active_lanes

    def count_lanes(self) -> int:
        return sum([queue.schedule.lane_count for queue in self.by_id.values()])

    def hot_weight(self, columns: Columns) -> int:
        """How many plain messages take as much memory as one with these columns."""
        return 1 if columns.streams is None else cold.WEIGHT_IN_STREAM

    @property
    def used_room(self) -> int:
        """How much of `max_hot_messages` is used."""
        return self.hot_messages + len(self.own)

    @property
    def max_hot_messages(self) -> int:
        return min(self.wanted_hot_messages, cold.HOT_MESSAGES)

    def homes_with_cold(self) -> list[int]:
        return [queue_id for queue_id, queue in self.by_id.items() if queue.counts.cold]

    def find_chunk(self, prefix: bytes, number: int) -> Chunk | None:
        """The chunk of a live message with that id."""
        bring_chunks(self, self._store, [number])
        chunk = self.chunks.get(number >> BLOCK_SHIFT)
        if chunk is None or chunk.prefix != prefix or number & BLOCK_MASK >= chunk.count:
            return None
        return None if chunk.state_of(number) == GONE else chunk

    def find_touched_chunk(self, block: int) -> Chunk | None:
        """A chunk that facts of this transaction name, also if they ended it; None: a later fact deleted its queue."""
        found = self.chunks.get(block)
        if found is not None:
            return found
        return next((chunk for chunk in self.changes.chunks if chunk.block == block), None)

    def find_message(self, raw_id: bytes) -> int | None:
        """The number of a live message."""
        number = find_number(raw_id)
        return None if number is None or self.find_chunk(raw_id[:8], number) is None else number

    def find_lease(self, raw_id: bytes) -> tuple[int, GroupLease] | None:
        """The number and the lease of a held message. Other stores give the same numbers to other ids."""
        number = find_number(raw_id)
        lease = None if number is None else self.held.get(number)
        if number is None or lease is None or self.chunk_of(number).prefix != raw_id[:8]:
            return None
        return number, lease

    def configured_weights(self) -> dict[str, dict[str, int]]:
        """By queue and key, of the queues that have any."""
        return {name: dict(weights) for name, weights in self.weights.items() if weights}

    def place_of(self, number: int) -> int:
        state = self.own.get(number)
        return number if state is None else state.place

    def state_of(self, number: int) -> OwnState:
        """The state of a message; for an implied message, the state that its chunk implies."""
        state = self.own.get(number)
        if state is not None:
            return state
        chunk = self.chunk_of(number)
        if chunk.state_of(number) == OWN:
            bring(self, self._store, [number])
            return self.own[number]
        return OwnState(chunk.queue_id, number)

    def seq_of(self, number: int) -> int:
        """The order of a message in its stream. A redriven message got another one."""
        state = self.own.get(number)
        return state.seq or number if state is not None else number

    def waits(self, number: int) -> bool:
        state = self.own.get(number)
        return state is not None and state.due_ms != 0

    def is_cold_member(self, number: int) -> bool:
        """Of a message in a stream: whether memory need not hold it. Then it has a row of its stream, and one of its
        lane while it is at the front.
        """
        state = self.own.get(number)
        # A redriven message is the last one of its stream, wherever its chunk is.
        return self.chunk_of(number).is_cold or (state is not None and state.seq != 0)

    def read_stream(self, queue_id: int, stream: Stream, wanted: int) -> None:
        read_stream_on(self, self._store, self.by_id[queue_id], stream, wanted)

    def find_stream_key(self, queue_id: int, name: str, start: int) -> str | None:
        rows = read_members(self._store, self.changes, queue_id, name, start, limit=1)
        return rows[0].row.key if rows else None

    def has_one_message(self, queue_id: int, name: str) -> bool:
        rows = read_members(self._store, self.changes, queue_id, name, 0, limit=2)
        return len(rows) == 1 and rows[0].row.count <= 1

    def has_stream_rows(self, queue_id: int) -> bool:
        is_changed = any(home_id == queue_id for home_id, _ in self.changes.members)
        return is_changed or has_members(self._store, queue_id)

    def stream_of(self, number: int, queue_id: int) -> str:
        """The stream that orders a message while it is in that queue; empty: none does."""
        chunk = self.chunk_of(number)
        if chunk.columns.streams is None or chunk.queue_id != queue_id:
            return ""
        return chunk.stream_of(number) if self.by_id[queue_id].is_ordered else ""

    def lane_and_weight(self, number: int) -> tuple[LaneName, int]:
        """In the queue that the message was enqueued into."""
        chunk, state = self.chunk_of(number), self._find_state(number)
        if state is None or not (state.lane or state.weight):
            return chunk.lane_of(number), chunk.weight_of(number)
        return _own_lane(chunk, number, state), state.weight or chunk.weight_of(number)

    def end_of_life(self, number: int) -> int:
        """When the life of a message ends; 0: never, as for a message that is gone or dead."""
        bring_chunks(self, self._store, [number])
        chunk = self.chunks.get(number >> BLOCK_SHIFT)
        if chunk is None or chunk.state_of(number) == GONE:
            return 0
        state = self._find_state(number)
        has_end = state is None or (_in_first_life(state, chunk) and not state.done_ms)
        return chunk.expires_ms(number) if has_end else 0

    def _find_state(self, number: int) -> OwnState | None:
        """None for an implied message."""
        state = self.own.get(number)
        if state is None and self.chunk_of(number).state_of(number) == OWN:
            return self.state_of(number)
        return state

    def members_of(self, lease: GroupLease) -> list[int]:
        """The members that are still held under it."""
        return [number for number in lease.numbers if self.held.get(number) is lease]

    def is_first_of_run(self, number: int) -> bool:
        """Whether it is the earliest message of its stream that its claim holds, or is in no stream."""
        queue_id = self.state_of(number).queue_id
        stream = self.stream_of(number, queue_id)
        return not stream or self.by_id[queue_id].streams.is_first_of_run(stream, number)

    def in_claim_order(self, leases: Iterable[GroupLease]) -> list[tuple[GroupLease, int]]:
        """Each member that is still held, with its lease: claim by claim, in the order of delivery."""
        claims: dict[int, list[GroupLease]] = {}
        for lease in sorted(leases, key=lambda lease: (lease.terms.claim_id, lease.terms.group)):
            claims.setdefault(lease.terms.claim_id, []).append(lease)
        found: dict[int, GroupLease] = {}
        for groups in claims.values():
            for number in dict.fromkeys(number for lease in groups for number in lease.claim_order):
                holder = self.held.get(number)
                if holder is not None and holder in groups:
                    found[number] = holder
        return [(lease, number) for number, lease in found.items()]

    # Hints about time

    def overdue(self, now_ms: int, most_members: int) -> list[GroupLease]:
        """Leases whose time is over, until they have that many members together. Leases of one claim that end together
        are not parted: whether a member was the first of its run is known while all of the run is held.
        """
        found: list[GroupLease] = []
        members = 0
        while self.expiries and self.expiries[0][0] <= now_ms:
            lease = self.expiries[0][2]
            if members >= most_members and not lease.ends_with(found[-1]):
                break
            heappop(self.expiries)
            if lease.live:
                found.append(lease)
                members += lease.live
        for lease in found:
            # They stay until their members have moved, which makes these entries out of date.
            heappush(self.expiries, (lease.terms.expires_ms, lease.terms.claim_id, lease))
        return found

    def end_of_retention(self, queue: Queue) -> int | None:
        """When the longest dead message of a dead-letter queue has been kept long enough; None: never."""
        source = self.by_id.get(queue.record.source_id)
        if source is None or not source.record.config.dead_retention_ms:
            return None
        first = queue.schedule.messages_after(DEAD_LANE, 0, 1)
        if not first and queue.schedule.cold_from(DEAD_LANE):
            return 0
        return self.own[first[0]].dead_since_ms + source.record.config.dead_retention_ms if first else None

    def next_event_ms(self, queue_ids: Iterable[int] | None = None) -> int | None:
        """When due work of these queues, or of all, begins next. It may be too early, never too late."""
        times = [self.expiries[0][0]] if self.expiries else []
        by_id = self.by_id
        for queue_id in by_id if queue_ids is None else queue_ids:
            queue = by_id.get(queue_id)
            if queue is None:
                continue
            if queue.next_due_ms:
                times.append(queue.next_due_ms)
            if queue.next_life_ms:
                times.append(queue.next_life_ms)
            if queue.next_window_ms:
                times.append(queue.next_window_ms)
            if queue.first_done_ms:
                times.append(queue.end_of_keeping_ms)
            if queue.is_dead_letter_queue and (end_ms := self.end_of_retention(queue)) is not None:
                times.append(end_ms)
        if self.consumers.next_look_ms is not None:
            times.append(self.consumers.next_look_ms)
        if self.staged.next_look_ms is not None:
            times.append(self.staged.next_look_ms)
        if self.demotion.next_look_ms is not None:
            times.append(self.demotion.next_look_ms)
        return min(times) if times else None

    def latest_ms(self) -> int:
        """A time that has certainly passed: the latest enqueue, claim or extension that memory knows of."""
        granted = [lease.terms.expires_ms - lease.terms.lease_ms for lease in self.held.values()]
        seen = [holder.seen_ms for holder in self.consumers.holders.values()]
        cold = [find_last_cold(self._store, home_id) for home_id in self.homes_with_cold()]
        enqueued = [head.enqueued_ms for head in cold if head is not None]
        enqueued += [chunk.enqueued_ms for chunk in self.chunks.values()]
        return max(enqueued + granted + seen, default=0)

    # The reducer

    def apply(self, fact: StateFact | ReadFact) -> None:
        _REDUCERS[type(fact)](self, fact)

    def _restated(self, fact: MessageRestated) -> None:
        chunk = self.chunk_of(fact.number)
        self._mark_own(chunk, fact.number)
        self._restate(fact.number, fact.state)
        self.known_waits.restated(fact.state.queue_id, fact.number, fact.state)
        stream = self.stream_of(fact.number, fact.state.queue_id)
        if stream and not fact.state.done_ms:
            self._note_member(chunk, fact.number, stream)

    def _pass_allowed(self, fact: PassAllowed) -> None:
        self.by_id[fact.queue_id].streams.allow_to_pass(fact.stream, fact.numbers, fact.all_after)

    def _keys_forgotten(self, fact: KeysForgotten) -> None:
        self.changes.dedup.update(dict.fromkeys([(fact.queue_id, key) for key in fact.keys], None))

    def _counts_read(self, fact: CountsRead) -> None:
        self.by_id[fact.queue_id].counts = fact.counts
        self.cold_count += fact.counts.cold

    def _chunks_read(self, fact: ChunksRead) -> None:
        for chunk in fact.chunks:
            self._keep_cold(chunk)

    def _states_read(self, fact: StatesRead) -> None:
        self.own.update(fact.states)
        self.touched_states.update(fact.states)

    def _lane_read(self, fact: LaneRead) -> None:
        self.by_id[fact.queue_id].schedule.promote(fact.lane, fact.numbers, fact.cold_from)

    def _stream_read(self, fact: StreamRead) -> None:
        self.by_id[fact.queue_id].streams.read(fact.stream, fact.numbers, fact.cold_from)

    def _done_read(self, fact: DoneRead) -> None:
        self.by_id[fact.queue_id].first_done_ms = fact.first_ms

    def _due_read(self, fact: DueRead) -> None:
        self.by_id[fact.queue_id].next_due_ms = fact.next_ms

    def _pages_staged(self, fact: PagesStaged) -> None:
        self.changes.staged_pages[fact.queue_id, fact.number] = fact.pages

    def _queue_stored(self, fact: QueueStored) -> None:
        record = fact.record
        queue = self.by_id.get(record.queue_id)
        if queue is None:
            schedule = Scheduler(
                self.place_of,
                self.buckets,
                quantum=record.config.quantum,
                max_unsettled_per_key=record.config.max_unsettled_per_key,
                weight_of=self.weights[record.name].get,
            )
            streams = QueueStreams(self, record.queue_id, self.touched_streams, self.used_streams)
            queue = Queue(record, schedule, streams, Blocks(self.chunks))
            self.by_id[record.queue_id] = self.by_name[record.name] = queue
            self._count(queue)
        elif queue.record.config.quantum != record.config.quantum:
            queue.schedule.set_quantum(record.config.quantum)
        before, limit = queue.record.config.max_unsettled_per_key, record.config.max_unsettled_per_key
        queue.set_record(record)
        if before != limit:
            queue.schedule.limit_unsettled(limit, self._unsettled(queue))
        self.last_queue_id = max(self.last_queue_id, record.queue_id)
        self.changes.queues[record.queue_id] = record

    def _unsettled(self, queue: Queue) -> Counter[str]:
        """How many messages of each key are leased."""
        own, found = self.own, Counter[str]()
        for lease in queue.leases.values():
            for block, members in by_chunk(self.members_of(lease)):
                if queue.is_dead_letter_queue or not own.keys().isdisjoint(members):
                    found.update([self._lane_in(queue, number)[0][0] for number in members])
                    continue
                columns = self.chunk_of(block << BLOCK_SHIFT).columns
                if columns.lane_at is None:
                    found[columns.lanes[0][0]] += len(members)
                    continue
                lanes = Counter([columns.lane_at[number & BLOCK_MASK] for number in members])
                for at, count in lanes.items():
                    found[columns.lanes[at][0]] += count
        return found

    def _queue_deleted(self, fact: QueueDeleted) -> None:
        self.last_queue_id = max(self.last_queue_id, fact.last_queue_id)
        if not fact.queue_id:
            return
        record = self.by_id[fact.queue_id].record
        self._unlink(fact.queue_id)
        self.changes.forget(record)
        self.changes.deleted_queues.append(record)
        self.changes.last_queue_id = fact.last_queue_id

    def _records_changed(self, fact: RecordsChanged) -> None:
        self.changes.records.update({(fact.table, key): record for key, record in fact.records.items()})
        if fact.table is Table.ANSWERS:
            self.sessions.answers_changed(fact.records)
            return
        kept = self.records.get(fact.table, {})
        for key, record in fact.records.items():
            if fact.table is Table.CONSUMERS:
                self.consumers.consumer_changed(kept.get(key), record)
            elif fact.table is Table.OUTCOMES:
                self.consumers.outcomes_changed(claim_of_outcomes(key), record)
            elif fact.table is Table.STAGED:
                self.staged.chunk_changed(kept.get(key), record)
            elif fact.table is Table.PUBLISHING:
                self.staged.publishing_changed(kept.get(key), record)
        kept.update(fact.records)
        for key in [key for key, record in fact.records.items() if record is None]:
            del kept[key]

    def _config_changed(self, fact: ConfigChanged) -> None:
        self.changes.config.update(fact.entries)
        for entry, value in fact.entries.items():
            if value is None:
                self.config.pop(entry, None)
            else:
                self.config[entry] = value
            if entry.startswith(WEIGHT):
                self._weight_changed(entry, value)

    def _weight_changed(self, entry: str, value: str | None) -> None:
        queue_name, _, key = entry.removeprefix(WEIGHT).partition(":")
        if value is None:
            self.weights[queue_name].pop(key, None)
            return
        self.weights[queue_name][key] = int(value)
        queue = self.by_name.get(queue_name)
        if queue is not None:
            queue.schedule.reweigh(key, int(value))

    def _bucket_changed(self, fact: BucketChanged) -> None:
        key, bucket = fact.throttle_key, fact.bucket
        self.changes.buckets[key] = bucket
        self.idle_buckets.pop(key, None)
        if bucket is not None and fact.is_idle:
            self.idle_buckets[key] = bucket
        self.buckets.set(key, None if fact.is_idle else bucket)
        for queue in self.by_id.values():
            queue.schedule.bucket_changed(key, fact.at_ms)

    def _enqueued(self, fact: ChunkEnqueued) -> None:
        chunk, ready = fact.chunk, fact.ready
        queue = self.by_id[chunk.queue_id]
        if ready is None and chunk.states is None and self._fits_as_it_is(queue, chunk):
            self._enter_plain(queue, chunk)
            return
        weight = self.hot_weight(chunk.columns) * chunk.live
        if ready is None and self._must_be_cold(queue, chunk, weight):
            chunk.has_runs = chunk.has_implied()
            chunk.is_cold = True
            self._keep_cold(chunk)
            self._count_cold(queue, 1)
            if chunk.count == 1 and chunk.states is None and chunk.columns.streams is None:
                self._enter_alone(queue, chunk)
                return
        else:
            self.chunks[chunk.block] = chunk
            queue.blocks.add(chunk.block)
            self.hot_messages += weight
            self._note_sparse(chunk)
        self.changes.new_chunks.append(chunk)
        if ready is None:
            self._let_in(queue, chunk, chunk.implied(), fact.own, chunk.columns)
            return
        numbers = ready
        if chunk.columns.streams is not None and queue.is_ordered:
            numbers = self._join_streams(queue, chunk, ready)
        found = self.found_lanes[chunk.queue_id]
        for number, lane in zip(numbers, chunk.lanes_of(numbers), strict=True):
            found[lane].append(number)

    def _fits_as_it_is(self, queue: Queue, chunk: Chunk) -> bool:
        """Whether a new chunk of implied messages is hot, and has neither streams nor ends of lives: the usual case."""
        columns = chunk.columns
        if columns.streams is not None or columns.expires is not None or queue.schedule.has_cold():
            return False
        used = self.hot_messages + len(self.own) + chunk.count
        return used <= self.wanted_hot_messages and used <= cold.HOT_MESSAGES

    def _enter_plain(self, queue: Queue, chunk: Chunk) -> None:
        """The same as `_enqueued`, without its questions."""
        count, columns, changes = chunk.count, chunk.columns, self.changes
        self.chunks[chunk.block] = chunk
        queue.blocks.add(chunk.block)
        self.hot_messages += count
        changes.new_chunks.append(chunk)
        counts = changes.counts[chunk.queue_id] = queue.counts
        counts.ready += count
        counts.bytes += chunk.payload_bytes if columns.headers is None else columns.total_bytes()
        if columns.lane_at is None and type(columns.weights) is int:
            queue.schedule.add(columns.lanes[0], columns.weights, range(chunk.first, chunk.first + count))
        else:
            self._schedule(queue, chunk, chunk.numbers)

    def _enter_alone(self, queue: Queue, chunk: Chunk) -> None:
        """`_let_in` for the only message of a new cold chunk: behind a backlog in many lanes nearly all are of this kind."""
        columns, number, home_id = chunk.columns, chunk.first, chunk.queue_id
        lane, weight = columns.lanes[0], chunk.weight_of(number)
        self.changes.new_chunks.append(chunk)
        counts = self._count(queue)
        counts.ready += 1
        counts.bytes += columns.total_bytes()
        if columns.expires is not None and columns.expires[0]:
            self._note_life(queue, chunk, columns.expires[0])
        self.changes.runs[home_id, home_id, lane, number, False] = RunRow(number, 1, weight, is_alone=True)
        queue.schedule.add_cold(lane, weight, number)

    def _scattered(self, fact: ScatteredEnqueued) -> None:
        queue, columns, schedule = self.by_id[fact.queue_id], fact.columns, self.by_id[fact.queue_id].schedule
        count = len(fact.numbers)
        if not self._has_room_for(count) and self.demotion.may_begin(queue, fact.enqueued_ms):
            for lane in columns.lanes:
                self.demotion.found_no_room(queue, fact.enqueued_ms, [lane])
        self._count_cold(queue, count)
        counts = self._count(queue)
        counts.ready += count
        counts.bytes += columns.total_bytes()
        schedule.add_cold_ones(columns.lanes_in_order(), columns.weights_in_order(), fact.numbers)
        self.changes.scattered.append(fact)

    def hold_scattered(self) -> None:
        """Before a request of the same transaction that may look for messages: those that it scattered are in memory, as
        other chunks of the transaction are. Behind enqueues alone nobody looks for them before they are written.
        """
        for fact in self.changes.scattered:
            for chunk in fact.chunks():
                self._keep_cold(chunk)
                self.changes.new_chunks.append(chunk)
                lane, home_id = chunk.columns.lanes[0], chunk.queue_id
                self.changes.runs[home_id, home_id, lane, chunk.first, False] = run_of_one(chunk.head())
        self.changes.scattered.clear()

    def _grown(self, fact: ChunkGrown) -> None:
        chunk, own = fact.chunk, fact.own
        queue = self.by_id[chunk.queue_id]
        before = self.hot_weight(chunk.columns) * chunk.live
        numbers = chunk.grow(fact.columns, fact.payloads, own)
        self.hot_messages += self.hot_weight(chunk.columns) * chunk.live - before
        implied = [number for number in numbers if number not in own] if own else numbers
        self._let_in(queue, chunk, implied, own, fact.columns)

    def _thinned(self, fact: ChunkThinned) -> None:
        before, after = fact.before, fact.after
        if before.has_runs:
            lanes = set(map(after.lane_of, after.implied()))
            for lane, first in before.first_of_lanes().items():
                if lane not in lanes:
                    self.changes.runs[before.queue_id, before.queue_id, lane, first, False] = None
        for end_ms in before.ends_of_life() - after.ends_of_life():
            self.changes.lives[before.queue_id, end_ms, before.first] = False
        if before.is_cold:
            self.cold_chunks[after.block] = after
        else:
            self.hot_messages -= self.hot_weight(before.columns) * before.live
            self.hot_messages += self.hot_weight(after.columns) * after.live
        self._drop_body(before)
        self.chunks[after.block] = after
        self.changes.thinned.append((before, after))
        # Messages may have ended while it was made.
        self._note_sparse(after)

    def _note_sparse(self, chunk: Chunk) -> None:
        if chunk.dead_bytes and is_sparse(chunk):
            self.sparse[chunk.block] = chunk.queue_id

    def may_be_thinned(self, chunk: Chunk) -> bool:
        """Whether a chunk is worth being written anew, and no numbered claim holds one of its messages."""
        if not is_sparse(chunk):
            return False
        held = self.held
        return not any(held[number].is_numbered for number in held.keys() & chunk.numbers)

    def _let_in(
        self,
        queue: Queue,
        chunk: Chunk,
        implied: Sequence[int],
        own: Mapping[int, OwnState],
        columns: Columns,
    ) -> None:
        """New messages of a chunk: implied ones, and others that begin with rows of their own. `columns` are theirs."""
        if chunk.states is not None:
            # Some messages of the chunk begin with rows of their own.
            self.changes.chunks.add(chunk)
        if own and self._wait_from_now(queue, chunk, own, columns):
            own = {}
        for number, state in own.items():
            self._restate(number, state)
        entering = implied
        if columns.streams is not None and queue.is_ordered:
            waiting = [number for number, state in own.items() if state.due_ms]
            entering = self._open_streams(queue, chunk, sorted([*implied, *waiting]))
        for number, state in own.items():
            self._enter(chunk, number, state, None)
        counts = self._count(queue)
        counts.ready += len(implied)
        counts.bytes += _bytes_of(chunk, implied)
        if columns.expires is not None:
            for end_ms in set(columns.expires) - {0}:
                self._note_life(queue, chunk, end_ms)
        self._schedule(queue, chunk, entering)

    def _wait_from_now(
        self, queue: Queue, chunk: Chunk, own: Mapping[int, OwnState], columns: Columns
    ) -> bool:
        """`_enter` for new messages that wait, all at once. False: some do more than that, and nothing was changed."""
        if columns.streams is not None or columns.expires is not None:
            return False
        if not all(state.due_ms for state in own.values()):
            return False
        home_id, changes, counts = chunk.queue_id, self.changes, self._count(queue)
        for number, state in own.items():
            changes.own[home_id, number] = state
        self.own.update(own)
        counts.bytes += _bytes_of(chunk, [*own])
        self._wait(queue, own)
        return True

    def _wait(self, queue: Queue, states: Mapping[int, OwnState]) -> None:
        """Messages without streams wait for their times. Memory has their states until the transaction ends."""
        changes, home_id = self.changes, queue.home_id
        counts = self._count(queue)
        counts.waiting += len(states)
        self.known_waits.began(queue.record.queue_id, states, counts.waiting)
        self.touched_states.update(states)
        for number, state in states.items():
            changes.due[home_id, state.due_ms, number] = True
        first_ms = min([state.due_ms for state in states.values()])
        queue.next_due_ms = min(queue.next_due_ms or first_ms, first_ms)

    # Cold chunks and lanes

    def _must_be_cold(self, queue: Queue, chunk: Chunk, weight: int) -> bool:
        """A new chunk is hot while there is room; only the end of a lane or a stream is cold, so not behind a cold
        one.
        """
        if not chunk.has_implied():
            return True
        if self._fits(queue, weight, chunk.columns):
            return False
        if not self._has_room_for(weight):
            self.demotion.found_no_room(queue, chunk.enqueued_ms, chunk.columns.lanes)
        return True

    def _has_room_for(self, weight: int) -> bool:
        return self.used_room + weight <= self.max_hot_messages

    def _fits(self, queue: Queue, weight: int, columns: Columns) -> bool:
        """Whether new messages that weigh so much may be hot."""
        if not self._has_room_for(weight):
            return False
        schedule, streams = queue.schedule, queue.streams
        if schedule.cold_lanes > 0 and any(map(schedule.cold_from, columns.lanes)):
            return False
        if columns.streams is None or not queue.is_ordered or not streams.may_be_on_disk:
            return True
        return not any(map(streams.goes_on_on_disk, set(columns.streams) - {""}))

    def must_scatter(self, queue: Queue, columns: Columns) -> bool:
        """Whether new messages with these columns become chunks of one message each. Behind a backlog in many lanes, the
        messages of a batch are claimed at such different times that their chunk would be read again for each of them.
        """
        count, lanes = len(columns.sizes), len(columns.lanes)
        if count == 1 or count >= cold.MIN_IN_LANE * lanes:
            return False
        if columns.streams is not None or columns.expires is not None:
            # They have more rows, and few queues have so many streams or lives behind a backlog.
            return False
        if queue.counts.ready * queue.schedule.cold_lanes < cold.MOST_READY_TIMES_LANES:
            return False
        return not self._fits(queue, count, columns)

    def may_grow(self, chunk: Chunk, more: Columns) -> bool:
        """Whether messages with these columns may join a chunk of their own transaction. It may have ended since."""
        if self.chunks.get(chunk.block) is not chunk or chunk.is_cold:
            return False
        count, size = len(more.sizes), sum(more.sizes)
        if chunk.count + count > MAX_CHUNK_MESSAGES or chunk.payload_bytes + size > MAX_SHARED_BYTES:
            return False
        return self._fits(self.by_id[chunk.queue_id], self.hot_weight(more) * count, more)

    def _keep_cold(self, chunk: Chunk) -> None:
        if chunk.block not in self.chunks:
            self.chunks[chunk.block] = self.cold_chunks[chunk.block] = chunk
            self.cached_messages += cached_weight(chunk)
            self.by_id[chunk.queue_id].blocks.add(chunk.block)
            self._note_sparse(chunk)

    def _drop_cold(self, chunk: Chunk) -> None:
        if self.cold_chunks.pop(chunk.block, None) is not None:
            self.cached_messages -= cached_weight(chunk)
            self._drop_body(chunk)
            del self.chunks[chunk.block]
            self.by_id[chunk.queue_id].blocks.discard(chunk.block)

    def _count_cold(self, home: Queue, chunks: int) -> None:
        self._count(home).cold += chunks
        self.cold_count += chunks

    def cool(self) -> None:
        """Before a write: a chunk of which no message is implied any more need not be read at open, and no lane
        leads to it.
        """
        for chunk in list(self.changes.chunks):
            if not chunk.live or chunk.has_implied():
                continue
            home = self.by_id[chunk.queue_id]
            if self._must_stay_hot(home, chunk):
                continue
            if chunk.has_runs:
                self._delete_runs(chunk)
                chunk.has_runs = False
                self.changes.cooled.add(chunk)
            elif not chunk.is_cold:
                waiting = self._hot_members(home, chunk)
                self._make_cold(home, chunk)
                for number in waiting:
                    stream = chunk.stream_of(number)
                    self._note_member(chunk, number, stream)
                    self.used_streams.add((home.home_id, stream))
                    self.touched_states.add(number)

    def _make_cold(self, home: Queue, chunk: Chunk) -> None:
        """Its messages need not be in memory any more. The rows that lead to them are another matter."""
        self.hot_messages -= self.hot_weight(chunk.columns) * chunk.live
        del self.chunks[chunk.block]
        home.blocks.discard(chunk.block)
        chunk.is_cold = True
        self._keep_cold(chunk)
        self._count_cold(home, 1)
        self.changes.cooled.add(chunk)

    def _demoted(self, fact: ChunkDemoted) -> None:
        chunk = fact.chunk
        home = self.by_id[chunk.queue_id]
        in_lanes, in_streams = self.in_lanes(home, chunk), self._hot_members(home, chunk)
        if chunk.columns.streams is not None and home.is_ordered:
            in_streams += [number for number in chunk.implied() if chunk.stream_of(number)]
        self._make_cold(home, chunk)
        self.demoted.append(chunk)
        chunk.has_runs = True
        self._demote_lanes(home, chunk, in_lanes)
        self._add_members(chunk, in_streams)
        firsts: dict[str, int] = {}
        for number in sorted(in_streams):
            firsts.setdefault(chunk.stream_of(number), number)
        for name, first in firsts.items():
            self.touched_states.update(home.streams.demote(name, first))

    def in_lanes(self, home: Queue, chunk: Chunk) -> dict[LaneName, list[int]]:
        """Messages of a hot chunk that stand in lanes by it, and not by rows of their own: implied ones, and fronts of
        streams.
        """
        found: defaultdict[LaneName, list[int]] = defaultdict(list)
        held, streams = self.held, chunk.columns.streams if home.is_ordered else None
        for number in chunk.implied():
            if number not in held and not (streams and streams[number & BLOCK_MASK]):
                found[chunk.lane_of(number)].append(number)
        for name in set(streams or ()) & home.streams.by_name.keys():
            front = home.streams.front_of(name)
            if front >> BLOCK_SHIFT == chunk.block and not self.is_cold_member(front):
                found[self.lane_and_weight(front)[0]].append(front)
        return found

    def _demote_lanes(self, home: Queue, chunk: Chunk, in_lanes: Mapping[LaneName, Sequence[int]]) -> None:
        """Rows of lanes lead to these messages of a chunk, and memory has only what stands before them."""
        runs, home_id, firsts = self.changes.runs, chunk.queue_id, chunk.first_of_lanes()
        is_ordered = home.is_ordered and chunk.columns.streams is not None
        latest: dict[str, int] = {}
        for lane, numbers in in_lanes.items():
            latest[lane[0]] = max(numbers[-1], latest.get(lane[0], 0))
        for lane, numbers in in_lanes.items():
            weight = self.lane_and_weight(latest[lane[0]])[1]
            fronts = [number for number in numbers if is_ordered and chunk.stream_of(number)]
            if len(fronts) < len(numbers):
                first = firsts[lane]
                runs[home_id, home_id, lane, first, False] = RunRow(first, len(numbers) - len(fronts), weight)
            for number in fronts:
                own_weight = self.lane_and_weight(number)[1]
                runs[home_id, home_id, lane, self.place_of(number), True] = RunRow(number, 0, own_weight)
            for number in home.schedule.demote(lane, min(map(self.place_of, numbers))):
                if self._is_hot_front(home_id, number):
                    # It waits for the messages on disk that go before it.
                    home.schedule.insert(lane, weight, number)
                self.touched_states.add(number)

    def _is_hot_front(self, home_id: int, number: int) -> bool:
        """Of a message that stands in a lane: whether it does so for a stream, and must be in memory."""
        known = self.chunks.get(number >> BLOCK_SHIFT)
        if known is None or known.is_cold:
            return False
        return self.stream_of(number, home_id) != "" and not self.is_cold_member(number)

    def _must_stay_hot(self, home: Queue, chunk: Chunk) -> bool:
        """Whether a chunk that has no implied message any more has messages in streams that stay in memory with it.
        Those that wait need not, unless others of their streams behind them do.
        """
        if chunk.columns.streams is None:
            return False
        members = self._hot_members(home, chunk)
        if not all(map(self.waits, members)):
            return True
        return any(self._has_hot_behind(home, chunk, name) for name in set(map(chunk.stream_of, members)))

    def _hot_members(self, home: Queue, chunk: Chunk) -> list[int]:
        """The messages of a chunk without implied messages that are in streams and in memory with it."""
        if chunk.is_cold or chunk.columns.streams is None or not home.is_ordered:
            return []
        in_streams = [number for number in chunk.with_own_rows() if chunk.stream_of(number)]
        return [
            number for number in in_streams if number in self.own and _is_hot_member(chunk, self.own[number])
        ]

    def _has_hot_behind(self, home: Queue, chunk: Chunk, name: str) -> bool:
        """Whether a later hot chunk has a message of the stream."""
        stream = home.streams.by_name.get(name)
        numbers = stream.numbers if isinstance(stream, Stream) else ()
        return any(one >> BLOCK_SHIFT > chunk.block and not self.is_cold_member(one) for one in numbers)

    def _delete_runs(self, chunk: Chunk) -> None:
        for lane, first in chunk.first_of_lanes().items():
            self.changes.runs[chunk.queue_id, chunk.queue_id, lane, first, False] = None

    def let_go(self, new_chunks: Sequence[Chunk] = (), thinned: Iterable[tuple[Chunk, Chunk]] = ()) -> None:
        """After a transaction: messages that memory need not hold, and payloads for which there is no room. In a queue
        the oldest messages are wanted first, so nothing makes way for those of new chunks.
        """
        for chunk in new_chunks:
            if chunk.payload_bytes > PAGE_BYTES:
                self._keep_body(chunk)
        for before, after in thinned:
            if before.payloads is None and not after.is_inline:
                # They were read to be written, and nobody wants them.
                after.payloads = None
            self._keep_body(after)
        while self.read_bodies:
            self._keep_body(self.read_bodies.popleft())
        if self.used_streams:
            self._let_streams_go()
        if self.touched_states:
            for number in self.touched_states:
                state = self.own.get(number)
                if state is not None and not self.is_kept(number, state):
                    del self.own[number]
            self.touched_states.clear()
        if self.demoted:
            for chunk in self.demoted:
                self._drop_cold(chunk)
            self.demoted.clear()
        if self.cached_messages <= cold.CACHED_MESSAGES:
            return
        # While a backlog drains, cold chunks have the room that the hot ones before them leave.
        room = cold.CACHED_MESSAGES + max(0, self.max_hot_messages - self.used_room)
        if self.cached_messages > room:
            for chunk in new_chunks:
                self._drop_cold(chunk)
        if self.cached_messages > room:
            self._let_cold_chunks_go(room - room // 256)

    def _let_cold_chunks_go(self, left: int) -> None:
        """Some more than must go, so that not every transaction of a full cache has to look for the first one."""
        while self.cached_messages > left and self.cold_chunks:
            for chunk in list(islice(self.cold_chunks.values(), _LET_GO_AT_ONCE)):
                if self.cached_messages <= left:
                    return
                self._drop_cold(chunk)

    def _let_streams_go(self) -> None:
        """Streams of which memory need not hold any message stay while there is room."""
        for queue_id, name in self.used_streams:
            queue = self.by_id.get(queue_id)
            if queue is not None:
                self._count_stream(queue, name)
        self.used_streams.clear()
        if self.cached_members <= cold.CACHED_MESSAGES:
            return
        left = cold.CACHED_MESSAGES - cold.CACHED_MESSAGES // 256
        while self.cached_members > left and self.cold_streams:
            for queue_id, name in list(islice(self.cold_streams, _LET_GO_AT_ONCE)):
                if self.cached_members <= left:
                    return
                stream = self.cold_streams.pop((queue_id, name))
                self.cached_members -= stream.counted
                stream.counted = 0
                self._let_stream_go(self.by_id[queue_id], name, stream.numbers)

    def _count_stream(self, queue: Queue, name: str) -> None:
        """Count the messages of a stream that memory need not hold; a single one is not kept."""
        known = self.cold_streams.pop((queue.record.queue_id, name), None)
        if known is not None:
            self.cached_members -= known.counted
            known.counted = 0
        stream = queue.streams.by_name.get(name)
        if isinstance(stream, int):
            if self.is_cold_member(stream):
                self._let_stream_go(queue, name, [stream])
        elif stream is not None and stream.numbers and self.is_cold_member(stream.numbers[0]):
            self.cold_streams[queue.record.queue_id, name] = stream
            # A stream costs memory beside its messages.
            stream.counted = len(stream.numbers) + 1
            self.cached_members += stream.counted

    def _let_stream_go(self, queue: Queue, name: str, numbers: Sequence[int]) -> None:
        queue.streams.let_go(name)
        for number in numbers:
            state = self.own.get(number)
            if state is not None and not self.is_kept(number, state):
                del self.own[number]

    def _keep_body(self, chunk: Chunk) -> None:
        if chunk.is_inline or chunk.payloads is None or chunk.kept_bytes:
            return
        size = chunk.payload_bytes
        if self.chunks.get(chunk.block) is not chunk:
            return
        if self.body_bytes + size > self.max_body_bytes:
            chunk.payloads = None
            return
        chunk.kept_bytes = size
        self.body_bytes += size

    def _drop_body(self, chunk: Chunk) -> None:
        """The chunk leaves memory."""
        self.body_bytes -= chunk.kept_bytes
        chunk.kept_bytes = 0

    def is_kept(self, number: int, state: OwnState) -> bool:
        """Whether a lease, or the part of a stream or a lane in memory, has the message."""
        if number in self.held:
            return True
        chunk = self.chunks.get(number >> BLOCK_SHIFT)
        if state.done_ms or (state.due_ms and chunk is not None and chunk.columns.streams is None):
            return False
        queue = self.by_id[state.queue_id]
        if stream := self.stream_of(number, state.queue_id):
            is_hot = _is_hot_member(self.chunk_of(number), state)
            is_known = is_hot or queue.streams.knows(stream, number, state.seq or number)
            return is_known or self._stands(queue, number, state)
        if state.due_ms:
            return False
        is_dead = queue.is_dead_letter_queue
        lane = DEAD_LANE if is_dead else _own_lane(self.chunk_of(number), number, state)
        return not self._is_behind_memory(queue, lane, state)

    def _stands(self, queue: Queue, number: int, state: OwnState) -> bool:
        """Whether a message stands in the part of its lane in memory."""
        if state.due_ms:
            return False
        return queue.schedule.has(_own_lane(self.chunk_of(number), number, state), number, state.place)

    def _is_behind_memory(self, queue: Queue, lane: LaneName, state: OwnState) -> bool:
        """Whether a ready message is in the part of its lane that only the disk has."""
        return 0 < queue.schedule.cold_from(lane) <= state.place

    def _lane_found(self, fact: LaneFound) -> None:
        schedule = self.by_id[fact.queue_id].schedule
        for number in fact.numbers:
            schedule.insert(fact.lane, fact.weight or 1, number)
        if fact.cold_from:
            schedule.add_cold(fact.lane, fact.weight or 1, fact.cold_from)
        elif fact.weight:
            schedule.join(fact.lane, fact.weight)

    def _join_streams(self, queue: Queue, chunk: Chunk, ready: Sequence[int]) -> Sequence[int]:
        """At open: messages of streams join them, and those without a stream are returned. The order of the streams is
        known when all messages are: `update_fronts` finds the fronts.
        """
        for number in chunk.implied():
            if name := chunk.stream_of(number):
                queue.streams.found(name, number)
        return [number for number in ready if not chunk.stream_of(number)]

    def _open_streams(self, queue: Queue, chunk: Chunk, numbers: Sequence[int]) -> Sequence[int]:
        """New messages join their streams. Returns those that enter their lanes: without a stream, or the first of a
        new one.
        """
        if not chunk.is_cold:
            return queue.streams.open(chunk, numbers)
        begun = queue.streams.prepare(chunk)
        self._add_members(chunk, numbers)
        return queue.streams.open_on_disk(chunk, numbers, begun)

    def _add_members(self, chunk: Chunk, numbers: Sequence[int]) -> None:
        """Rows of streams that lead to the messages of a new cold chunk."""
        counts = Counter([chunk.stream_of(number) for number in numbers if chunk.state_of(number) == IMPLIED])
        del counts[""]
        for name, count in counts.items():
            first = chunk.members_of(name)[0]
            key = chunk.lane_of(first)[0]
            self._member_rows(chunk, name)[first, False] = MemberRow(first, count, key)
        for number in numbers:
            if chunk.state_of(number) == OWN and (name := chunk.stream_of(number)):
                self._note_member(chunk, number, name)

    def _note_member(self, chunk: Chunk, number: int, stream: str) -> None:
        """A message of a stream has a row of its own: if memory need not hold it, it has one of its stream too."""
        if self.is_cold_member(number):
            key = self.lane_and_weight(number)[0][0]
            row = MemberRow(number, 0, key)
            self._member_rows(chunk, stream)[self.seq_of(number), True] = row

    def _forget_member(self, chunk: Chunk, number: int, stream: str) -> None:
        """A message with a row of its own leaves its stream."""
        if self.is_cold_member(number):
            self._member_rows(chunk, stream)[self.seq_of(number), True] = None

    def _member_rows(self, chunk: Chunk, stream: str) -> dict[tuple[int, bool], MemberRow | None]:
        """Rows of a stream, some of which change."""
        home_id = chunk.queue_id
        self.by_id[home_id].streams.row_changed(stream)
        return self.changes.members.setdefault((home_id, stream), {})

    def _mark(self, chunk: Chunk, numbers: Sequence[int], state: int) -> None:
        """Messages of a chunk are implied no longer: the row of a stream goes with the last one that was."""
        names: set[str] = set()
        if chunk.is_cold and chunk.columns.streams is not None and self.by_id[chunk.queue_id].is_ordered:
            names = {chunk.stream_of(number) for number in numbers if chunk.state_of(number) == IMPLIED}
            names.discard("")
        chunk.mark(numbers, state)
        self.changes.chunks.add(chunk)
        for name in names:
            if not chunk.has_implied_of(name):
                self._member_rows(chunk, name)[chunk.members_of(name)[0], False] = None

    def update_fronts(self) -> None:
        """Once all facts of a request are known: let other messages of the same keys go out in the place of those
        that were settled, and let the front of each touched stream stand in its lane.
        """
        if self.thinned_lanes:
            # A key whose last lane is on disk takes no more turns than one whose lanes are in memory.
            self._end_dry_lanes()
        if self.ended_deliveries:
            for _, queue_id, key in sorted(self.ended_deliveries):
                self.by_id[queue_id].schedule.settled(key)
            self.ended_deliveries = []
        if self.touched_streams:
            self._move_fronts()

    def fill_lanes(self) -> None:
        """At open, once all hot chunks are there: their ready messages stand in their lanes."""
        for queue_id, lanes in self.found_lanes.items():
            schedule = self.by_id[queue_id].schedule
            # The latest message of a key sets its weight, whichever of its lanes it is in.
            latest: dict[str, int] = {}
            for lane, numbers in lanes.items():
                latest[lane[0]] = max(numbers[-1], latest.get(lane[0], 0))
            for lane, numbers in lanes.items():
                number = latest[lane[0]]
                schedule.add(lane, self.chunks[number >> BLOCK_SHIFT].weight_of(number), numbers)
        self.found_lanes.clear()

    def place_fronts(self, queues: Iterable[Queue]) -> None:
        """At open, once lanes are in memory up to their last hot message. Rows of lanes lead to the fronts that memory
        need not hold.
        """
        for (queue_id, _), stream in self.touched_streams.items():
            self.by_id[queue_id].streams.move_front(stream)
        self.touched_streams.clear()
        for queue in queues:
            hot = [number for number in queue.streams.fronts() if not self.is_cold_member(number)]
            for number in sorted(hot, key=self.seq_of):
                queue.schedule.insert(*self.lane_and_weight(number), number)

    def _end_dry_lanes(self) -> None:
        """A lane without messages ends at once, and does not wait for its turn to find out that it has none."""
        lanes: defaultdict[int, list[LaneName]] = defaultdict(list)
        for queue_id, lane in self.thinned_lanes:
            lanes[queue_id].append(lane)
        self.thinned_lanes.clear()
        for queue_id, thinned in lanes.items():
            queue = self.by_id[queue_id]
            while dry := [lane for lane in thinned if queue.schedule.ran_dry(lane)]:
                read_on(self, self._store, queue, dict.fromkeys(dry, 1))

    def _move_fronts(self) -> None:
        entering: list[tuple[int, int, int]] = []
        for (queue_id, name), stream in self.touched_streams.items():
            queue = self.by_id[queue_id]
            before, after = queue.streams.move_front(stream)
            if before:
                self._leave_lane(queue, before)
            if after:
                entering.append((self.seq_of(after), queue_id, after))
            row = stream.row()
            if row is not None or stream.has_row:
                self.changes.streams[queue_id, name] = row
                stream.has_row = row is not None
        if self.thinned_lanes:
            # A lane without messages is gone before the next front enters it, as it is where memory has all of it.
            self._end_dry_lanes()
        for _, queue_id, number in sorted(entering):
            self._enter_lane(self.by_id[queue_id], number)
        self.touched_streams.clear()

    def _enter_lane(self, queue: Queue, number: int) -> None:
        """A message is the front of its stream now."""
        lane, weight = self.lane_and_weight(number)
        if self.is_cold_member(number):
            place = self.place_of(number)
            self.changes.runs[queue.home_id, queue.home_id, lane, place, True] = RunRow(number, 0, weight)
            if 0 < queue.schedule.cold_from(lane) <= place:
                return
        queue.schedule.insert(lane, weight, number)

    def _leave_lane(self, queue: Queue, number: int) -> None:
        """A message is no longer the front of its stream."""
        lane = self.lane_and_weight(number)[0]
        self.thinned_lanes[queue.record.queue_id, lane] = None
        if self.is_cold_member(number):
            place = self.place_of(number)
            self.changes.runs[queue.home_id, queue.home_id, lane, place, True] = None
            if 0 < queue.schedule.cold_from(lane) <= place:
                return
        queue.schedule.remove(lane, number)

    def _note_life(self, queue: Queue, chunk: Chunk, end_ms: int) -> None:
        self.changes.lives[chunk.queue_id, end_ms, chunk.first] = True
        queue.next_life_ms = min(queue.next_life_ms or end_ms, end_ms)

    def _lives_ended(self, fact: LivesEnded) -> None:
        self.by_id[fact.queue_id].next_life_ms = fact.next_ms
        for end_ms, first in fact.ended:
            self.changes.lives[fact.queue_id, end_ms, first] = False

    def _keys_remembered(self, fact: KeysRemembered) -> None:
        queue = self.by_id[fact.queue_id]
        for key, row in fact.rows.items():
            self.changes.dedup[fact.queue_id, key] = row
            if row.until_ms:
                queue.next_window_ms = min(queue.next_window_ms or row.until_ms, row.until_ms)

    def _windows_ended(self, fact: WindowsEnded) -> None:
        self.by_id[fact.queue_id].next_window_ms = fact.next_ms
        for until_ms, key in fact.ended:
            self.changes.ended_windows.add((fact.queue_id, until_ms, key))

    def _forget_key(self, chunk: Chunk, number: int) -> None:
        """A message is about to leave its queue for good: its dedup key may be used again, if it was remembered
        as long as the message lives. A message that died or is done may have lost its key, and another one may have
        it.
        """
        key, state = chunk.live_key(number), self.state_of(number)
        if key and _in_first_life(state, chunk) and (not state.done_ms or state.keeps_key):
            self.changes.dedup[chunk.queue_id, key] = None

    def _schedule(self, queue: Queue, chunk: Chunk, numbers: Sequence[int]) -> None:
        columns = chunk.columns
        add = self._cold_lanes_of(queue, chunk) if chunk.has_runs else queue.schedule.add
        if columns.lane_at is None:
            if numbers:
                weights = columns.weights
                weight = weights if isinstance(weights, int) else weights[numbers[-1] & BLOCK_MASK]
                add(columns.lanes[0], weight, numbers)
            return
        is_whole = len(numbers) == chunk.count
        if is_whole and len(columns.lanes) == chunk.count:
            if (
                not chunk.has_runs
                and columns.weights == 1
                and queue.schedule.add_lone(columns.lanes, numbers)
            ):
                return
            filled = [(lane, [number]) for lane, number in zip(columns.lanes, numbers, strict=True)]
        else:
            # Lanes join the ring in the order of the messages that enter them.
            parts: defaultdict[int, list[int]] = defaultdict(list)
            lane_at, first = columns.lane_at, chunk.first
            entering = lane_at if is_whole else [lane_at[number - first] for number in numbers]
            for number, at in zip(numbers, entering, strict=True):
                parts[at].append(number)
            filled = [(columns.lanes[at], part) for at, part in parts.items()]
        if isinstance(columns.weights, int):
            for lane, part in filled:
                add(lane, columns.weights, part)
            return
        # The latest message of a key sets its weight, whichever of its lanes it is in.
        latest: dict[str, int] = {}
        for lane, part in filled:
            latest[lane[0]] = max(part[-1], latest.get(lane[0], 0))
        for lane, part in filled:
            add(lane, chunk.weight_of(latest[lane[0]]), part)

    def _cold_lanes_of(self, queue: Queue, chunk: Chunk) -> Callable[[LaneName, int, Sequence[int]], None]:
        """Adds messages of a cold chunk to a lane: as a row that leads to them."""
        firsts, runs, home_id = chunk.first_of_lanes(), self.changes.runs, chunk.queue_id
        streams = chunk.columns.streams if queue.is_ordered else None

        def add(lane: LaneName, weight: int, numbers: Sequence[int]) -> None:
            first, fronts = firsts[lane], list[int]()
            if streams is not None:
                fronts = [number for number in numbers if streams[number & BLOCK_MASK]]
            if len(fronts) < len(numbers):
                count = len(numbers) - len(fronts)
                runs[home_id, home_id, lane, first, False] = RunRow(first, count, weight, chunk.count == 1)
            for number in fronts:
                runs[home_id, home_id, lane, number, True] = RunRow(number, 0, weight)
            queue.schedule.add_cold(lane, weight, numbers[0])

        return add

    def _claimed(self, fact: Claimed) -> None:
        lease, numbers, own = fact.lease, fact.numbers, self.own
        plan, terms = fact.plan, lease.terms
        queue = self.by_id[terms.queue_id]
        if queue.served_ms < terms.claimed_ms:
            queue.served_ms = terms.claimed_ms
        if plan is not None:
            queue.schedule.apply(plan)
            if plan.buckets:
                self.changes.buckets.update(plan.buckets)
        self._hold(queue, lease, numbers)
        if plan is not None:
            counts = self.changes.counts[terms.queue_id] = queue.counts
            counts.ready -= len(numbers)
            counts.leased += len(numbers)
        if queue.streams.by_name or queue.streams.may_be_on_disk:
            self._lease_in_streams(queue, numbers, is_new=plan is not None)
        if plan is None and queue.record.config.max_unsettled_per_key:
            for number in numbers:
                queue.schedule.note_unsettled(self._lane_in(queue, number)[0][0])
        for number in own.keys() & set(numbers) if own else ():
            state, chunk = own[number], self.chunks.get(number >> BLOCK_SHIFT) or self.chunk_of(number)
            # The front of a stream has another row, if any.
            if fact.plan is not None and not self._is_member(queue, chunk, number):
                lane = DEAD_LANE if queue.is_dead_letter_queue else _own_lane(chunk, number, state)
                self.changes.runs[queue.home_id, terms.queue_id, lane, state.place, True] = None
            leased = msgspec.structs.replace(state, claim_id=terms.claim_id)
            own[number] = self.changes.own[chunk.queue_id, number] = leased

    def _is_member(self, queue: Queue, chunk: Chunk, number: int) -> bool:
        """Whether a stream orders the message."""
        return chunk.columns.streams is not None and self.stream_of(number, queue.record.queue_id) != ""

    def _lease_in_streams(self, queue: Queue, numbers: Sequence[int], *, is_new: bool) -> None:
        for number in numbers:
            stream = self.stream_of(number, queue.record.queue_id)
            if not stream:
                continue
            stood = queue.streams.lease(stream, number)
            if stood and is_new and self.is_cold_member(number):
                lane = self.lane_and_weight(number)[0]
                self.changes.runs[queue.home_id, queue.home_id, lane, self.place_of(number), True] = None

    def _hold(self, queue: Queue, lease: GroupLease, numbers: Sequence[int]) -> None:
        terms = lease.terms
        if len(numbers) == 1:
            self.held[numbers[0]] = lease
        else:
            self.held.update(dict.fromkeys(numbers, lease))
        lease.live = len(numbers)
        queue.leases[terms.group] = lease
        if terms.expires_ms != NEVER_EXPIRES_MS:
            heappush(self.expiries, (terms.expires_ms, terms.claim_id, lease))
        of_consumer = self.by_consumer.get(terms.consumer)
        if of_consumer is None:
            of_consumer = self.by_consumer[terms.consumer] = set()
        of_consumer.add(lease)
        if terms.token:
            self.by_token.setdefault(terms.token, set()).add(lease)
        self.changes.new_leases[terms.group] = lease

    def _completed(self, fact: LeaseCompleted) -> None:
        lease, numbers, own = fact.lease, fact.numbers, self.own
        queue = self.by_id[lease.terms.queue_id]
        limited = queue.record.config.max_unsettled_per_key
        held = self.held
        if queue.streams.may_be_on_disk:
            for number in numbers:
                if stream := self.stream_of(number, lease.terms.queue_id):
                    queue.streams.meet(stream)
        for number in numbers:
            del held[number]
        for number in numbers if limited else ():
            self._note_ended(queue, number)
        self._leave(lease, len(numbers))
        counts = self.changes.counts[lease.terms.queue_id] = queue.counts
        counts.leased -= len(numbers)
        whole = self.chunks.get(numbers[0] >> BLOCK_SHIFT)
        if whole is not None and whole.count == len(numbers) and self._is_untouched(whole, numbers):
            self._end_untouched(queue, whole)
            return
        for block, members in by_chunk(numbers):
            chunk = self.chunks.get(block) or self.chunk_of(block << BLOCK_SHIFT)
            columns, size = chunk.columns, _bytes_of(chunk, members)
            counts.bytes -= size
            for number in members if columns.live_keys else ():
                self._forget_key(chunk, number)
            if columns.streams is not None:
                for number in members:
                    if stream := self.stream_of(number, lease.terms.queue_id):
                        queue.streams.leave(stream, number)
                        if number in own:
                            self._forget_member(chunk, number, stream)
            for number in members if own else ():
                if own.pop(number, None) is not None:
                    self.changes.own[chunk.queue_id, number] = None
            self._gone(chunk, members, size)

    def _is_untouched(self, chunk: Chunk, numbers: Sequence[int]) -> bool:
        """Whether these, as many as the chunk has, are its messages, to all of which nothing has happened but the claim
        that held them; and no other row depends on them.
        """
        columns = chunk.columns
        if chunk.states is not None or chunk.is_cold or chunk.body != chunk.first:
            return False
        if columns.streams is not None or columns.expires is not None or columns.live_keys is not None:
            return False
        return min(numbers) >= chunk.first and max(numbers) < chunk.first + chunk.count

    def _end_untouched(self, home: Queue, chunk: Chunk) -> None:
        """The same as `_gone` for all messages of a chunk, without its questions."""
        size = chunk.payload_bytes if chunk.columns.headers is None else chunk.total_bytes
        home.counts.bytes -= size
        chunk.live, chunk.dead_bytes = 0, size
        chunk.states = bytearray((GONE,)) * chunk.count
        self.hot_messages -= chunk.count
        if chunk.kept_bytes:
            self._drop_body(chunk)
        del self.chunks[chunk.block]
        home.blocks.discard(chunk.block)
        self.changes.chunks.add(chunk)
        self.changes.ended_blocks.add(chunk.block)

    def _gone(self, chunk: Chunk, members: Sequence[int], size: int) -> None:
        chunk.live -= len(members)
        chunk.dead_bytes += size
        columns = chunk.columns
        if not chunk.is_cold:
            weight = 1 if columns.streams is None else cold.WEIGHT_IN_STREAM
            self.hot_messages -= weight * len(members)
        self._mark(chunk, members, GONE)
        if chunk.live:
            if is_sparse(chunk):
                self.sparse[chunk.block] = chunk.queue_id
        else:
            if chunk.body != chunk.first and not chunk.is_inline:
                self.changes.staged_pages[chunk.queue_id, chunk.body] = None
            if columns.expires is not None:
                for end_ms in chunk.ends_of_life():
                    self.changes.lives[chunk.queue_id, end_ms, chunk.first] = False
            self._end_chunk(chunk)

    def _end_chunk(self, chunk: Chunk) -> None:
        self.changes.ended_blocks.add(chunk.block)
        home = self.by_id[chunk.queue_id]
        if not chunk.is_cold:
            if chunk.kept_bytes:
                self._drop_body(chunk)
            del self.chunks[chunk.block]
            home.blocks.discard(chunk.block)
            return
        self._drop_cold(chunk)
        self._count_cold(home, -1)
        if chunk.has_runs:
            self._delete_runs(chunk)

    def _split(self, fact: LeaseSplit) -> None:
        self._leave(fact.before, len(fact.numbers))
        self._hold(self.by_id[fact.after.terms.queue_id], fact.after, fact.numbers)

    def _moved(self, fact: MessageMoved) -> None:
        number = fact.number
        if fact.why is None:
            self._load(number, fact.state)
            return
        chunk, before = self.chunk_of(number), self.state_of(number)
        source = place_of(before, is_leased=number in self.held)
        check_step(fact.why, source, place_of(fact.state, is_leased=False))
        stays = fact.state.queue_id == before.queue_id and fact.why != "completed"
        self._take_away(chunk, number, before, stays=stays)
        if fact.why in ("buried", "completed") and not fact.state.keeps_key:
            self._forget_key(chunk, number)
        self._mark_own(chunk, number)
        self._enter(chunk, number, fact.state, fact.why)

    def _moved_together(self, fact: MessagesMoved) -> None:
        """As `_moved` for each of them, which decides wherever anything but lanes and times is to be changed."""
        queue, numbers, states, lease = self.by_id[fact.queue_id], fact.numbers, fact.states, fact.lease
        before = [] if lease is not None else [self.state_of(number) for number in numbers]
        if not self._move_alike(queue, fact, before):
            for one in fact.one_by_one():
                self._moved(one)
            return
        home_id, counts, changes, ready = (
            queue.home_id,
            self._count(queue),
            self.changes,
            fact.why != "delayed",
        )
        check_step(fact.why, *_STEPS_TOGETHER[fact.why])
        if lease is None:
            counts.waiting -= len(numbers)
            self.known_waits.ended(fact.queue_id, numbers)
            for number, state in zip(numbers, before, strict=True):
                changes.due[home_id, state.due_ms, number] = False
        else:
            counts.leased -= len(numbers)
            for number in numbers:
                del self.held[number]
            self._leave(lease, len(numbers))
            for block, members in by_chunk(numbers):
                chunk = self.chunks[block]
                implied = [number for number in members if chunk.state_of(number) == IMPLIED]
                if implied:
                    self._mark(chunk, implied, OWN)
        for number, state in zip(numbers, states, strict=True):
            self.own[number] = changes.own[home_id, number] = state
        if ready:
            counts.ready += len(numbers)
            self._stand_at_tail(queue, numbers, states)
            return
        self._wait(queue, dict(zip(numbers, states, strict=True)))

    def _move_alike(self, queue: Queue, fact: MessagesMoved, before: Sequence[OwnState]) -> bool:
        """Whether nothing follows from these moves for streams, lives, and keys with a limit; and all of them are where
        such a move begins.
        """
        if queue.is_dead_letter_queue or queue.record.config.max_unsettled_per_key:
            return False
        for block in {number >> BLOCK_SHIFT for number in fact.numbers}:
            columns = self.chunk_of(block << BLOCK_SHIFT).columns
            if columns.expires is not None or (columns.streams is not None and queue.is_ordered):
                return False
        if fact.lease is None:
            waits = all(state.due_ms and state.queue_id == fact.queue_id for state in before)
            return waits and self.held.keys().isdisjoint(fact.numbers)
        return not fact.lease.is_numbered and [*map(self.held.get, fact.numbers)].count(fact.lease) == len(
            fact.numbers
        )

    def _stand_at_tail(self, queue: Queue, numbers: Sequence[int], states: Sequence[OwnState]) -> None:
        """Messages without a stream take places at the tails of their lanes, as `_stand` says it of one."""
        runs, home_id, queue_id = self.changes.runs, queue.home_id, queue.record.queue_id
        lanes: defaultdict[LaneName, list[int]] = defaultdict(list)
        #: The latest message of a key sets its weight, whichever of its lanes it is in.
        weights: dict[str, int] = {}
        for number, state in zip(numbers, states, strict=True):
            chunk = self.chunks[number >> BLOCK_SHIFT]
            lane, weight = _own_lane(chunk, number, state), state.weight or chunk.weight_of(number)
            runs[home_id, queue_id, lane, state.place, True] = RunRow(number, 0, weight)
            lanes[lane].append(number)
            weights[lane[0]] = weight
        schedule, has_room = queue.schedule, self._has_room(queue)
        for lane, some in lanes.items():
            if has_room and not (schedule.cold_lanes and schedule.cold_from(lane)):
                schedule.add(lane, weights[lane[0]], some)
                # Memory has them as long as they stand in it.
                self.touched_states.difference_update(some)
            else:
                schedule.add_cold(lane, weights[lane[0]], self.own[some[0]].place)
                self.touched_states.update(some)

    def _load(self, number: int, state: OwnState) -> None:
        """At open: a message with a row of its own is leased, as a fact that follows says, or in a stream."""
        self._restate(number, state)
        stream = self.stream_of(number, state.queue_id)
        if stream and _is_hot_member(self.chunk_of(number), state):
            self.by_id[state.queue_id].streams.join(stream, number)

    def _take_away(self, chunk: Chunk, number: int, state: OwnState, *, stays: bool = False) -> None:
        """The message leaves the place where it was, for another place or for good; or it stays in its queue."""
        queue = self.by_id[state.queue_id]
        if state.done_ms:
            self._count(queue).done -= 1
            self.changes.done[chunk.queue_id, state.done_ms, number] = False
            return
        stream = self.stream_of(number, state.queue_id)
        # Of a stream only the front stands in a lane.
        is_front = queue.streams.move(stream, number) if stream else False
        counts, lease = self._count(queue), self.held.pop(number, None)
        if lease is not None:
            if queue.record.config.max_unsettled_per_key:
                self._note_ended(queue, number)
            self._leave(lease, 1)
            counts.leased -= 1
            if lease.is_numbered:
                # It kept its chunk from being written anew.
                self._note_sparse(chunk)
        elif state.due_ms:
            counts.waiting -= 1
            self.known_waits.ended(state.queue_id, [number])
            self.changes.due[chunk.queue_id, state.due_ms, number] = False
        else:
            counts.ready -= 1
            if is_front:
                self._leave_lane(queue, number)
            elif not stream:
                self._leave_plain_lane(queue, chunk, number, state)
        if stream and chunk.state_of(number) == OWN:
            self._forget_member(chunk, number, stream)
        if stream and not stays:
            queue.streams.leave(stream, number)
            if not chunk.has_implied():
                # It may have been the last one that kept its chunk in memory.
                self.changes.chunks.add(chunk)
        counts.bytes -= chunk.columns.size_of(number & BLOCK_MASK)

    def _leave_plain_lane(self, queue: Queue, chunk: Chunk, number: int, state: OwnState) -> None:
        if chunk.state_of(number) == OWN:
            self._delete_run(queue, number)
        lane = self._lane_in(queue, number)[0]
        self.thinned_lanes[queue.record.queue_id, lane] = None
        if not self._is_behind_memory(queue, lane, state):
            queue.schedule.remove(lane, number)

    def _ended(self, fact: MessageGone) -> None:
        number = fact.number
        chunk, state = self.chunk_of(number), self.state_of(number)
        check_step(fact.why, place_of(state, is_leased=number in self.held), NOWHERE)
        self._forget_key(chunk, number)
        self._take_away(chunk, number, state)
        if self.own.pop(number, None) is not None:
            self.changes.own[chunk.queue_id, number] = None
        self._gone(chunk, [number], chunk.columns.size_of(number & BLOCK_MASK))

    def _mark_own(self, chunk: Chunk, number: int) -> None:
        if chunk.state_of(number) != OWN:
            self._mark(chunk, [number], OWN)

    def _note_ended(self, queue: Queue, number: int) -> None:
        key = self._lane_in(queue, number)[0][0]
        self.ended_deliveries.append((self.place_of(number), queue.record.queue_id, key))

    def _enter(self, chunk: Chunk, number: int, state: OwnState, why: Move | None) -> None:
        """The message is in the queue that its state says, ready, waiting or done."""
        self._restate(number, state)
        queue = self.by_id[state.queue_id]
        if state.done_ms:
            self._count(queue).done += 1
            self.changes.done[chunk.queue_id, state.done_ms, number] = True
            queue.first_done_ms = min(queue.first_done_ms or state.done_ms, state.done_ms)
            return
        end_ms = 0 if chunk.columns.expires is None else self.end_of_life(number)
        if end_ms:
            # Its row may be gone: lives that end while their messages are leased are passed over.
            self._note_life(queue, chunk, end_ms)
        counts = self._count(queue)
        counts.bytes += chunk.columns.size_of(number & BLOCK_MASK)
        if state.due_ms:
            counts.waiting += 1
            self.known_waits.began(state.queue_id, {number: state}, counts.waiting)
            self.changes.due[chunk.queue_id, state.due_ms, number] = True
            queue.next_due_ms = min(queue.next_due_ms or state.due_ms, state.due_ms)
        else:
            counts.ready += 1
        self._stand(number, state, why)

    def _stand(self, number: int, state: OwnState, why: Move | None) -> None:
        """The message takes its place in its stream, or in its lane if it can be delivered."""
        if state.done_ms:
            return
        queue = self.by_id[state.queue_id]
        stream = self.stream_of(number, state.queue_id)
        if stream:
            if why is not None:
                # A new message has joined with its chunk.
                queue.streams.join(stream, number)
            self._note_member(self.chunk_of(number), number, stream)
        elif not state.due_ms and not state.claim_id:
            lane, weight = self._lane_in(queue, number)
            key = (queue.home_id, state.queue_id, lane, state.place, True)
            self.changes.runs[key] = RunRow(number, 0, weight)
            # A message at the tail is the latest of its key, and sets its weight; a released one is not.
            is_latest = why != "released"
            if self._is_behind_memory(queue, lane, state) or (is_latest and not self._has_room(queue)):
                if is_latest:
                    queue.schedule.add_cold(lane, weight, state.place)
            else:
                queue.schedule.insert(lane, weight, number, is_latest=is_latest)

    def _has_room(self, queue: Queue) -> bool:
        """Whether one more message at the tail of a lane may be in memory. Of dead letters only the first ones are:
        nobody may ever ask for the others.
        """
        if queue.is_dead_letter_queue and queue.schedule.held >= cold.WINDOW_MESSAGES:
            return False
        return self.used_room <= self.max_hot_messages

    def _delete_run(self, queue: Queue, number: int) -> None:
        """A ready message with a row of its own leaves its lane."""
        if self.stream_of(number, queue.record.queue_id):
            return
        place, lane = self.place_of(number), self._lane_in(queue, number)[0]
        self.changes.runs[queue.home_id, queue.record.queue_id, lane, place, True] = None

    def _lane_in(self, queue: Queue, number: int) -> tuple[LaneName, int]:
        return (DEAD_LANE, 1) if queue.is_dead_letter_queue else self.lane_and_weight(number)

    def _restate(self, number: int, state: OwnState) -> None:
        self.own[number] = state
        self.touched_states.add(number)
        chunk = self.chunks.get(number >> BLOCK_SHIFT) or self.chunk_of(number)
        self.changes.own[chunk.queue_id, number] = state

    def _leave(self, lease: GroupLease, members: int) -> None:
        lease.live -= members
        if lease.live < 0:
            raise BrokenInvariant(f"claim {lease.terms.claim_id:x} lost more members than it had")
        if lease.live:
            return
        terms = lease.terms
        self._ended_expiries += 1
        if self._ended_expiries > _MIN_ENDED and 2 * self._ended_expiries > len(self.expiries):
            self._forget_ended_expiries()
        self.changes.ended_leases[terms.group] = lease
        self.by_id[terms.queue_id].leases.pop(terms.group, None)
        _discard(self.by_consumer, terms.consumer, lease)
        if terms.token:
            _discard(self.by_token, terms.token, lease)

    def _forget_ended_expiries(self) -> None:
        self.expiries = [expiry for expiry in self.expiries if expiry[2].live]
        heapify(self.expiries)
        self._ended_expiries = 0

    def _count(self, queue: Queue) -> Counts:
        """The counts of a queue, which this transaction is about to change."""
        self.changes.counts[queue.record.queue_id] = queue.counts
        return queue.counts

    # Loading anew

    def forget(self, home_id: int) -> None:
        """Drop everything about a queue and its dead letters, which will be loaded anew."""
        self._unlink(home_id)
        self.sweep(1 + len(self._unswept))
        self.take_discarded()

    def sweep(self, limit: int) -> bool:
        """Drop some of what deleted queues left behind; False when nothing is left. Nobody asks for these states,
        because no number is given twice.
        """
        for number in self._unswept[-limit:]:
            state = self.own.get(number)
            if state is not None and state.queue_id in self._gone_queues:
                self._discarded.append(self.own.pop(number))
        del self._unswept[-limit:]
        if not self._unswept:
            self._gone_queues.clear()
        return bool(self._unswept)

    def take_discarded(self) -> list[object]:
        """What deleted queues were made of. Freeing it takes long, so let go of it without the lock."""
        discarded, self._discarded = self._discarded, []
        return discarded

    def _unlink(self, home_id: int) -> None:
        """Nobody finds a queue and its dead letters any more; `sweep` drops the states of its messages."""
        queues = [queue for queue in self.by_id.values() if queue.home_id == home_id]
        for queue in queues:
            for lease in list(queue.leases.values()):
                for number in self.members_of(lease):
                    del self.held[number]
                lease.live = 0
                _discard(self.by_consumer, lease.terms.consumer, lease)
                _discard(self.by_token, lease.terms.token, lease)
            for block in list(queue.blocks):
                chunk = self.chunks.pop(block)
                self._drop_body(chunk)
                self._discarded.append(chunk)
                if self.cold_chunks.pop(block, None) is not None:
                    self.cached_messages -= cached_weight(chunk)
                else:
                    self.hot_messages -= self.hot_weight(chunk.columns) * chunk.live
            self.known_waits.forget(queue.record.queue_id)
            self.cold_count -= queue.counts.cold
            del self.by_id[queue.record.queue_id], self.by_name[queue.name]
        self._discarded += queues
        gone = {queue.record.queue_id for queue in queues}
        self._gone_queues |= gone
        self._unswept = list(self.own)
        for touched in [touched for touched in self.touched_streams if touched[0] in gone]:
            del self.touched_streams[touched]
        for thinned in [thinned for thinned in self.thinned_lanes if thinned[0] in gone]:
            del self.thinned_lanes[thinned]
        for cached in [cached for cached in self.cold_streams if cached[0] in gone]:
            self.cached_members -= self.cold_streams.pop(cached).counted
        self.ended_deliveries = [ended for ended in self.ended_deliveries if ended[1] not in gone]


#: Where messages that move together come from, and where they go.
_STEPS_TOGETHER: dict[str, tuple[Where, Where]] = {
    "due": (Where.WAITING, Where.READY),
    "retried": (Where.LEASED, Where.READY),
    "delayed": (Where.LEASED, Where.WAITING),
}

#: One reducer for each kind of fact.
_REDUCERS: dict[type, Callable[[Memory, Any], None]] = {
    ChunkEnqueued: Memory._enqueued,
    ScatteredEnqueued: Memory._scattered,
    ChunkGrown: Memory._grown,
    ChunkDemoted: Memory._demoted,
    ChunkThinned: Memory._thinned,
    Claimed: Memory._claimed,
    LeaseCompleted: Memory._completed,
    LeaseSplit: Memory._split,
    MessageMoved: Memory._moved,
    MessagesMoved: Memory._moved_together,
    MessageRestated: Memory._restated,
    MessageGone: Memory._ended,
    PassAllowed: Memory._pass_allowed,
    KeysRemembered: Memory._keys_remembered,
    KeysForgotten: Memory._keys_forgotten,
    WindowsEnded: Memory._windows_ended,
    CountsRead: Memory._counts_read,
    ChunksRead: Memory._chunks_read,
    StatesRead: Memory._states_read,
    LaneFound: Memory._lane_found,
    LaneRead: Memory._lane_read,
    StreamRead: Memory._stream_read,
    DoneRead: Memory._done_read,
    DueRead: Memory._due_read,
    LivesEnded: Memory._lives_ended,
    ConfigChanged: Memory._config_changed,
    BucketChanged: Memory._bucket_changed,
    PagesStaged: Memory._pages_staged,
    RecordsChanged: Memory._records_changed,
    QueueStored: Memory._queue_stored,
    QueueDeleted: Memory._queue_deleted,
}


def _own_lane(chunk: Chunk, number: int, state: OwnState) -> LaneName:
    if not state.lane:
        return chunk.lane_of(number)
    return (lane_key(state.lane), *lane_throttle_keys(state.lane))


def _is_hot_member(chunk: Chunk, state: OwnState) -> bool:
    """Of a message in a stream, or of one that has left it: whether it is there, and in memory with its chunk."""
    is_there = state.queue_id == chunk.queue_id and not state.done_ms
    return is_there and not chunk.is_cold and not state.seq


def _in_first_life(state: OwnState, chunk: Chunk) -> bool:
    """Time to live and dedup key end with the first death; a redrive does not bring them back."""
    return state.queue_id == chunk.queue_id and not state.redrives


def _bytes_of(chunk: Chunk, numbers: Sequence[int]) -> int:
    columns = chunk.columns
    if len(numbers) == chunk.count:
        return chunk.payload_bytes if columns.headers is None else columns.total_bytes()
    return sum([columns.size_of(number & BLOCK_MASK) for number in numbers])


def _discard(index: dict[str, set[GroupLease]], name: str, lease: GroupLease) -> None:
    leases = index.get(name)
    if leases is not None:
        leases.discard(lease)
        # The set of consumers without a name stays: a queue of single messages would make it anew for each claim.
        if not leases and name:
            del index[name]
