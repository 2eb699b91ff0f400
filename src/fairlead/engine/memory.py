"""Everything the engine knows without reading, and the only place where it changes: `apply(fact)`, live and at
open alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from heapq import heappop, heappush

import msgspec

from fairlead.errors import BrokenInvariant
from fairlead.model.config_keys import WEIGHT
from fairlead.model.queue import QueueRecord
from fairlead.records.chunk import GONE, OWN, Chunk, LaneName, by_chunk
from fairlead.records.facts import (
    BucketChanged,
    ChunkEnqueued,
    Claimed,
    ConfigChanged,
    KeysForgotten,
    KeysRemembered,
    LeaseCompleted,
    LeaseSplit,
    MessageGone,
    MessageMoved,
    MessageRestated,
    QueueStored,
    StateFact,
    WindowsEnded,
)
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT, find_number
from fairlead.records.lease import GroupLease
from fairlead.records.state import Counts, OwnState
from fairlead.schedule.drr import Scheduler
from fairlead.schedule.throttle import Bucket, Buckets
from fairlead.store.changes import Changes

#: Dead letters share one lane, so that their order is that of their deaths.
DEAD_LANE: LaneName = ("default",)


class Queue:
    __slots__ = ("blocks", "counts", "leases", "lives", "next_window_ms", "record", "schedule", "waiting")

    def __init__(self, record: QueueRecord, schedule: Scheduler) -> None:
        self.record = record
        self.schedule = schedule
        self.counts = Counts()
        #: Chunks of messages that were enqueued here.
        self.blocks: set[int] = set()
        self.leases: dict[int, GroupLease] = {}
        #: Heap of (due time, number). An entry whose message has moved on is skipped when its time comes.
        self.waiting: list[tuple[int, int]] = []
        #: Heap of (end of life, number), the same way.
        self.lives: list[tuple[int, int]] = []
        #: When a window of a dedup key may end; 0: there is none.
        self.next_window_ms = 0

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def is_dead_letter_queue(self) -> bool:
        return self.record.source_id != 0

    @property
    def home_id(self) -> int:
        """The queue under which the rows of its messages are stored."""
        return self.record.source_id or self.record.queue_id


class Memory:
    def __init__(self) -> None:
        self.by_name: dict[str, Queue] = {}
        self.by_id: dict[int, Queue] = {}
        self.chunks: dict[int, Chunk] = {}
        self.own: dict[int, OwnState] = {}
        self.held: dict[int, GroupLease] = {}
        #: Heap of (expiry, lease). A lease without members is skipped when its time comes.
        self.expiries: list[tuple[int, GroupLease]] = []
        #: Consumers of this engine, with what they hold; and claims by the token of their caller.
        self.by_consumer: dict[str, set[GroupLease]] = {}
        self.by_token: dict[str, set[GroupLease]] = {}
        self.config: dict[str, str] = {}
        #: Weights of (queue, key) that are configured.
        self.weights: dict[tuple[str, str], int] = {}
        self.buckets = Buckets()
        #: Buckets of throttles that are not configured at the moment.
        self.idle_buckets: dict[str, Bucket] = {}
        #: The highest id that a queue had: ids are never used again.
        self.last_queue_id = 0
        #: Which of several queues a claim tries first.
        self.claim_turn = 0
        self.changes = Changes()

    # Questions

    def chunk_of(self, number: int) -> Chunk:
        return self.chunks[number >> BLOCK_SHIFT]

    def find_chunk(self, prefix: bytes, number: int) -> Chunk | None:
        """The chunk of a live message with that id."""
        chunk = self.chunks.get(number >> BLOCK_SHIFT)
        if chunk is None or chunk.prefix != prefix or number & BLOCK_MASK >= chunk.count:
            return None
        return None if chunk.state_of(number) == GONE else chunk

    def find_message(self, raw_id: bytes) -> int | None:
        """The number of a live message."""
        number = find_number(raw_id)
        return None if number is None or self.find_chunk(raw_id[:8], number) is None else number

    def place_of(self, number: int) -> int:
        state = self.own.get(number)
        return number if state is None else state.place

    def state_of(self, number: int) -> OwnState:
        """The state of a message; for an implied message, the state that its chunk implies."""
        state = self.own.get(number)
        return OwnState(self.chunk_of(number).queue_id, number) if state is None else state

    def end_of_life(self, number: int) -> int:
        """When the life of a message ends; 0: never, as for a message that is gone or dead."""
        chunk = self.chunks.get(number >> BLOCK_SHIFT)
        if chunk is None or chunk.state_of(number) == GONE:
            return 0
        state = self.own.get(number)
        return chunk.expires_ms(number) if state is None or _in_first_life(state, chunk) else 0

    def members_of(self, lease: GroupLease) -> list[int]:
        """The members that are still held under it."""
        return [number for number in lease.numbers if self.held.get(number) is lease]

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

    # Hints about time: entries of the heaps that are out of date are dropped when they are met

    def overdue(self, now_ms: int, most_members: int) -> list[GroupLease]:
        """Leases whose time is over, until they have that many members together."""
        found: list[GroupLease] = []
        members = 0
        while self.expiries and self.expiries[0][0] <= now_ms and members < most_members:
            lease = heappop(self.expiries)[1]
            if lease.live:
                found.append(lease)
                members += lease.live
        for lease in found:
            # They stay until their members have moved, which makes these entries out of date.
            heappush(self.expiries, (lease.terms.expires_ms, lease))
        return found

    def next_due(self, queue: Queue, now_ms: int) -> int | None:
        """The message of the queue whose wait ended first; None: no wait is over."""
        while queue.waiting and queue.waiting[0][0] <= now_ms:
            due_ms, number = queue.waiting[0]
            state = self.own.get(number)
            if state is not None and (state.due_ms, state.queue_id) == (due_ms, queue.record.queue_id):
                return number
            heappop(queue.waiting)
        return None

    def next_ended(self, queue: Queue, now_ms: int) -> int | None:
        """A message of the queue whose life is over and that no claim holds; None: there is none."""
        while queue.lives and queue.lives[0][0] <= now_ms:
            expires_ms, number = queue.lives[0]
            if number not in self.held and self.end_of_life(number) == expires_ms:
                return number
            # A message that is leased is looked at when its lease ends.
            heappop(queue.lives)
        return None

    def next_event_ms(self) -> int | None:
        """When a lease or a wait ends next. It may be too early, never too late."""
        heaps = [heap for queue in self.by_id.values() for heap in (queue.waiting, queue.lives) if heap]
        times = [heap[0][0] for heap in heaps]
        times += [at for queue in self.by_id.values() if (at := queue.schedule.next_wake_ms()) is not None]
        times += [queue.next_window_ms for queue in self.by_id.values() if queue.next_window_ms]
        if self.expiries:
            times.append(self.expiries[0][0])
        return min(times, default=None)

    # The reducer

    def apply(self, fact: StateFact) -> None:
        match fact:
            case ChunkEnqueued():
                self._enqueued(fact)
            case Claimed():
                self._claimed(fact)
            case LeaseCompleted():
                self._completed(fact)
            case LeaseSplit():
                self._split(fact)
            case MessageMoved():
                self._moved(fact)
            case MessageRestated():
                self._mark_own(self.chunk_of(fact.number), fact.number)
                self._restate(fact.number, fact.state)
            case MessageGone():
                self._ended(fact.number)
            case KeysRemembered():
                self._keys_remembered(fact)
            case KeysForgotten():
                self.changes.dedup.update(dict.fromkeys([(fact.queue_id, key) for key in fact.keys], None))
            case WindowsEnded():
                self._windows_ended(fact)
            case ConfigChanged():
                self._config_changed(fact)
            case BucketChanged():
                self._bucket_changed(fact)
            case QueueStored():
                self._queue_stored(fact.record)

    def _queue_stored(self, record: QueueRecord) -> None:
        queue = self.by_id.get(record.queue_id)
        if queue is None:
            schedule = Scheduler(
                self.place_of,
                self.buckets,
                quantum=record.config.quantum,
                weight_of=partial(self._configured_weight, record.name),
            )
            queue = self.by_id[record.queue_id] = self.by_name[record.name] = Queue(record, schedule)
            self._count(queue)
        queue.record = record
        self.last_queue_id = max(self.last_queue_id, record.queue_id)
        self.changes.queues[record.queue_id] = record

    def _configured_weight(self, queue: str, key: str) -> int | None:
        return self.weights.get((queue, key))

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
            self.weights.pop((queue_name, key), None)
            return
        self.weights[queue_name, key] = int(value)
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
        self.chunks[chunk.block] = chunk
        queue.blocks.add(chunk.block)
        self.changes.new_chunks.append(chunk)
        if chunk.states is not None:
            # Some of its messages begin with rows of their own, which follow.
            self.changes.chunks.add(chunk)
        numbers = chunk.implied() if ready is None else ready
        counts = self._count(queue)
        # Members of leases are counted as ready too; the `Claimed` that follows takes them from there.
        counts.ready += len(chunk.implied())
        counts.bytes += _bytes_of(chunk, chunk.implied())
        self._note_lives(queue, chunk)
        self._schedule(queue, chunk, numbers)

    def _note_lives(self, queue: Queue, chunk: Chunk) -> None:
        for index, expires_ms in enumerate(chunk.columns.expires or ()):
            if expires_ms:
                heappush(queue.lives, (expires_ms, chunk.first + index))

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
        as long as the message lives. A message that died has lost its key, and another one may have it.
        """
        key = chunk.live_key(number)
        if key and _in_first_life(self.state_of(number), chunk):
            self.changes.dedup[chunk.queue_id, key] = None

    def _schedule(self, queue: Queue, chunk: Chunk, numbers: Sequence[int]) -> None:
        columns = chunk.columns
        if columns.lane_at is None:
            if numbers:
                queue.schedule.add(columns.lanes[0], chunk.weight_of(numbers[-1]), numbers)
            return
        parts: list[list[int]] = [[] for _ in columns.lanes]
        lane_at, first = columns.lane_at, chunk.first
        for number in numbers:
            parts[lane_at[number - first]].append(number)
        filled = [(lane, part) for lane, part in zip(columns.lanes, parts, strict=True) if part]
        if len(numbers) < chunk.count:
            # Lanes join the ring in the order of the messages that enter them.
            filled.sort(key=lambda item: item[1][0])
        # The latest message of a key sets its weight, whichever of its lanes it is in.
        latest: dict[str, int] = {}
        for lane, part in filled:
            latest[lane[0]] = max(part[-1], latest.get(lane[0], 0))
        for lane, part in filled:
            queue.schedule.add(lane, chunk.weight_of(latest[lane[0]]), part)

    def _claimed(self, fact: Claimed) -> None:
        lease, numbers, own = fact.lease, fact.numbers, self.own
        queue = self.by_id[lease.terms.queue_id]
        if fact.plan is not None:
            queue.schedule.apply(fact.plan)
            self.changes.buckets.update(fact.plan.buckets)
        self._hold(queue, lease, numbers)
        counts = self._count(queue)
        counts.ready -= len(numbers)
        counts.leased += len(numbers)
        for number in own.keys() & set(numbers) if own else ():
            self._restate(number, msgspec.structs.replace(own[number], claim_id=lease.terms.claim_id))

    def _hold(self, queue: Queue, lease: GroupLease, numbers: Sequence[int]) -> None:
        terms = lease.terms
        self.held.update(dict.fromkeys(numbers, lease))
        lease.live = len(numbers)
        queue.leases[terms.group] = lease
        heappush(self.expiries, (terms.expires_ms, lease))
        self.by_consumer.setdefault(terms.consumer, set()).add(lease)
        if terms.token:
            self.by_token.setdefault(terms.token, set()).add(lease)
        self.changes.new_leases[terms.group] = lease

    def _completed(self, fact: LeaseCompleted) -> None:
        lease, numbers, own = fact.lease, fact.numbers, self.own
        queue = self.by_id[lease.terms.queue_id]
        for number in numbers:
            del self.held[number]
        self._leave(lease, len(numbers))
        counts = self._count(queue)
        counts.leased -= len(numbers)
        for block, members in by_chunk(numbers):
            chunk = self.chunks[block]
            counts.bytes -= _bytes_of(chunk, members)
            for number in members if chunk.columns.live_keys else ():
                self._forget_key(chunk, number)
            for number in members if own else ():
                if own.pop(number, None) is not None:
                    self.changes.own[chunk.queue_id, number] = None
            self._gone(chunk, members)

    def _gone(self, chunk: Chunk, members: Sequence[int]) -> None:
        chunk.live -= len(members)
        chunk.mark(members, GONE)
        self.changes.chunks.add(chunk)
        if not chunk.live:
            del self.chunks[chunk.block]
            self.by_id[chunk.queue_id].blocks.discard(chunk.block)

    def _split(self, fact: LeaseSplit) -> None:
        self._leave(fact.before, len(fact.numbers))
        self._hold(self.by_id[fact.after.terms.queue_id], fact.after, fact.numbers)

    def _moved(self, fact: MessageMoved) -> None:
        number = fact.number
        chunk, before = self.chunk_of(number), self.state_of(number)
        is_loading = number not in self.own and chunk.state_of(number) == OWN
        if is_loading:
            self._enter(chunk, fact)
            return
        self._take_away(chunk, number, before)
        if fact.why == "buried":
            self._forget_key(chunk, number)
        self._mark_own(chunk, number)
        self._enter(chunk, fact)

    def _take_away(self, chunk: Chunk, number: int, state: OwnState) -> None:
        """The message leaves the place where it was, for another place or for good."""
        queue = self.by_id[state.queue_id]
        counts, lease = self._count(queue), self.held.pop(number, None)
        if lease is not None:
            self._leave(lease, 1)
            counts.leased -= 1
        elif state.due_ms:
            counts.waiting -= 1
        else:
            counts.ready -= 1
            queue.schedule.remove(self._lane_in(queue, chunk, number)[0], number)
        counts.bytes -= chunk.columns.size_of(number & BLOCK_MASK)

    def _ended(self, number: int) -> None:
        chunk, state = self.chunk_of(number), self.state_of(number)
        self._forget_key(chunk, number)
        self._take_away(chunk, number, state)
        if self.own.pop(number, None) is not None:
            self.changes.own[chunk.queue_id, number] = None
        self._gone(chunk, [number])

    def _mark_own(self, chunk: Chunk, number: int) -> None:
        if chunk.state_of(number) != OWN:
            chunk.mark([number], OWN)
            self.changes.chunks.add(chunk)

    def _enter(self, chunk: Chunk, fact: MessageMoved) -> None:
        """The message is in the queue that its state says, ready or waiting. At open a leased one counts as
        ready until its lease follows.
        """
        number, state = fact.number, fact.state
        self._restate(number, state)
        queue = self.by_id[state.queue_id]
        expires_ms = self.end_of_life(number)
        if expires_ms:
            # Its entry may be gone: one that is met while the message is leased is dropped.
            heappush(queue.lives, (expires_ms, number))
        counts = self._count(queue)
        counts.bytes += chunk.columns.size_of(number & BLOCK_MASK)
        if state.due_ms:
            counts.waiting += 1
            heappush(queue.waiting, (state.due_ms, number))
            return
        counts.ready += 1
        if not state.claim_id:
            lane, weight = self._lane_in(queue, chunk, number)
            # A message at the tail is the latest of its key, and sets its weight; a released one is not.
            queue.schedule.insert(lane, weight, number, is_latest=fact.why != "released")

    def _lane_in(self, queue: Queue, chunk: Chunk, number: int) -> tuple[LaneName, int]:
        if queue.is_dead_letter_queue:
            return DEAD_LANE, 1
        return chunk.lane_of(number), chunk.weight_of(number)

    def _restate(self, number: int, state: OwnState) -> None:
        self.own[number] = state
        self.changes.own[self.chunk_of(number).queue_id, number] = state

    def _leave(self, lease: GroupLease, members: int) -> None:
        lease.live -= members
        if lease.live < 0:
            raise BrokenInvariant(f"claim {lease.terms.claim_id:x} lost more members than it had")
        if lease.live:
            return
        terms = lease.terms
        self.changes.ended_leases[terms.group] = lease
        self.by_id[terms.queue_id].leases.pop(terms.group, None)
        _discard(self.by_consumer, terms.consumer, lease)
        if terms.token:
            _discard(self.by_token, terms.token, lease)

    def _count(self, queue: Queue) -> Counts:
        """The counts of a queue, which this transaction is about to change."""
        self.changes.counts[queue.record.queue_id] = queue.counts
        return queue.counts

    # Loading anew

    def forget(self, home_id: int) -> None:
        """Drop everything about a queue and its dead letters, so that it can be loaded anew."""
        queues = [queue for queue in self.by_id.values() if queue.home_id == home_id]
        for queue in queues:
            for lease in list(queue.leases.values()):
                for number in self.members_of(lease):
                    del self.held[number]
                lease.live = 0
                _discard(self.by_consumer, lease.terms.consumer, lease)
                _discard(self.by_token, lease.terms.token, lease)
            for block in queue.blocks:
                chunk = self.chunks.pop(block)
                for number in chunk.with_own_rows():
                    self.own.pop(number, None)
            del self.by_id[queue.record.queue_id], self.by_name[queue.name]


def _in_first_life(state: OwnState, chunk: Chunk) -> bool:
    """Time to live and dedup key end with the first death; a redrive does not bring them back."""
    return state.queue_id == chunk.queue_id and not state.redrives


def _bytes_of(chunk: Chunk, numbers: Sequence[int]) -> int:
    columns = chunk.columns
    if len(numbers) == chunk.count:
        return columns.total_bytes()
    return sum([columns.size_of(number & BLOCK_MASK) for number in numbers])


def _discard(index: dict[str, set[GroupLease]], name: str, lease: GroupLease) -> None:
    leases = index.get(name)
    if leases is not None:
        leases.discard(lease)
        if not leases:
            del index[name]
