"""Queues are stored, changed, deleted, and dropped to be loaded anew.

A deleted queue can no longer be found. The states of its messages are dropped in steps, and its objects are
freed without the lock.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fairlead.engine.blocks import Blocks
from fairlead.engine.cold import cached_weight
from fairlead.engine.queue import Queue
from fairlead.engine.reduce.kept_chunks import drop_body
from fairlead.engine.reduce.leases import discard_lease
from fairlead.engine.streams import QueueStreams
from fairlead.records.chunk import by_chunk
from fairlead.records.facts import CountsRead, QueueDeleted, QueueStored
from fairlead.records.ids import BLOCK_MASK, BLOCK_SHIFT
from fairlead.schedule.drr import Scheduler

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def queue_stored(memory: Memory, fact: QueueStored) -> None:
    record = fact.record
    queue = memory.by_id.get(record.queue_id)
    if queue is None:
        schedule = Scheduler(
            memory.place_of,
            memory.buckets,
            quantum=record.config.quantum,
            max_unsettled_per_key=record.config.max_unsettled_per_key,
            weight_of=memory.weights[record.name].get,
        )
        streams = QueueStreams(memory, record.queue_id, memory.touched_streams, memory.used_streams)
        queue = Queue(record, schedule, streams, Blocks(memory.chunks))
        memory.by_id[record.queue_id] = memory.by_name[record.name] = queue
        memory.counts_to_change(queue)
    elif queue.record.config.quantum != record.config.quantum:
        queue.schedule.set_quantum(record.config.quantum)
    before, limit = queue.record.config.max_unsettled_per_key, record.config.max_unsettled_per_key
    queue.set_record(record)
    if before != limit:
        queue.schedule.limit_unsettled(limit, _unsettled(memory, queue))
    memory.last_queue_id = max(memory.last_queue_id, record.queue_id)
    memory.changes.queues[record.queue_id] = record


def counts_read(memory: Memory, fact: CountsRead) -> None:
    memory.by_id[fact.queue_id].counts = fact.counts
    memory.cold_count += fact.counts.cold


def queue_deleted(memory: Memory, fact: QueueDeleted) -> None:
    memory.last_queue_id = max(memory.last_queue_id, fact.last_queue_id)
    if not fact.queue_id:
        return
    record = memory.by_id[fact.queue_id].record
    _unlink(memory, fact.queue_id)
    memory.changes.forget(record)
    memory.changes.deleted_queues.append(record)
    memory.changes.last_queue_id = fact.last_queue_id


def _unsettled(memory: Memory, queue: Queue) -> Counter[str]:
    """The number of leased messages of each key."""
    own, found = memory.own, Counter[str]()
    for lease in queue.leases.values():
        for block, members in by_chunk(memory.members_of(lease)):
            if queue.is_dead_letter_queue or not own.keys().isdisjoint(members):
                found.update([memory.lane_in(queue, number)[0][0] for number in members])
                continue
            columns = memory.chunk_of(block << BLOCK_SHIFT).columns
            if columns.lane_at is None:
                found[columns.lanes[0][0]] += len(members)
                continue
            lanes = Counter([columns.lane_at[number & BLOCK_MASK] for number in members])
            for at, count in lanes.items():
                found[columns.lanes[at][0]] += count
    return found


def forget_queue(memory: Memory, home_id: int) -> None:
    """Drop everything about a queue and its dead letters, which will be loaded anew."""
    _unlink(memory, home_id)
    sweep_states(memory, 1 + len(memory.unswept))
    take_discarded(memory)


def sweep_states(memory: Memory, limit: int) -> bool:
    """Drop some of the remains of deleted queues; False if nothing is left. Nothing reads these states,
    because no number is reused.
    """
    for number in memory.unswept[-limit:]:
        state = memory.own.get(number)
        if state is not None and state.queue_id in memory.gone_queues:
            memory.discarded.append(memory.own.pop(number))
    del memory.unswept[-limit:]
    if not memory.unswept:
        memory.gone_queues.clear()
    return bool(memory.unswept)


def take_discarded(memory: Memory) -> list[object]:
    """The objects of deleted queues. Freeing them takes long, so drop them without the lock."""
    discarded, memory.discarded = memory.discarded, []
    return discarded


def _unlink(memory: Memory, home_id: int) -> None:
    """Make a queue and its dead letters impossible to find; `sweep_states` drops the states of its messages."""
    queues = [queue for queue in memory.by_id.values() if queue.home_id == home_id]
    for queue in queues:
        for lease in list(queue.leases.values()):
            for number in memory.members_of(lease):
                del memory.held[number]
            lease.live = 0
            discard_lease(memory.by_consumer, lease.terms.consumer, lease)
            discard_lease(memory.by_token, lease.terms.token, lease)
        for block in list(queue.blocks):
            chunk = memory.chunks.pop(block)
            drop_body(memory, chunk)
            memory.discarded.append(chunk)
            if memory.cold_chunks.pop(block, None) is not None:
                memory.cached_messages -= cached_weight(chunk)
            else:
                memory.hot_messages -= memory.hot_weight(chunk.columns) * chunk.live
        memory.known_waits.forget(queue.record.queue_id)
        memory.cold_count -= queue.counts.cold
        del memory.by_id[queue.record.queue_id], memory.by_name[queue.name]
    memory.discarded += queues
    gone = {queue.record.queue_id for queue in queues}
    memory.gone_queues |= gone
    memory.unswept = list(memory.own)
    for touched in [touched for touched in memory.touched_streams if touched[0] in gone]:
        del memory.touched_streams[touched]
    for thinned in [thinned for thinned in memory.thinned_lanes if thinned[0] in gone]:
        del memory.thinned_lanes[thinned]
    for cached in [cached for cached in memory.cold_streams if cached[0] in gone]:
        memory.cached_members -= memory.cold_streams.pop(cached).counted
    memory.ended_deliveries = [ended for ended in memory.ended_deliveries if ended[1] not in gone]
