"""Everything that the engine knows without reading, questions about it, and the only way to change it:
`apply(fact)`, live and at open. The table at the end has the reducer of each fact.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from fairlead.config import Settings
from fairlead.engine import cold
from fairlead.engine.cold import bring, bring_chunks, read_stream_on
from fairlead.engine.consumers import ConsumerIndex
from fairlead.engine.demotion import DemotionSearch
from fairlead.engine.known_waits import KnownWaits
from fairlead.engine.own_states import in_first_life, own_lane
from fairlead.engine.queue import DEAD_LANE, Queue
from fairlead.engine.reduce import (
    chunks,
    cooling,
    kept_chunks,
    lanes,
    leases,
    lives,
    moves,
    queues,
    records,
    states,
    streams,
)
from fairlead.engine.session_index import SessionIndex
from fairlead.engine.staged import StagedIndex
from fairlead.records.chunk import GONE, OWN, Chunk, Columns, LaneName
from fairlead.records.facts import (
    AnswerRemembered,
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
from fairlead.records.lease import GroupLease
from fairlead.records.state import Counts, OwnState
from fairlead.records.stream import Stream
from fairlead.schedule.throttle import Bucket, Buckets
from fairlead.store.changes import Changes
from fairlead.store.kv.port import KeyValueStore, Table
from fairlead.store.rows import RECORDS_IN_MEMORY
from fairlead.store.stream_rows import has_members, read_members

#: For a memory without an engine. An engine uses `body_cache_bytes` of its settings.
DEFAULT_BODY_BYTES = 64 << 20


class Memory:
    """A cache of rows. It holds all leases and lanes, all hot chunks with their streams, and the states of
    messages that are leased, or in the part of a lane or a stream in memory. `cold.py` reads others, which
    are dropped when the transaction ends.
    """

    #: An object with more than 30 attributes keeps them in a dictionary, where every access costs more.
    __slots__ = (
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
        "discarded",
        "ended_deliveries",
        "ended_expiries",
        "expiries",
        "found_lanes",
        "gone_queues",
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
        "store",
        "thinned_lanes",
        "touched_states",
        "touched_streams",
        "unswept",
        "used_streams",
        "wanted_hot_messages",
        "weights",
    )

    def __init__(self, store: KeyValueStore) -> None:
        self.store = store
        self.by_name: dict[str, Queue] = {}
        self.by_id: dict[int, Queue] = {}
        self.chunks: dict[int, Chunk] = {}
        self.own: dict[int, OwnState] = {}
        #: Live messages of hot chunks, where those of chunks with streams count for several.
        self.hot_messages = 0
        #: Cold chunks in memory by block, the least recently used first; their weight; and the number of all
        #: cold chunks.
        self.cold_chunks: dict[int, Chunk] = {}
        self.cached_messages = 0
        self.cold_count = 0
        #: Finds chunks that make room; and the chunks that the transaction made cold, which will not be
        #: needed soon.
        self.demotion = DemotionSearch()
        self.demoted: list[Chunk] = []
        #: Payloads that are stored in pages and kept in memory for claims that come soon: their bytes, and
        #: the bound. Small payloads inside heads do not count.
        self.body_bytes = 0
        self.max_body_bytes = DEFAULT_BODY_BYTES
        #: The bound on messages in memory from the settings; never more than `HOT_MESSAGES`.
        self.wanted_hot_messages = cold.HOT_MESSAGES
        #: Chunks whose payloads were read since the last transaction, without the lock.
        self.read_bodies: deque[Chunk] = deque()
        #: By block: the queue of each chunk that became sparse since the timer's last look.
        self.sparse: dict[int, int] = {}
        self.known_waits = KnownWaits()
        #: Messages whose states the transaction read or changed.
        self.touched_states: set[int] = set()
        self.held: dict[int, GroupLease] = {}
        #: Heap of (expiry, claim, lease): comparing numbers costs less than comparing leases. A lease without
        #: members is skipped when its time comes, or removed with many others; and how many may have none.
        self.expiries: list[tuple[int, int, GroupLease]] = []
        self.ended_expiries = 0
        #: Consumers of this engine with their leases; and claims by the token of their caller.
        self.by_consumer: dict[str, set[GroupLease]] = {}
        self.by_token: dict[str, set[GroupLease]] = {}
        #: Records beside the messages, by table and key, of tables whose records are all in memory.
        self.records: dict[Table, dict[bytes, Any]] = {table: {} for table in RECORDS_IN_MEMORY}
        self.consumers = ConsumerIndex()
        self.staged = StagedIndex()
        self.sessions = SessionIndex()
        self.config: dict[str, str] = {}
        #: Configured weights of keys, by the name of the queue.
        self.weights: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self.buckets = Buckets()
        #: Buckets of throttles without a configuration at the moment.
        self.idle_buckets: dict[str, Bucket] = {}
        #: The highest id that a queue ever had: ids are not reused.
        self.last_queue_id = 0
        #: The queue that a claim of several queues tries first.
        self.claim_turn = 0
        #: By (queue, stream): streams whose front may have changed; `update_fronts` computes it.
        self.touched_streams: dict[tuple[int, str], Stream] = {}
        #: By (queue, stream): streams that the transaction used; and those in memory that could be cold, the
        #: least recently used first, with their number of messages.
        self.used_streams: set[tuple[int, str]] = set()
        self.cold_streams: dict[tuple[int, str], Stream] = {}
        self.cached_members = 0
        #: By (queue, lane): lanes that lost messages other than by a claim.
        self.thinned_lanes: dict[tuple[int, LaneName], None] = {}
        #: (place, queue, fairness key) of deliveries that ended in queues with a limit of unsettled messages
        #: for each key; `update_fronts` lets others take their place.
        self.ended_deliveries: list[tuple[int, int, str]] = []
        #: At open, by queue and lane: ready messages of hot chunks, before they enter their lanes.
        self.found_lanes: defaultdict[int, defaultdict[LaneName, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        #: Remains of deleted queues: their ids, numbers whose states are still here, and objects to be freed.
        self.gone_queues: set[int] = set()
        self.unswept: list[int] = []
        self.discarded: list[object] = []
        self.changes = Changes()

    def chunk_of(self, number: int) -> Chunk:
        """The chunk of a live message. Callers that need many messages load them first; this reads one."""
        chunk = self.chunks.get(number >> BLOCK_SHIFT)
        if chunk is None:
            bring_chunks(self, self.store, [number])
            chunk = self.chunks[number >> BLOCK_SHIFT]
        return chunk

    def has_room_for_lanes(self, settings: Settings, queue: Queue, most: int) -> bool:
        """Whether this many new lanes are certainly within the bound."""
        # An upper bound of the lanes of all queues, each of which has a message. With many queues it costs
        # less than their sum, and is good enough while few chunks are cold.
        others = self.hot_messages + len(self.own) + self.cold_count * MAX_CHUNK_MESSAGES + len(self.by_id)
        if others + most <= settings.lanes_per_queue and others + most <= settings.active_lanes:
            return True
        if queue.schedule.lane_count + most > settings.lanes_per_queue:
            return False
        return others + most <= settings.active_lanes or self.count_lanes() + most <= settings.active_lanes

    def count_lanes(self) -> int:
        return sum([queue.schedule.lane_count for queue in self.by_id.values()])

    def hot_weight(self, columns: Columns) -> int:
        """The number of plain messages that take as much memory as one with these columns."""
        return 1 if columns.streams is None else cold.WEIGHT_IN_STREAM

    @property
    def used_room(self) -> int:
        """The used part of `max_hot_messages`."""
        return self.hot_messages + len(self.own)

    @property
    def max_hot_messages(self) -> int:
        return min(self.wanted_hot_messages, cold.HOT_MESSAGES)

    def homes_with_cold(self) -> list[int]:
        return [queue_id for queue_id, queue in self.by_id.items() if queue.counts.cold]

    def find_chunk(self, prefix: bytes, number: int) -> Chunk | None:
        """The chunk of a live message with that id."""
        bring_chunks(self, self.store, [number])
        chunk = self.chunks.get(number >> BLOCK_SHIFT)
        if chunk is None or chunk.prefix != prefix or number & BLOCK_MASK >= chunk.count:
            return None
        return None if chunk.state_of(number) == GONE else chunk

    def find_touched_chunk(self, block: int) -> Chunk | None:
        """A chunk named by facts of this transaction, even if they ended it; None if a later fact deleted its
        queue.
        """
        found = self.chunks.get(block)
        if found is not None:
            return found
        return next((chunk for chunk in self.changes.chunks if chunk.block == block), None)

    def find_message(self, raw_id: bytes) -> int | None:
        """The number of a live message."""
        number = find_number(raw_id)
        return None if number is None or self.find_chunk(raw_id[:8], number) is None else number

    def find_lease(self, raw_id: bytes) -> tuple[int, GroupLease] | None:
        """The number and the lease of a held message. Other stores assign the same numbers to other ids."""
        number = find_number(raw_id)
        lease = None if number is None else self.held.get(number)
        if number is None or lease is None or self.chunk_of(number).prefix != raw_id[:8]:
            return None
        return number, lease

    def configured_weights(self) -> dict[str, dict[str, int]]:
        """By queue and key, for queues that have any."""
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
            bring(self, self.store, [number])
            return self.own[number]
        return OwnState(chunk.queue_id, number)

    def seq_of(self, number: int) -> int:
        """The order of a message in its stream. A redriven message has a new one."""
        state = self.own.get(number)
        return state.seq or number if state is not None else number

    def waits(self, number: int) -> bool:
        state = self.own.get(number)
        return state is not None and state.due_ms != 0

    def is_cold_member(self, number: int) -> bool:
        """For a message in a stream: whether memory need not hold it. Then it has a row of its stream, and
        one of its lane while it is at the front.
        """
        state = self.own.get(number)
        # A redriven message is the last one of its stream, wherever its chunk is.
        return self.chunk_of(number).is_cold or (state is not None and state.seq != 0)

    def read_stream(self, queue_id: int, stream: Stream, wanted: int) -> None:
        read_stream_on(self, self.store, self.by_id[queue_id], stream, wanted)

    def find_stream_key(self, queue_id: int, name: str, start: int) -> str | None:
        rows = read_members(self.store, self.changes, queue_id, name, start, limit=1)
        return rows[0].row.key if rows else None

    def has_one_message(self, queue_id: int, name: str) -> bool:
        rows = read_members(self.store, self.changes, queue_id, name, 0, limit=2)
        return len(rows) == 1 and rows[0].row.count <= 1

    def has_stream_rows(self, queue_id: int) -> bool:
        is_changed = any(home_id == queue_id for home_id, _ in self.changes.members)
        return is_changed or has_members(self.store, queue_id)

    def stream_of(self, number: int, queue_id: int) -> str:
        """The stream that orders a message while it is in that queue; empty: none does."""
        chunk = self.chunk_of(number)
        if chunk.columns.streams is None or chunk.queue_id != queue_id:
            return ""
        return chunk.stream_of(number) if self.by_id[queue_id].is_ordered else ""

    def lane_and_weight(self, number: int) -> tuple[LaneName, int]:
        """The lane and weight in the queue that the message was enqueued into."""
        chunk, state = self.chunk_of(number), self._find_state(number)
        if state is None or not (state.lane or state.weight):
            return chunk.lane_of(number), chunk.weight_of(number)
        return own_lane(chunk, number, state), state.weight or chunk.weight_of(number)

    def end_of_life(self, number: int) -> int:
        """When the life of a message ends; 0: never, as for a message that is gone or dead."""
        bring_chunks(self, self.store, [number])
        chunk = self.chunks.get(number >> BLOCK_SHIFT)
        if chunk is None or chunk.state_of(number) == GONE:
            return 0
        state = self._find_state(number)
        has_end = state is None or (in_first_life(state, chunk) and not state.done_ms)
        return chunk.expires_ms(number) if has_end else 0

    def _find_state(self, number: int) -> OwnState | None:
        """None for an implied message."""
        state = self.own.get(number)
        if state is None and self.chunk_of(number).state_of(number) == OWN:
            return self.state_of(number)
        return state

    def members_of(self, lease: GroupLease) -> list[int]:
        """The members that the lease still holds."""
        return [number for number in lease.numbers if self.held.get(number) is lease]

    def is_first_of_run(self, number: int) -> bool:
        """Whether the message is the earliest of its stream that its claim holds, or has no stream."""
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

    def lane_in(self, queue: Queue, number: int) -> tuple[LaneName, int]:
        """The lane of a message in that queue, with its weight."""
        return (DEAD_LANE, 1) if queue.is_dead_letter_queue else self.lane_and_weight(number)

    def counts_to_change(self, queue: Queue) -> Counts:
        """The counts of a queue, which this transaction is about to change."""
        self.changes.counts[queue.record.queue_id] = queue.counts
        return queue.counts

    def apply(self, fact: StateFact | ReadFact) -> None:
        _REDUCERS[type(fact)](self, fact)


#: One reducer for each kind of fact.
_REDUCERS: dict[type, Callable[[Memory, Any], None]] = {
    ChunkEnqueued: chunks.enqueued,
    ScatteredEnqueued: chunks.scattered,
    ChunkGrown: chunks.grown,
    ChunkDemoted: cooling.demoted,
    ChunkThinned: chunks.thinned,
    Claimed: leases.claimed,
    LeaseCompleted: leases.completed,
    LeaseSplit: leases.split,
    MessageMoved: moves.moved,
    MessagesMoved: moves.moved_together,
    MessageRestated: states.restated,
    MessageGone: moves.ended,
    PassAllowed: streams.pass_allowed,
    KeysRemembered: lives.keys_remembered,
    KeysForgotten: lives.keys_forgotten,
    WindowsEnded: lives.windows_ended,
    CountsRead: queues.counts_read,
    ChunksRead: kept_chunks.chunks_read,
    StatesRead: states.states_read,
    LaneFound: lanes.lane_found,
    LaneRead: lanes.lane_read,
    StreamRead: streams.stream_read,
    DoneRead: states.done_read,
    DueRead: states.due_read,
    LivesEnded: lives.lives_ended,
    ConfigChanged: records.config_changed,
    BucketChanged: records.bucket_changed,
    PagesStaged: records.pages_staged,
    RecordsChanged: records.records_changed,
    AnswerRemembered: records.answer_remembered,
    QueueStored: queues.queue_stored,
    QueueDeleted: queues.queue_deleted,
}
