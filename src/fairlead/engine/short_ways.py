"""Short ways for requests about plain messages: bare enqueues, claims, and completions of one lease.

Nearly all programs send little else, and what a transaction has to be ready for costs far more than one such message,
or a few. A short way looks at memory, reads at most the next messages of its lanes, which changes nothing that is
stored, and names the only fact of its transaction with the answer. It gives up wherever anything is unusual, and then
the work of the verb decides, in a transaction. Cold chunks of other messages, dead letters and waiting ones, do not
matter to it, because nearly every store has some. Facts, rows and answers are those of the general way:
`tests/property/test_short_ways.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlead.engine import cold
from fairlead.engine.chunk_messages import ChunkMessages
from fairlead.engine.memory import Queue
from fairlead.engine.room import LEASE_BYTES, MESSAGE_BYTES
from fairlead.engine.transaction import by_block
from fairlead.engine.work.claim import is_good_at_a_glance
from fairlead.engine.work.enqueue import has_room_for_lanes, to_columns
from fairlead.engine.work.large_enqueue import LARGE_BYTES
from fairlead.engine.work.settle import find_completed
from fairlead.model.checks import find_columns, is_bare
from fairlead.model.delivery import Delivery
from fairlead.model.ids import show_id
from fairlead.model.limits import MAX_ANSWER_BYTES
from fairlead.model.message import NewMessage
from fairlead.model.settle import Complete, LeaseRef, SettleResult
from fairlead.records.chunk import Chunk, Columns, Head
from fairlead.records.facts import ChunkEnqueued, Claimed, LeaseCompleted, StateFact
from fairlead.records.ids import BLOCK_SHIFT, COMMIT_SHIFT, claim_group, id_of, id_prefix, shown_ids
from fairlead.records.lease import GroupLease, LeaseTerms
from fairlead.request import Request
from fairlead.store.kv.port import Table
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.settle import Settle

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Of an engine, a request, its commit, the store's time and the time of new ids: the fact and the answer, or None.
ShortWay = Callable[["Engine", Any, int, int, int], tuple[StateFact, Any] | None]

#: Messages of a batch: more of them gain next to nothing.
MAX_MESSAGES = 500


def find_short_way(request: Request[Any]) -> ShortWay | None:
    """Without the lock: the way that may be open to this request."""
    given: Any = request
    kind = type(request)
    if kind is Enqueue:
        return _enqueue_one if is_bare(given) else None
    if kind is EnqueueMany:
        messages = given.messages
        is_open = type(messages) is list and 0 < len(messages) <= MAX_MESSAGES
        # If the first one is not plain, do not look at all of them in vain.
        return _enqueue_many if is_open and _is_plain(messages[0]) else None
    if kind is Claim:
        return _claim if is_good_at_a_glance(given) and given.limit <= MAX_MESSAGES else None
    if kind is Settle:
        items = given.items
        is_open = type(items) is list and 0 < len(items) <= MAX_MESSAGES and type(items[0]) is Complete
        if is_open and len(items) == 1:
            return _complete_one
        return _complete_many if is_open else None
    return None


def _is_plain(some: object) -> bool:
    return type(some) is NewMessage and some.delay is some.ttl is some.dedup_key is None


def _enqueue_one(
    engine: Engine, request: Enqueue, commit: int, now_ms: int, id_ms: int
) -> tuple[StateFact, str] | None:
    queue = _plain_queue(engine, request.queue)
    if queue is None or not has_room_for_lanes(engine.settings, engine.memory, queue, 1):
        return None
    payload = request.payload
    engine.store.check_room(len(payload) + MESSAGE_BYTES)
    columns = Columns(((request.fairness_key,),), None, request.weight, None, [len(payload)])
    first, prefix = commit << COMMIT_SHIFT, id_prefix(id_ms, commit)
    chunk = Chunk.of(queue.record.queue_id, Head(first, prefix, now_ms, columns, None), [payload])
    return ChunkEnqueued(chunk), show_id(id_of(prefix, first))


def _enqueue_many(
    engine: Engine, request: EnqueueMany, commit: int, now_ms: int, id_ms: int
) -> tuple[StateFact, list[str]] | None:
    queue = _plain_queue(engine, request.queue)
    if queue is None:
        return None
    given = find_columns(request.messages)
    if given is None or not (given.delays is given.ttls is None and given.dedup_keys is None):
        return None
    columns = to_columns(queue, given, now_ms)
    if engine.memory.must_scatter(queue, columns):
        return None
    size = columns.total_bytes()
    if size > LARGE_BYTES or not has_room_for_lanes(
        engine.settings, engine.memory, queue, len(columns.lanes)
    ):
        return None
    engine.store.check_room(size + MESSAGE_BYTES * len(columns.sizes))
    first, prefix = commit << COMMIT_SHIFT, id_prefix(id_ms, commit)
    chunk = Chunk.of(queue.record.queue_id, Head(first, prefix, now_ms, columns, None), given.payloads)
    return ChunkEnqueued(chunk), shown_ids(prefix, chunk.numbers)


def _plain_queue(engine: Engine, name: object) -> Queue | None:
    """A queue that takes messages without more ado."""
    queue = engine.memory.by_name.get(name) if isinstance(name, str) else None
    if queue is None or queue.is_dead_letter_queue:
        return None
    config = queue.record.config
    return None if config.ttl_ms or config.max_messages or config.max_bytes else queue


def _claim(
    engine: Engine, request: Claim, commit: int, now_ms: int, id_ms: int
) -> tuple[StateFact, list[Delivery]] | None:
    memory, limit = engine.memory, request.limit
    queue = memory.by_name.get(str(request.queue))
    if queue is None or not queue.counts.ready or queue.is_dead_letter_queue:
        return None
    record, expiries = queue.record, memory.expiries
    if record.paused or record.config.max_unsettled_per_consumer or memory.records[Table.INTENTS]:
        return None
    if (expiries and expiries[0][0] <= now_ms) or queue.may_have_due(now_ms) or queue.streams.may_be_on_disk:
        return None
    if queue.counts.bytes > MAX_ANSWER_BYTES:
        return None
    if engine.store.room(in_reserve=True) < (len(memory.held) + limit) * LEASE_BYTES:
        return None
    plan = queue.schedule.plan(limit, now_ms)
    while 0 < len(plan.needs) <= cold.STEP_LANES:
        cold.read_on(memory, engine.store, queue, plan.needs)
        plan = queue.schedule.plan(limit, now_ms)
    numbers = plan.numbers
    if plan.needs or not numbers:
        return None
    if memory.cold_count:
        cold.bring_chunks(memory, engine.store, numbers, queue.home_id)
    lease_ms, group = record.config.visibility_timeout_ms, claim_group(engine.epoch, commit, 1)
    until_ms, queue_id, name = now_ms + lease_ms, record.queue_id, record.name
    own, found = memory.own, list[Delivery]()
    has_states = bool(own) and not own.keys().isdisjoint(numbers)
    for block, members in by_block(numbers):
        chunk = memory.chunks[block]
        if chunk.payloads is None:
            return None
        stored = ChunkMessages(chunk, chunk.payloads, is_ordered=queue.is_ordered)
        if not has_states:
            found += map(partial(Delivery, stored, None, name, group, until_ms, 1, None), members)
            continue
        for number in members:
            state = own.get(number)
            count = 1 if state is None else state.deliveries + 1
            found.append(Delivery(stored, state, name, group, until_ms, count, None, number))
    terms = LeaseTerms(group, group, queue_id, queue_id, now_ms, until_ms, lease_ms, "", "", request.started)
    return Claimed(GroupLease(terms, numbers), numbers, plan), found


def _complete_one(
    engine: Engine, request: Settle, commit: int, now_ms: int, id_ms: int
) -> tuple[StateFact, list[SettleResult]] | None:
    """`_complete_many` without its loops."""
    memory, item = engine.memory, request.items[0]
    delivery: Any = item.delivery
    if type(delivery) is LeaseRef:
        return _complete_many(engine, request, commit, now_ms, id_ms)
    if type(delivery) is not Delivery or item.progress != 0:  # type: ignore[union-attr]  # a `Complete`
        return None
    number, stored = delivery.number, delivery.stored
    lease, chunk = memory.held.get(number), memory.chunks.get(number >> BLOCK_SHIFT)
    if lease is None or lease.is_numbered or lease.terms.claim_id != delivery.claim_id:
        return None
    # Another engine may have given out the same numbers.
    if chunk is None or type(stored) is not ChunkMessages or chunk.prefix != stored.prefix:
        return None
    queue = memory.by_id[lease.terms.queue_id]
    if queue.record.config.retain_completed_ms or queue.streams.may_be_on_disk:
        return None
    return LeaseCompleted(lease, [number]), [SettleResult(id_of(chunk.prefix, number), "completed")]


def _complete_many(
    engine: Engine, request: Settle, commit: int, now_ms: int, id_ms: int
) -> tuple[StateFact, list[SettleResult]] | None:
    memory = engine.memory
    completed = find_completed(memory, request.items)
    if completed is None:
        return None
    queue = memory.by_id[completed.lease.terms.queue_id]
    if queue.record.config.retain_completed_ms or queue.streams.may_be_on_disk:
        return None
    return LeaseCompleted(completed.lease, completed.numbers), completed.results()
