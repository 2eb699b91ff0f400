"""Measurements of all queues for metrics. The lock is released after each queue, so that hundreds of queues
delay no caller.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fairlead.decide.numbered_claims import info_of
from fairlead.engine.closed_throttles import show_closed
from fairlead.engine.memory import Memory
from fairlead.engine.queue import Queue
from fairlead.model.consumer import ConsumerInfo
from fairlead.model.failure import FailureReason
from fairlead.model.measures import Measures, QueueMeasures
from fairlead.model.views import ThrottleStats
from fairlead.store.kv.port import Table

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: With more lanes than this, the oldest message of a queue is not searched.
_MAX_LANES = 100


def measure(engine: Engine) -> Measures:
    with engine.transaction() as tx:
        memory, now_ms = tx.memory, tx.now_ms
        sources = [queue for queue in memory.by_id.values() if not queue.is_dead_letter_queue]
        queue_ids = [queue.record.queue_id for queue in sources]
        throttles = [
            ThrottleStats(key, bucket.tokens_at(now_ms), bucket.rate, bucket.burst)
            for key, bucket in memory.buckets.all().items()
        ]
        closed = show_closed(tx)
        operations = Counter([one.kind for one in memory.records[Table.INTENTS].values()])
        lanes = memory.count_lanes()
        in_memory = sum(queue.schedule.held for queue in memory.by_id.values())
        writes, staged_bytes = len(memory.staged.writes), memory.staged.stored_bytes
        consumers: dict[int, list[ConsumerInfo]] = {}
        for record in memory.records[Table.CONSUMERS].values():
            consumers.setdefault(record.queue_id, []).append(info_of(record))
    found = []
    for queue_id in queue_ids:
        with engine.transaction() as tx:
            queue = tx.memory.by_id.get(queue_id)
            if queue is not None:
                found.append(_measure(engine, tx.memory, queue, consumers.get(queue_id, [])))
    return Measures(
        now_ms, found, throttles, dict(operations), lanes, in_memory, writes, staged_bytes, closed
    )


def _measure(engine: Engine, memory: Memory, queue: Queue, consumers: list[ConsumerInfo]) -> QueueMeasures:
    counts, schedule = queue.counts, queue.schedule
    dead = memory.by_id[queue.record.dlq_id].counts
    holders = {lease.terms.consumer for lease in queue.leases.values()}
    is_open = [info for info in consumers if info.open]
    return QueueMeasures(
        queue_id=queue.record.queue_id,
        queue=queue.name,
        ready=counts.ready,
        waiting=counts.waiting,
        leased=counts.leased,
        done=counts.done,
        dead=dead.messages,
        bytes=counts.bytes,
        dead_bytes=dead.bytes,
        consumers=len(engine.waiting_consumers(queue) | holders),
        active_keys=schedule.active_keys,
        paused=queue.record.paused,
        oldest_ready_ms=_oldest_ready_ms(memory, queue),
        parked_lanes=schedule.parked_lanes,
        holds=schedule.times_parked,
        hook_breakers={
            hook.function: hook.breaker_open_until_ms is not None
            for hook in engine.hooking.hooks.stats(queue.record.queue_id)
        },
        failure_breakers=_failure_breakers(engine, queue),
        durable_consumers=len(consumers),
        numbered_claims=len(is_open),
        numbered_messages=sum(info.messages for info in is_open),
        gives_up_ms=min((info.expires_at for info in is_open), default=None),
        stream_fronts={"promoted": queue.streams.promoted, "demoted": queue.streams.demoted},
    )


def _oldest_ready_ms(memory: Memory, queue: Queue) -> int | None:
    heads = queue.schedule.heads(_MAX_LANES)
    return min((memory.chunk_of(number).enqueued_ms for number in heads), default=None)


def _failure_breakers(engine: Engine, queue: Queue) -> dict[str, bool]:
    if not queue.record.config.failure_breaker.failures:
        return {}
    now_ms, queue_id = engine.time.now_ms(), queue.record.queue_id
    found = {reason: engine.breakers.get((queue_id, reason)) for reason in FailureReason}
    return {
        reason.word: breaker is not None and breaker.open_until_ms(now_ms) > 0
        for reason, breaker in found.items()
    }
