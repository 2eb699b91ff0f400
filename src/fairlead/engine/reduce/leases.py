"""Messages are claimed, completed, and separated from the other messages of their lease.

A lease ends with its last member. Its entry in the heap of expiries stays until its time, or until there are
many of these entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappush
from typing import TYPE_CHECKING

import msgspec

from fairlead.engine.own_states import own_lane
from fairlead.engine.queue import DEAD_LANE, Queue
from fairlead.engine.reduce.chunk_ends import end_untouched, is_untouched, messages_gone
from fairlead.engine.reduce.kept_chunks import bytes_of
from fairlead.engine.reduce.lives import forget_key
from fairlead.engine.reduce.stream_members import forget_member
from fairlead.engine.reduce.streams import is_member, lease_in_streams
from fairlead.errors import BrokenInvariant
from fairlead.records.chunk import by_chunk
from fairlead.records.facts import Claimed, LeaseCompleted, LeaseSplit
from fairlead.records.ids import BLOCK_SHIFT
from fairlead.records.lease import NEVER_EXPIRES_MS, GroupLease

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory

#: Entries of leases that ended before their time are removed when there are more of them than this, and than
#: others.
_MIN_ENDED = 100


def claimed(memory: Memory, fact: Claimed) -> None:
    lease, numbers, own = fact.lease, fact.numbers, memory.own
    plan, terms = fact.plan, lease.terms
    queue = memory.by_id[terms.queue_id]
    if queue.served_ms < terms.claimed_ms:
        queue.served_ms = terms.claimed_ms
    if plan is not None:
        queue.schedule.apply(plan)
        if plan.buckets:
            memory.changes.buckets.update(plan.buckets)
    _hold(memory, queue, lease, numbers)
    if plan is not None:
        counts = memory.changes.counts[terms.queue_id] = queue.counts
        counts.ready -= len(numbers)
        counts.leased += len(numbers)
    if queue.streams.by_name or queue.streams.may_be_on_disk:
        lease_in_streams(memory, queue, numbers, is_new=plan is not None)
    if plan is None and queue.record.config.max_unsettled_per_key:
        for number in numbers:
            queue.schedule.note_unsettled(memory.lane_in(queue, number)[0][0])
    for number in own.keys() & set(numbers) if own else ():
        state, chunk = own[number], memory.chunks.get(number >> BLOCK_SHIFT) or memory.chunk_of(number)
        # The front of a stream has another row, if any.
        if fact.plan is not None and not is_member(memory, queue, chunk, number):
            lane = DEAD_LANE if queue.is_dead_letter_queue else own_lane(chunk, number, state)
            memory.changes.runs[queue.home_id, terms.queue_id, lane, state.place, True] = None
        leased = msgspec.structs.replace(state, claim_id=terms.claim_id)
        own[number] = memory.changes.own[chunk.queue_id, number] = leased


def completed(memory: Memory, fact: LeaseCompleted) -> None:
    lease, numbers, own = fact.lease, fact.numbers, memory.own
    queue = memory.by_id[lease.terms.queue_id]
    limited = queue.record.config.max_unsettled_per_key
    held = memory.held
    if queue.streams.may_be_on_disk:
        for number in numbers:
            if stream := memory.stream_of(number, lease.terms.queue_id):
                queue.streams.meet(stream)
    for number in numbers:
        del held[number]
    if limited:
        for number in numbers:
            note_delivery_ended(memory, queue, number)
    take_from_lease(memory, lease, len(numbers))
    counts = memory.changes.counts[lease.terms.queue_id] = queue.counts
    counts.leased -= len(numbers)
    whole = memory.chunks.get(numbers[0] >> BLOCK_SHIFT)
    if whole is not None and whole.count == len(numbers) and is_untouched(whole, numbers):
        end_untouched(memory, queue, whole)
        return
    for block, members in by_chunk(numbers):
        chunk = memory.chunks.get(block) or memory.chunk_of(block << BLOCK_SHIFT)
        columns, size = chunk.columns, bytes_of(chunk, members)
        counts.bytes -= size
        for number in members if columns.live_keys else ():
            forget_key(memory, chunk, number)
        if columns.streams is not None:
            for number in members:
                if stream := memory.stream_of(number, lease.terms.queue_id):
                    queue.streams.leave(stream, number)
                    if number in own:
                        forget_member(memory, chunk, number, stream)
        for number in members if own else ():
            if own.pop(number, None) is not None:
                memory.changes.own[chunk.queue_id, number] = None
        messages_gone(memory, chunk, members, size)


def split(memory: Memory, fact: LeaseSplit) -> None:
    take_from_lease(memory, fact.before, len(fact.numbers))
    _hold(memory, memory.by_id[fact.after.terms.queue_id], fact.after, fact.numbers)


def _hold(memory: Memory, queue: Queue, lease: GroupLease, numbers: Sequence[int]) -> None:
    terms = lease.terms
    if len(numbers) == 1:
        memory.held[numbers[0]] = lease
    else:
        memory.held.update(dict.fromkeys(numbers, lease))
    lease.live = len(numbers)
    queue.leases[terms.group] = lease
    if terms.expires_ms != NEVER_EXPIRES_MS:
        heappush(memory.expiries, (terms.expires_ms, terms.claim_id, lease))
    of_consumer = memory.by_consumer.get(terms.consumer)
    if of_consumer is None:
        of_consumer = memory.by_consumer[terms.consumer] = set()
    of_consumer.add(lease)
    if terms.token:
        memory.by_token.setdefault(terms.token, set()).add(lease)
    memory.changes.new_leases[terms.group] = lease


def take_from_lease(memory: Memory, lease: GroupLease, members: int) -> None:
    """Remove members from a lease, which ends with its last one."""
    lease.live -= members
    if lease.live < 0:
        raise BrokenInvariant(f"claim {lease.terms.claim_id:x} lost more members than it had")
    if lease.live:
        return
    terms = lease.terms
    memory.ended_expiries += 1
    if memory.ended_expiries > _MIN_ENDED and 2 * memory.ended_expiries > len(memory.expiries):
        _forget_ended_expiries(memory)
    memory.changes.ended_leases[terms.group] = lease
    memory.by_id[terms.queue_id].leases.pop(terms.group, None)
    discard_lease(memory.by_consumer, terms.consumer, lease)
    if terms.token:
        discard_lease(memory.by_token, terms.token, lease)


def _forget_ended_expiries(memory: Memory) -> None:
    memory.expiries = [expiry for expiry in memory.expiries if expiry[2].live]
    heapify(memory.expiries)
    memory.ended_expiries = 0


def note_delivery_ended(memory: Memory, queue: Queue, number: int) -> None:
    """Let `update_fronts` deliver another message of the same key."""
    key = memory.lane_in(queue, number)[0][0]
    memory.ended_deliveries.append((memory.place_of(number), queue.record.queue_id, key))


def discard_lease(index: dict[str, set[GroupLease]], name: str, lease: GroupLease) -> None:
    leases = index.get(name)
    if leases is not None:
        leases.discard(lease)
        # The set of consumers without a name stays: a queue of single messages would create it anew for each
        # claim.
        if not leases and name:
            del index[name]
