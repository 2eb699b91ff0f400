"""Short ways for requests about one plain message: a bare enqueue, a claim of one, a completion of one.

Programs that take messages one by one send little else, and what a transaction has to be ready for costs far more than
such a message itself. A short way looks at memory, changes nothing, and names the only fact of its transaction with the
answer. It gives up wherever anything is unusual, and then the work of the verb decides, in a transaction. Facts, rows
and answers are those of the general way: `tests/property/test_short_ways.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairlead.engine.chunk_messages import ChunkMessages
from fairlead.engine.room import LEASE_BYTES, MESSAGE_BYTES
from fairlead.engine.work.claim import is_good_at_a_glance
from fairlead.engine.work.enqueue import has_room_for_lanes
from fairlead.model.checks import is_bare
from fairlead.model.delivery import Delivery
from fairlead.model.ids import show_id
from fairlead.model.settle import Complete, SettleResult
from fairlead.records.chunk import Chunk, Columns, Head
from fairlead.records.facts import ChunkEnqueued, Claimed, LeaseCompleted, StateFact
from fairlead.records.ids import BLOCK_SHIFT, COMMIT_SHIFT, claim_group, id_of, id_prefix
from fairlead.records.lease import GroupLease, LeaseTerms
from fairlead.request import Request
from fairlead.store.kv.port import Table
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue
from fairlead.verbs.settle import Settle

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Of an engine, a request, its commit, the store's time and the time of new ids: the fact and the answer, or None.
ShortWay = Callable[["Engine", Any, int, int, int], tuple[StateFact, Any] | None]


def find_short_way(request: Request[Any]) -> ShortWay | None:
    """Without the lock: the way that may be open to this request."""
    kind = type(request)
    if kind is Enqueue:
        return _enqueue_one if is_bare(request) else None  # type: ignore[arg-type]
    if kind is Claim:
        return _claim_one if request.limit == 1 and is_good_at_a_glance(request) else None  # type: ignore[attr-defined, arg-type]
    if kind is Settle:
        items = request.items  # type: ignore[attr-defined]
        return _complete_one if type(items) is list and len(items) == 1 else None
    return None


def _enqueue_one(
    engine: Engine, request: Enqueue, commit: int, now_ms: int, id_ms: int
) -> tuple[StateFact, str] | None:
    memory = engine.memory
    queue = memory.by_name.get(request.queue) if type(request.queue) is str else None
    if queue is None or queue.is_dead_letter_queue:
        return None
    config = queue.record.config
    if config.ttl_ms or config.max_messages or config.max_bytes:
        return None
    if not has_room_for_lanes(engine.settings, memory, queue, 1):
        return None
    payload = request.payload
    engine.store.check_room(len(payload) + MESSAGE_BYTES)
    columns = Columns(((request.fairness_key,),), None, request.weight, None, [len(payload)])
    first, prefix = commit << COMMIT_SHIFT, id_prefix(id_ms, commit)
    chunk = Chunk(queue.record.queue_id, Head(first, prefix, now_ms, columns, None), [payload])
    return ChunkEnqueued(chunk), show_id(id_of(prefix, first))


def _claim_one(
    engine: Engine, request: Claim, commit: int, now_ms: int, id_ms: int
) -> tuple[StateFact, list[Delivery]] | None:
    memory = engine.memory
    queue = memory.by_name.get(str(request.queue))
    if queue is None or not queue.counts.ready or queue.is_dead_letter_queue:
        return None
    record, expiries = queue.record, memory.expiries
    if record.paused or record.config.max_unsettled_per_consumer or memory.records[Table.INTENTS]:
        return None
    if (expiries and expiries[0][0] <= now_ms) or queue.may_have_due(now_ms) or queue.streams.has_any:
        return None
    if engine.store.room(in_reserve=True) < (len(memory.held) + 1) * LEASE_BYTES:
        return None
    plan = queue.schedule.plan(1, now_ms)
    numbers = plan.numbers
    if plan.needs or not numbers or numbers[0] in memory.own:
        return None
    number = numbers[0]
    chunk = memory.chunks[number >> BLOCK_SHIFT]
    if chunk.payloads is None:
        return None
    lease_ms, group = record.config.visibility_timeout_ms, claim_group(engine.epoch, commit, 1)
    until_ms, queue_id = now_ms + lease_ms, record.queue_id
    terms = LeaseTerms(group, group, queue_id, queue_id, now_ms, until_ms, lease_ms, "", "", request.started)
    stored = ChunkMessages(chunk, chunk.payloads, is_ordered=queue.is_ordered)
    delivery = Delivery(stored, None, record.name, group, until_ms, 1, None, number)
    return Claimed(GroupLease(terms, numbers), numbers, plan), [delivery]


def _complete_one(
    engine: Engine, request: Settle, commit: int, now_ms: int, id_ms: int
) -> tuple[StateFact, list[SettleResult]] | None:
    memory, item = engine.memory, request.items[0]
    if type(item) is not Complete or item.progress != 0 or type(item.delivery) is not Delivery:
        return None
    delivery = item.delivery
    number, stored = delivery.number, delivery.stored
    lease, chunk = memory.held.get(number), memory.chunks.get(number >> BLOCK_SHIFT)
    if lease is None or lease.is_numbered or lease.terms.claim_id != delivery.claim_id:
        return None
    # Another engine may have given out the same numbers.
    if chunk is None or type(stored) is not ChunkMessages or chunk.prefix != stored.prefix:
        return None
    # What is left of a chunk may have to become cold, and so on.
    if chunk.live != 1 or chunk.columns.streams is not None:
        return None
    config = memory.by_id[lease.terms.queue_id].record.config
    if config.retain_completed_ms or config.max_unsettled_per_key:
        return None
    return LeaseCompleted(lease, [number]), [SettleResult(stored.raw_id(number), "completed")]
