"""Taking the measures of all queues, with the lock given back after each, so that a look at hundreds delays
nobody.
"""

from __future__ import annotations

from collections import Counter

from fairlead.broker.core import Core
from fairlead.broker.queue_state import QueueState
from fairlead.decide.numbered_claims import info_of
from fairlead.model.consumer import ConsumerInfo
from fairlead.model.failure import FailureReason
from fairlead.model.ids import id_time_ms
from fairlead.model.lane import row_id
from fairlead.model.measures import Measures, QueueMeasures
from fairlead.model.views import ThrottleStats

#: The head of a lane may have to be read from disk.
_MOST_LANES = 100


def measures(core: Core) -> Measures:
    with core.lock:
        core.check_open()
        queue_ids = [queue_id for queue_id, state in core.by_id.items() if not state.is_dead_letter_queue]
        buckets = core.buckets.all(core.clock.monotonic_ms())
        throttles = [
            ThrottleStats(key, bucket.tokens, bucket.rate, bucket.burst) for key, bucket in buckets.items()
        ]
        intents: Counter[str] = Counter([intent.kind for intent in core.intents.values()])
        now_ms, lanes, rows = core.now_ms(), core.memory.lanes, core.memory.rows
        writes, staged_bytes = len(core.staged.writes), core.staged.stored_bytes
        consumers: dict[int, list[ConsumerInfo]] = {}
        for state in core.consumer_book:
            consumers.setdefault(state.record.queue_id, []).append(info_of(state.record))
    found = []
    for queue_id in queue_ids:
        with core.step():
            core.check_open()
            queue = core.by_id.get(queue_id)
            if queue is not None:
                found.append(_measure(core, queue, consumers.get(queue_id, [])))
    return Measures(now_ms, found, throttles, dict(intents), lanes, rows, writes, staged_bytes)


def _measure(core: Core, queue: QueueState, consumers: list[ConsumerInfo]) -> QueueMeasures:
    scheduler, counters, dead = (
        queue.scheduler,
        core.store.counters(queue.queue_id),
        core.store.counters(queue.record.dlq_id),
    )
    heads = scheduler.heads(_MOST_LANES)
    return QueueMeasures(
        queue_id=queue.queue_id,
        queue=queue.name,
        ready=counters.ready,
        waiting=counters.waiting,
        leased=counters.leased,
        done=counters.done,
        dead=dead.messages,
        bytes=counters.bytes,
        dead_bytes=dead.bytes,
        consumers=len({waiter.consumer for waiter in queue.waiters} | core.leases.consumers(queue.queue_id)),
        active_keys=scheduler.active_keys,
        paused=queue.record.paused,
        oldest_ready_ms=min((id_time_ms(row_id(row)) for row in heads), default=None),
        parked_lanes=scheduler.parked_lanes,
        holds=scheduler.holds,
        hook_breakers={
            hook.function: hook.breaker_open_until_ms is not None for hook in core.hooks.stats(queue.queue_id)
        },
        failure_breakers=_failure_breakers(core, queue),
        durable_consumers=len(consumers),
        numbered_claims=sum(1 for info in consumers if info.open),
        numbered_messages=sum(info.messages for info in consumers if info.open),
        gives_up_ms=min((info.expires_at for info in consumers if info.open), default=None),
    )


def _failure_breakers(core: Core, queue: QueueState) -> dict[str, bool]:
    if not queue.config.failure_breaker.failures:
        return {}
    now_ms = core.now_ms()
    return {
        reason.word: core.breaker(queue.queue_id, reason).open_until_ms(now_ms) > 0
        for reason in FailureReason
    }
