"""When something is due, as far as memory knows: the ends of leases, waits, lives, windows and retention.

The times are hints: work may begin too early and then finds nothing, but never too late.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from fairlead.engine.queue import DEAD_LANE, Queue
from fairlead.records.lease import GroupLease
from fairlead.store.cold_rows import find_last_cold

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory


def find_overdue(memory: Memory, now_ms: int, most_members: int) -> list[GroupLease]:
    """Expired leases, until they have that many members together.

    Leases of one claim that end together are not separated: whether a member was the first of its run is
    known only while the whole run is held.
    """
    found: list[GroupLease] = []
    members = 0
    while memory.expiries and memory.expiries[0][0] <= now_ms:
        lease = memory.expiries[0][2]
        if members >= most_members and not lease.ends_with(found[-1]):
            break
        heappop(memory.expiries)
        if lease.live:
            found.append(lease)
            members += lease.live
    for lease in found:
        # They stay until their members have moved, which makes these entries outdated.
        heappush(memory.expiries, (lease.terms.expires_ms, lease.terms.claim_id, lease))
    return found


def end_of_retention(memory: Memory, queue: Queue) -> int | None:
    """When the oldest dead letter has been kept long enough; None: never."""
    source = memory.by_id.get(queue.record.source_id)
    if source is None or not source.record.config.dead_retention_ms:
        return None
    first = queue.schedule.messages_after(DEAD_LANE, 0, 1)
    if not first and queue.schedule.cold_from(DEAD_LANE):
        return 0
    return memory.own[first[0]].dead_since_ms + source.record.config.dead_retention_ms if first else None


def next_event_ms(memory: Memory, queue_ids: Iterable[int] | None = None) -> int | None:
    """When due work of these queues, or of all, begins next. It may be too early, never too late."""
    times = [memory.expiries[0][0]] if memory.expiries else []
    by_id = memory.by_id
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
        if queue.is_dead_letter_queue and (end_ms := end_of_retention(memory, queue)) is not None:
            times.append(end_ms)
    if memory.consumers.next_look_ms is not None:
        times.append(memory.consumers.next_look_ms)
    if memory.staged.next_look_ms is not None:
        times.append(memory.staged.next_look_ms)
    if memory.demotion.next_look_ms is not None:
        times.append(memory.demotion.next_look_ms)
    return min(times) if times else None


def latest_ms(memory: Memory) -> int:
    """A time that has certainly passed: the latest enqueue, claim or extension known to memory."""
    granted = [lease.terms.expires_ms - lease.terms.lease_ms for lease in memory.held.values()]
    seen = [holder.seen_ms for holder in memory.consumers.holders.values()]
    cold = [find_last_cold(memory.store, home_id) for home_id in memory.homes_with_cold()]
    enqueued = [head.enqueued_ms for head in cold if head is not None]
    enqueued += [chunk.enqueued_ms for chunk in memory.chunks.values()]
    return max(enqueued + granted + seen, default=0)
