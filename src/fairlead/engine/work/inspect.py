"""The statistics of a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from fairlead.decide.arguments import check_count
from fairlead.engine.closed_throttles import show_closed
from fairlead.engine.cold import STEP_LANES
from fairlead.engine.met import step
from fairlead.engine.queue import Queue
from fairlead.engine.transaction import StepsTable, Transaction
from fairlead.model.limits import COUNT_LIMIT, SCAN_LIMIT
from fairlead.model.views import KeyStats, QueueStats, ThrottleStats
from fairlead.records.chunk import LaneName
from fairlead.request import Caller
from fairlead.schedule.drr import LaneNames
from fairlead.schedule.throttle import Bucket
from fairlead.verbs.inspect import Stats

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine


def stats(engine: Engine, request: Stats, caller: Caller) -> QueueStats:
    """The counts are those of one moment; pending messages of keys are counted after it."""
    check_count(request.key_limit, "key_limit", most=COUNT_LIMIT)
    with engine.transaction() as tx:
        queue = tx.queue(request.queue)
        counted = _counts(engine, tx, queue)
        waiting, leases = engine.waiting_consumers(queue), list(queue.leases.values())
        buckets, closed, now_ms = tx.memory.buckets.all(), tuple(show_closed(tx)), tx.now_ms
        shares = queue.schedule.shares(request.key_limit) if request.keys else []
        lanes = queue.schedule.lane_names()
        by_key = engine.tally.of(queue.record.queue_id).by_key.copy() if shares else Counter()
    consumers = waiting | {lease.terms.consumer for lease in leases}
    throttles = _throttles(buckets, now_ms)
    found = replace(counted, consumers=len(consumers), throttles=throttles, closed_throttles=closed)
    if not shares:
        return found
    pending = _count_pending(engine, queue.record.queue_id, lanes, {name for name, _, _ in shares})
    # The sum over all keys stays within SCAN_LIMIT.
    most = min(COUNT_LIMIT, SCAN_LIMIT // len(shares))
    keys = [
        KeyStats(name, weight, deficit, min(pending[name], most), pending[name] > most, by_key[name])
        for name, weight, deficit in sorted(shares)
    ]
    return replace(found, keys=tuple(keys))


def _counts(engine: Engine, tx: Transaction, queue: Queue) -> QueueStats:
    counts, record = queue.counts, queue.record
    dead = tx.memory.by_id[record.dlq_id or record.queue_id].counts
    return QueueStats(
        queue=queue.name,
        ready=counts.ready,
        waiting=counts.waiting,
        leased=counts.leased,
        dead=dead.messages,
        done=counts.done,
        bytes=counts.bytes,
        consumers=0,
        active_keys=queue.schedule.active_keys,
        paused=record.paused,
        totals=engine.tally.of(record.queue_id).totals(),
        hooks=tuple(engine.hooking.hooks.stats(record.queue_id)),
    )


def _throttles(buckets: Mapping[str, Bucket], now_ms: int) -> tuple[ThrottleStats, ...]:
    return tuple(
        [
            ThrottleStats(key, bucket.tokens_at(now_ms), bucket.rate, bucket.burst)
            for key, bucket in sorted(buckets.items())
        ]
    )


def _count_pending(engine: Engine, queue_id: int, lanes: LaneNames, keys: set[str]) -> Counter[str]:
    """Ready messages by key, lane by lane in short steps."""
    pending: Counter[str] = Counter()
    wanted = (lane for lane in lanes.of(None) if lane[0] in keys)
    while some := list(islice(wanted, STEP_LANES)):
        with step(engine) as tx:
            queue = tx.memory.by_id.get(queue_id)
            if queue is None:
                break
            for lane in some:
                pending[lane[0]] += _count_lane(tx, queue, lane)
    return pending


def _count_lane(tx: Transaction, queue: Queue, lane: LaneName) -> int:
    """Ready messages of a lane, counted to just past COUNT_LIMIT where they are on disk."""
    count = queue.schedule.count_ready(lane)
    if not queue.schedule.cold_from(lane) or count > COUNT_LIMIT:
        return count
    return len(tx.lane_after(queue, lane, 0, COUNT_LIMIT + 1))


WORK_IN_STEPS: StepsTable = {
    Stats: stats,
}
