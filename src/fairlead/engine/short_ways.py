"""Short ways for requests about plain messages: bare enqueues with or without delays, claims, and completions
or failures of one lease.

Nearly all programs send little else, and the general way's preparations cost far more than one such message,
or a few. A short way reads memory, loads at most the next messages of its lanes, which changes nothing that
is stored, and returns the fact of its transaction with the answer; the engine adds the remembered answer of a
numbered request. It gives up if anything is unusual; then the verb's work decides, in a transaction. Cold
chunks of other messages, dead letters and waiting messages do not prevent it, because nearly every store has
some. Facts, rows and answers are those of the general way: `tests/conformance/engines/test_short_ways.py`
compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from fairlead.engine import cold
from fairlead.engine.chunk_messages import ChunkMessages
from fairlead.engine.moves import fail_together
from fairlead.engine.reduce.hot_room import must_scatter
from fairlead.engine.room import LEASE_BYTES, MESSAGE_BYTES
from fairlead.engine.transaction import by_block
from fairlead.engine.work.ahead import LARGE_PAYLOAD_BYTES
from fairlead.engine.work.claim import is_good_at_a_glance
from fairlead.engine.work.enqueue import own_where, to_columns, waiting_states
from fairlead.engine.work.large import SETTLE_PART
from fairlead.engine.work.large_enqueue import LARGE_BYTES
from fairlead.engine.work.settle import find_completed, find_failed
from fairlead.errors import InvalidRequest
from fairlead.model.checks import CheckedColumns, find_columns, is_bare_but_delay
from fairlead.model.delivery import Delivery
from fairlead.model.durations import to_ms
from fairlead.model.ids import show_id
from fairlead.model.limits import MAX_ANSWER_BYTES
from fairlead.model.message import NewMessage
from fairlead.model.settle import Complete, Fail, LeaseRef, Settlement, SettleResult
from fairlead.records.chunk import OWN, Chunk, Columns, Head
from fairlead.records.facts import ChunkEnqueued, Claimed, LeaseCompleted, StateFact
from fairlead.records.ids import (
    BLOCK_SHIFT,
    COMMIT_SHIFT,
    claim_group,
    find_number,
    id_of,
    id_prefix,
    shown_ids,
)
from fairlead.records.lease import NEVER_EXPIRES_MS, GroupLease, LeaseTerms
from fairlead.records.state import OwnState
from fairlead.store.kv.port import Table
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.settle import Settle

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: From an engine, a request, its commit, the store's time, the time of new ids, and the token of a claim: the
#: fact and the answer, or None.
ShortWay = Callable[["Engine", Any, int, int, int, str | None], tuple[StateFact, Any] | None]

_INTENTS = Table.INTENTS
_LISTS = (list, CheckedColumns)
#: The size of an id, and of its first half, which its chunk has.
_ID_BYTES, _PREFIX_BYTES = 16, 8
_new_chunk, _new_chunk_of_one = Chunk.of, Chunk.of_one
#: Messages of a batch: larger ones gain next to nothing.
MAX_MESSAGES = 500


def _enqueue_one(
    engine: Engine, request: Enqueue, commit: int, now_ms: int, id_ms: int, token: str | None
) -> tuple[StateFact, str] | None:
    if type(request.queue) is not str or not is_bare_but_delay(request):
        return None
    queue = engine.memory.by_name.get(request.queue)
    if (
        queue is None
        or not queue.takes_all
        or not engine.memory.has_room_for_lanes(engine.settings, queue, 1)
    ):
        return None
    payload, delay_ms = request.payload, 0 if request.delay is None else _find_delay(request.delay)
    if delay_ms is None or len(payload) > LARGE_PAYLOAD_BYTES:
        return None
    engine.store.check_room(len(payload) + MESSAGE_BYTES)
    columns = Columns(((request.fairness_key,),), None, request.weight, None, [len(payload)])
    first, prefix = commit << COMMIT_SHIFT, id_prefix(id_ms, commit)
    queue_id, shown_id = queue.record.queue_id, show_id(id_of(prefix, first))
    chunk = _new_chunk_of_one(queue_id, first, prefix, now_ms, columns, payload)
    if not delay_ms:
        return ChunkEnqueued(chunk), shown_id
    chunk.states, chunk.has_states_row = bytearray([OWN]), True
    return ChunkEnqueued(chunk, {first: OwnState(queue_id, due_ms=now_ms + delay_ms)}), shown_id


def _find_delay(delay: object) -> int | None:
    """The delay in milliseconds; None if it is invalid."""
    try:
        return to_ms(delay, "delay")
    except InvalidRequest:
        return None


def _enqueue_many(
    engine: Engine, request: EnqueueMany, commit: int, now_ms: int, id_ms: int, token: str | None
) -> tuple[StateFact, list[str]] | None:
    messages = request.messages
    if (
        type(request.queue) is not str
        or type(messages) not in _LISTS
        or not 0 < len(messages) <= MAX_MESSAGES
    ):
        return None
    if type(messages) is list:
        first = messages[0]
        # If the first message is not plain, do not check all of them in vain.
        if type(first) is not NewMessage or first.ttl is not None or first.dedup_key is not None:
            return None
    queue = engine.memory.by_name.get(request.queue)
    if queue is None or not queue.takes_all:
        return None
    given = find_columns(messages)
    if given is None or given.ttls is not None or given.dedup_keys is not None:
        return None
    columns, delays = to_columns(queue, given, now_ms), given.delays
    if delays is None and must_scatter(engine.memory, queue, columns):
        return None
    size = columns.total_bytes()
    if size > LARGE_BYTES or not engine.memory.has_room_for_lanes(engine.settings, queue, len(columns.lanes)):
        return None
    engine.store.check_room(size + MESSAGE_BYTES * len(columns.sizes))
    number, prefix = commit << COMMIT_SHIFT, id_prefix(id_ms, commit)
    head, queue_id = Head(number, prefix, now_ms, columns, None), queue.record.queue_id
    if delays is None:
        chunk = _new_chunk(queue_id, head, given.payloads)
        return ChunkEnqueued(chunk), shown_ids(prefix, chunk.numbers)
    chunk = _new_chunk(queue_id, head, given.payloads, own_where(delays))
    waiting = waiting_states(queue, chunk.numbers, delays, now_ms)
    return ChunkEnqueued(chunk, waiting), shown_ids(prefix, chunk.numbers)


def _claim(
    engine: Engine, request: Claim, commit: int, now_ms: int, id_ms: int, token: str | None
) -> tuple[StateFact, list[Delivery]] | None:
    memory, limit = engine.memory, request.limit
    if not is_good_at_a_glance(request) or limit > MAX_MESSAGES:
        return None
    if request.token is not None:
        # The token may have claimed messages before. A session has none.
        if token is not None or request.token in memory.by_token:
            return None
        token = request.token
    name: Any = request.queue
    queue = memory.by_name.get(name)
    if queue is None or not queue.counts.ready or queue.is_dead_letter_queue:
        return None
    record, expiries = queue.record, memory.expiries
    if record.paused or record.config.max_unsettled_per_consumer or memory.records[_INTENTS]:
        return None
    if memory.buckets.closed and memory.buckets.has_probes(now_ms):
        return None
    if (expiries and expiries[0][0] <= now_ms) or queue.may_have_due(now_ms) or queue.streams.may_be_on_disk:
        return None
    if queue.counts.bytes > MAX_ANSWER_BYTES:
        return None
    if engine.store.room(in_reserve=True) < (len(memory.held) + limit) * LEASE_BYTES:
        return None
    plan = queue.schedule.plan(limit, now_ms)
    if plan.needs and cold.is_quick(memory, queue, plan.needs):
        cold.read_on(memory, engine.store, queue, plan.needs)
        plan = queue.schedule.plan(limit, now_ms)
    numbers = plan.numbers
    if plan.needs or not numbers:
        return None
    if memory.cold_count and (blocks := cold.unknown_blocks(memory, numbers)):
        if len(blocks) > cold.most_chunks(memory, queue) // 2:
            return None
        cold.bring_blocks(memory, engine.store, blocks, queue.home_id)
    lease_ms, group = record.config.visibility_timeout_ms, claim_group(engine.epoch, commit, 1)
    until_ms, queue_id = now_ms + lease_ms, record.queue_id
    own = memory.own
    found: list[Delivery] = []
    terms = LeaseTerms(
        group,
        group,
        queue_id,
        queue_id,
        now_ms,
        until_ms,
        lease_ms,
        request.consumer,
        token or "",
        request.started,
    )
    if len(numbers) == 1 and not own:
        # The same as below, without loops.
        number = numbers[0]
        chunk = memory.chunks[number >> BLOCK_SHIFT]
        if chunk.payloads is None:
            return None
        stored = ChunkMessages(chunk, chunk.columns, chunk.payloads, queue.is_ordered)
        found.append(Delivery(stored, None, name, group, until_ms, 1, None, number))
        return Claimed(GroupLease(terms, numbers), numbers, plan), found
    has_states = bool(own) and not own.keys().isdisjoint(numbers)
    for block, members in by_block(numbers):
        chunk = memory.chunks[block]
        if chunk.payloads is None:
            return None
        stored = ChunkMessages(chunk, chunk.columns, chunk.payloads, queue.is_ordered)
        if not has_states:
            # A comprehension of a few costs less than a prepared call for each.
            found += [Delivery(stored, None, name, group, until_ms, 1, None, number) for number in members]
            continue
        for number in members:
            state = own.get(number)
            delivered = 1 if state is None else state.deliveries + 1
            found.append(Delivery(stored, state, name, group, until_ms, delivered, None, number))
    return Claimed(GroupLease(terms, numbers), numbers, plan), found


def _settle(
    engine: Engine, request: Settle, commit: int, now_ms: int, id_ms: int, token: str | None
) -> tuple[StateFact, list[SettleResult]] | None:
    items = request.items
    if type(items) is not list or not 0 < len(items) <= MAX_MESSAGES:
        return None
    buckets = engine.memory.buckets
    if buckets.closed and buckets.has_probes(now_ms):
        return None
    kind = type(items[0])
    if kind is Complete:
        return _complete_one(engine, items[0]) if len(items) == 1 else _complete_many(engine, items)
    return _fail(engine, items, commit, now_ms) if kind is Fail and len(items) <= SETTLE_PART else None


def _complete_one(engine: Engine, item: Complete) -> tuple[StateFact, list[SettleResult]] | None:
    """`_complete_many` without loops."""
    memory = engine.memory
    delivery: Any = item.delivery
    if item.progress != 0:
        return None
    if type(delivery) is LeaseRef:
        raw_id = delivery.raw_id
        if type(raw_id) is not bytes or len(raw_id) != _ID_BYTES or type(delivery.claim_id) is not int:
            return None
        number, prefix = find_number(raw_id), raw_id[:_PREFIX_BYTES]
        if number is None:
            return None
    elif type(delivery) is Delivery and type(delivery.stored) is ChunkMessages:
        number, prefix = delivery.number, delivery.stored.chunk.prefix
    else:
        return None
    lease, chunk = memory.held.get(number), memory.chunks.get(number >> BLOCK_SHIFT)
    if lease is None or lease.terms.claim_id != delivery.claim_id:
        return None
    if lease.terms.expires_ms == NEVER_EXPIRES_MS:
        return None
    # Another engine may have assigned the same numbers.
    if chunk is None or chunk.prefix != prefix:
        return None
    queue = memory.by_id[lease.terms.queue_id]
    if queue.record.config.retain_completed_ms or queue.streams.may_be_on_disk:
        return None
    return LeaseCompleted(lease, [number]), [SettleResult(id_of(chunk.prefix, number), "completed")]


def _complete_many(engine: Engine, items: list[Settlement]) -> tuple[StateFact, list[SettleResult]] | None:
    memory = engine.memory
    completed = find_completed(memory, items)
    if completed is None:
        return None
    queue = memory.by_id[completed.lease.terms.queue_id]
    if queue.record.config.retain_completed_ms or queue.streams.may_be_on_disk:
        return None
    return LeaseCompleted(completed.lease, completed.numbers), completed.results()


def _fail(
    engine: Engine, items: list[Settlement], commit: int, now_ms: int
) -> tuple[StateFact, list[SettleResult]] | None:
    memory = engine.memory
    failed = find_failed(memory, items)
    if failed is None or engine.store.room() <= 0:
        return None
    members, places = failed.members, count(commit << COMMIT_SHIFT)
    together = fail_together(
        memory, members.lease, members.numbers, failed.said, now_ms=now_ms, next_place=places.__next__
    )
    return None if together is None else (together.fact, failed.results(together.decisions))


#: The short way for requests of each type. It checks the request first, and gives up if the request is
#: unusual.
SHORT_WAYS: dict[type, ShortWay] = {
    Enqueue: _enqueue_one,
    EnqueueMany: _enqueue_many,
    Claim: _claim,
    Settle: _settle,
}
#: CPython calls a function of an imported module faster than a method of an imported object.
find_short_way = SHORT_WAYS.get
