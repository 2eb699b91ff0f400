"""Looking, without changing anything."""

from __future__ import annotations

from fairlead.engine.transaction import Transaction
from fairlead.model.views import QueueStats
from fairlead.verbs.inspect import Stats


def stats(tx: Transaction, request: Stats) -> QueueStats:
    queue = tx.queue(request.queue)
    memory, counts, record = tx.memory, queue.counts, queue.record
    dead = memory.by_id[record.dlq_id or record.queue_id].counts
    return QueueStats(
        queue=queue.name,
        ready=counts.ready,
        waiting=counts.waiting,
        leased=counts.leased,
        dead=dead.messages,
        done=counts.done,
        bytes=counts.bytes,
        consumers=len({lease.terms.consumer for lease in queue.leases.values()}),
        active_keys=queue.schedule.active_keys,
        paused=record.paused,
    )
