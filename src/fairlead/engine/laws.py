"""The invariants of an engine at rest. Property, crash and differential tests check them after every step."""

from __future__ import annotations

from collections import Counter

import msgspec

from fairlead.engine.engine import Engine, memory_of
from fairlead.engine.memory import Memory, Queue
from fairlead.records.chunk import LaneName
from fairlead.records.ids import find_number
from fairlead.records.state import Counts
from fairlead.schedule.throttle import Bucket
from fairlead.store.rows import find_orphans, read_all_dedup, read_counts, read_windows


def broken_laws(engine: Engine) -> list[str]:
    """Memory equals what a reopening would build, stored counts equal a recount, and every message is in
    exactly one place.
    """
    memory, again, stored = engine.memory, memory_of(engine.store), read_counts(engine.store)
    broken = []
    if memory.by_name.keys() != again.by_name.keys():
        return [f"queues {sorted(memory.by_name)} are {sorted(again.by_name)} after a reopening"]
    for queue_id, queue in memory.by_id.items():
        broken += [
            f"{queue.name}: {difference}"
            for difference in _differences(memory, queue, again, again.by_id[queue_id], stored[queue_id])
        ]
    if (memory.config, memory.weights) != (again.config, again.weights):
        broken.append("the configuration differs after a reopening")
    now_ms = engine.clock.now_ms()
    if _tokens(memory, now_ms) != _tokens(again, now_ms):
        broken.append("token buckets differ after a reopening")
    if memory.own != again.own:
        broken.append("messages with rows of their own differ after a reopening")
    if _terms(memory) != _terms(again):
        broken.append("leases differ after a reopening")
    for queue in memory.by_id.values():
        broken += _dedup_differences(engine, queue)
    broken += [f"{orphan} belongs to nothing" for orphan in find_orphans(engine.store)]
    twice = [number for number, count in Counter(_everywhere(memory)).items() if count > 1]
    if twice:
        broken.append(f"in more than one place: {twice}")
    return broken


def _differences(memory: Memory, queue: Queue, again: Memory, reopened: Queue, stored: Counts) -> list[str]:
    found = []
    if queue.record != reopened.record:
        found.append("its record differs after a reopening")
    counted = _recount(memory, queue)
    if not counted == queue.counts == reopened.counts == stored:
        found.append(
            f"counted {counted}, in memory {queue.counts}, reopened {reopened.counts}, stored {stored}"
        )
    if _lanes(memory, queue) != _lanes(again, reopened):
        found.append("the order of its lanes differs after a reopening")
    return found


def _dedup_differences(engine: Engine, queue: Queue) -> list[str]:
    """A key without a window belongs to a live message of its queue; a window ends one day, and the engine
    knows when to look.
    """
    queue_id, memory, found = queue.record.queue_id, engine.memory, []
    rows = read_all_dedup(engine.store, queue_id)
    windows = read_windows(engine.store, queue_id, limit=1_000_000)
    for key, row in rows.items():
        number = find_number(row.raw_id)
        if row.until_ms:
            if (row.until_ms, key) not in windows:
                found.append(f"{queue.name}: the window of dedup key {key!r} never ends")
        elif number is None or memory.find_chunk(row.raw_id[:8], number) is None:
            found.append(f"{queue.name}: dedup key {key!r} stands for a message that is gone")
        elif memory.state_of(number).queue_id != queue_id:
            found.append(f"{queue.name}: dedup key {key!r} stands for a dead letter")
    if windows and not 0 < queue.next_window_ms <= windows[0][0]:
        found.append(f"{queue.name}: nobody looks when the next window ends")
    return found


def _tokens(memory: Memory, now_ms: int) -> list[tuple[str, Bucket]]:
    """Refilled to now: a refill in memory is not written, because the time that passed is enough to repeat
    it.
    """
    buckets = [*memory.buckets.all().items(), *memory.idle_buckets.items()]
    return [
        (key, bucket._replace(tokens=round(bucket.tokens_at(now_ms), 6), at_ms=now_ms))
        for key, bucket in sorted(buckets)
    ]


def _lanes(memory: Memory, queue: Queue) -> dict[LaneName, list[int]]:
    return {
        lane: sorted(numbers, key=memory.place_of)
        for lane, numbers in queue.schedule.lanes().items()
        if numbers
    }


def _terms(memory: Memory) -> dict[int, object]:
    return {number: lease.terms for number, lease in memory.held.items()}


def _waiting(memory: Memory, queue: Queue) -> list[int]:
    queue_id = queue.record.queue_id
    return [
        number
        for number, state in memory.own.items()
        if state.queue_id == queue_id and state.due_ms and not state.claim_id
    ]


def _everywhere(memory: Memory) -> list[int]:
    numbers = list(memory.held)
    for queue in memory.by_id.values():
        numbers += queue.schedule.numbers()
        numbers += _waiting(memory, queue)
    return numbers


def _recount(memory: Memory, queue: Queue) -> Counts:
    queue_id = queue.record.queue_id
    ready, waiting = queue.schedule.numbers(), _waiting(memory, queue)
    leased = [number for number, lease in memory.held.items() if lease.terms.queue_id == queue_id]
    size = sum(_size_of(memory, number) for number in [*ready, *waiting, *leased])
    return msgspec.structs.replace(
        Counts(), ready=len(ready), waiting=len(waiting), leased=len(leased), bytes=size
    )


def _size_of(memory: Memory, number: int) -> int:
    chunk = memory.chunk_of(number)
    return chunk.columns.size_of(number - chunk.first)
