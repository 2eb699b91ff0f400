"""Enqueues: checked messages become columns, and columns become chunks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from msgspec.structs import replace

from fairlead.decide.arguments import check_error
from fairlead.engine import moves
from fairlead.engine.queue import Queue
from fairlead.engine.reduce.hot_room import must_scatter
from fairlead.engine.room import MESSAGE_BYTES, STATE_BYTES
from fairlead.engine.transaction import Transaction, WorkTable
from fairlead.errors import InvalidRequest, QueueFull, TooManyLanes
from fairlead.model.checks import (
    CheckedMessage,
    MessageColumns,
    by_row,
    check_columns,
    check_messages,
    check_text,
    find_plain,
    is_bare,
)
from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.model.limits import MAX_DEDUP_KEY_BYTES
from fairlead.records.chunk import IMPLIED, OWN, Chunk, Columns, Head, LaneName
from fairlead.records.facts import (
    ChunkEnqueued,
    ChunkGrown,
    KeysRemembered,
    RecordsChanged,
    ScatteredEnqueued,
)
from fairlead.records.ids import MAX_CHUNK_MESSAGES, id_of, ids_of, shown_ids
from fairlead.records.staging import StagedPart
from fairlead.records.state import DedupRow, OwnState
from fairlead.store.kv.port import Table
from fairlead.store.rows import chunk_key, part_key
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine, Twin

#: More lanes than this do not fit in one byte for each message.
_MAX_BYTE = 256


def enqueue(tx: Transaction, request: Enqueue) -> str:
    if not tx.hooks.messages:
        if is_bare(request):
            return _enqueue_bare(tx, tx.queue(request.queue), request)
        tx.add_gathered()
        columns = find_plain(request)
        if columns is not None:
            return add(tx, prepare(tx, request.queue, columns))[0]
    return _append(tx, request, [request.message()])[0]


def _enqueue_bare(tx: Transaction, queue: Queue, request: Enqueue) -> str:
    """`add` and `prepare` for one message with only a payload and a key. This is by far the most frequent
    request, so it takes as few steps as possible.
    """
    if queue.is_dead_letter_queue:
        raise _is_for_dead_letters(queue.name)
    payload, config = request.payload, queue.record.config
    size = len(payload)
    if config.max_messages or config.max_bytes:
        check_bounds(tx, queue, 1, size)
    tx.store.check_room(size + MESSAGE_BYTES)
    tx.bytes += size
    if not (config.max_messages or config.max_bytes or config.ttl_ms):
        joined = tx.gather(queue, payload, request.fairness_key, request.weight)
        if joined is not None:
            return joined
    lane = (request.fairness_key,)
    check_lanes(tx, queue, 1, lambda: {lane})
    expires = [tx.now_ms + config.ttl_ms] if config.ttl_ms else None
    columns = Columns((lane,), None, request.weight, None, (size,), expires)
    growing = tx.growing_chunk(queue, columns)
    if growing is not None:
        chunk = growing.chunk
        number = chunk.first + chunk.count
        tx.add(ChunkGrown(chunk, growing.fit(columns), [payload], {}))
        return show_id(id_of(chunk.prefix, number))
    first, prefix, body = tx.next_shared_block(), tx.next_prefix(), _take_over(tx, queue, (payload,))
    chunk = Chunk.of(queue.record.queue_id, Head(first, prefix, tx.now_ms, columns, None, body), (payload,))
    tx.add(ChunkEnqueued(chunk))
    tx.let_grow(chunk)
    return show_id(id_of(prefix, first))


def enqueue_many(tx: Transaction, request: EnqueueMany) -> list[str]:
    return _append(tx, request, request.messages)


def _append(tx: Transaction, request: Enqueue | EnqueueMany, messages: Any) -> list[str]:
    tx.add_gathered()
    decided = tx.hooks.messages.get(id(request))
    return add(tx, prepare(tx, request.queue, check_columns(messages) if decided is None else decided))


def checked(tx: Transaction, request: Enqueue | EnqueueMany, messages: Any) -> list[CheckedMessage]:
    """The messages of a request, with the results of its queue's `on_enqueue` hook applied."""
    decided = tx.hooks.messages.get(id(request))
    return check_messages(messages) if decided is None else by_row(decided)


def quarantine(tx: Transaction, request: Quarantine) -> list[str]:
    """Add dead letters directly, with a record of the reason. They have no time to live and no dedup key."""
    given, error, reason = check_quarantine(request)
    queue = queue_of_quarantine(tx, request)
    check_room_for_dead(tx, given, error)
    ids: list[str] = []
    for start in range(0, given.length, MAX_CHUNK_MESSAGES):
        part = given.rows(start, start + MAX_CHUNK_MESSAGES)
        columns = to_columns(queue, part, tx.now_ms, joins_streams=False)
        head = Head(tx.next_block(), tx.next_prefix(), tx.now_ms, columns, None)
        chunk = Chunk.of(queue.record.queue_id, head, part.payloads, bytearray([OWN]) * part.length)
        dead = {number: moves.quarantine(tx, number, queue, error, reason) for number in chunk.numbers}
        tx.add(ChunkEnqueued(chunk, dead))
        ids += shown_ids(chunk.prefix, chunk.numbers)
    return ids


def check_quarantine(request: Quarantine) -> tuple[MessageColumns, str, FailureReason]:
    """The messages without fields that dead letters do not have; the text and the reason of their record."""
    given = check_columns(request.messages)
    error, reason = check_error(request.error, request.reason)
    return given._replace(ttls=[0] * given.length, delays=None, dedup_keys=None), error, reason


def queue_of_quarantine(tx: Transaction, request: Quarantine) -> Queue:
    queue = tx.queue(request.queue)
    if queue.is_dead_letter_queue:
        wanted = "the queue the messages belong to, not its dead-letter queue"
        raise InvalidRequest("queue", wanted, request.queue)
    return queue


def check_room_for_dead(tx: Transaction, given: MessageColumns, error: str) -> None:
    if given.length:
        bodies = sum(map(len, given.payloads)) + sum(map(len, given.headers or ()))
        tx.store.check_room(bodies + (MESSAGE_BYTES + STATE_BYTES + len(error)) * given.length)


def twin(tx: Transaction, request: Twin) -> str | None:
    key = check_text(request.dedup_key, "dedup_key", MAX_DEDUP_KEY_BYTES)
    row = tx.dedup_rows(tx.queue(request.queue).record.queue_id, [key]).get(key)
    return show_id(row.raw_id) if row is not None and row.holds(tx.now_ms) else None


class Prepared(NamedTuple):
    """Checked messages that may be added to a queue."""

    queue: Queue
    #: The columns of each chunk, with the messages as they were given.
    batches: Sequence[tuple[Columns, MessageColumns]]
    #: For each message: the id of its duplicate, or its index among the new messages. None: all are new.
    found: Sequence[str | int] | None
    #: The first new message with each dedup key.
    first: dict[str, int]

    @property
    def has_dedup_keys(self) -> bool:
        return self.found is not None


def source_queue(tx: Transaction, name: str) -> Queue:
    """A queue that messages may be enqueued into."""
    queue = tx.queue(name)
    if queue.is_dead_letter_queue:
        raise _is_for_dead_letters(name)
    return queue


def prepare(tx: Transaction, name: str, messages: MessageColumns, *, is_bounded: bool = True) -> Prepared:
    """Check and read, and change nothing. `is_bounded=False`: the bounds of the queue were checked before."""
    queue = source_queue(tx, name)
    found: Sequence[str | int] | None = None
    first: dict[str, int] = {}
    new = messages
    if messages.dedup_keys is not None:
        found, first, new = _find_twins(tx, queue, messages, messages.dedup_keys)
    count = len(new.payloads)
    if 0 < count <= MAX_CHUNK_MESSAGES:
        batches = [(to_columns(queue, new, tx.now_ms), new)]
    else:
        starts = range(0, count, MAX_CHUNK_MESSAGES)
        parts = [new.rows(start, start + MAX_CHUNK_MESSAGES) for start in starts]
        batches = [(to_columns(queue, part, tx.now_ms), part) for part in parts]
    if count and is_bounded:
        # If all are duplicates, nothing new is added, which also fits in a queue that redrives have
        # overfilled.
        size = sum([columns.total_bytes() for columns, _ in batches])
        check_bounds(tx, queue, count, size)
        tx.store.check_room(size + MESSAGE_BYTES * count)
        lanes = [columns.lanes for columns, _ in batches]
        check_lanes(tx, queue, sum(map(len, lanes)), lambda: {*chain.from_iterable(lanes)})
        tx.bytes += size
    return Prepared(queue, batches, found, first)


def _is_for_dead_letters(name: str) -> InvalidRequest:
    return InvalidRequest("queue", "no dead-letter queue; a quarantine puts messages there", name)


def add(tx: Transaction, prepared: Prepared) -> list[str]:
    """Add the messages, and return the id of each, including duplicates."""
    queue, found = prepared.queue, prepared.found
    chunks = _add_chunks(tx, queue, prepared.batches)
    if found is None and len(chunks) == 1:
        return shown_ids(*chunks[0])
    if found is None:
        return [shown for prefix, numbers in chunks for shown in shown_ids(prefix, numbers)]
    raw_ids = [raw_id for prefix, numbers in chunks for raw_id in ids_of(prefix, numbers)]
    window_ms = queue.record.config.dedup_window_ms
    until_ms = tx.now_ms + window_ms if window_ms else 0
    if prepared.first:
        remembered = {key: DedupRow(raw_ids[at], until_ms) for key, at in prepared.first.items()}
        tx.add(KeysRemembered(queue.record.queue_id, remembered))
    shown = [one for prefix, numbers in chunks for one in shown_ids(prefix, numbers)]
    return [shown[known] if isinstance(known, int) else known for known in found]


def _find_twins(
    tx: Transaction, queue: Queue, messages: MessageColumns, dedup_keys: Sequence[str]
) -> tuple[Sequence[str | int], dict[str, int], MessageColumns]:
    """`found` and `first` of `Prepared`, and the new messages: a message with a known dedup key is not new."""
    keys = list(dict.fromkeys(filter(None, dedup_keys)))
    rows = tx.dedup_rows(queue.record.queue_id, keys)
    ids = {key: show_id(row.raw_id) for key, row in rows.items() if row.holds(tx.now_ms)}
    if not ids and len(keys) == messages.length:
        return range(messages.length), {key: at for at, key in enumerate(keys)}, messages
    new: list[int] = []
    found: list[str | int] = []
    first: dict[str, int] = {}
    for at, key in enumerate(dedup_keys):
        if key in ids:
            found.append(ids[key])
        elif key and key in first:
            found.append(first[key])
        else:
            found.append(len(new))
            if key:
                first[key] = len(new)
            new.append(at)
    return found, first, messages if len(new) == messages.length else messages.only(new)


def _add_chunks(
    tx: Transaction, queue: Queue, batches: Sequence[tuple[Columns, MessageColumns]]
) -> list[tuple[bytes, range]]:
    """The numbers of the messages, with the prefix of their ids, for each chunk."""
    chunks: list[tuple[bytes, range]] = []
    for columns, messages in batches:
        if messages.delays is None and must_scatter(tx.memory, queue, columns):
            chunks += _add_alone(tx, queue, columns, messages)
        else:
            chunks.append(_add_chunk(tx, queue, columns, messages))
    return chunks


def _add_alone(
    tx: Transaction, queue: Queue, columns: Columns, messages: MessageColumns
) -> Iterator[tuple[bytes, range]]:
    """Each message in a chunk of its own."""
    numbers = tx.next_shared_blocks(messages.length)
    tx.let_none_grow(queue)
    fact = ScatteredEnqueued(queue.record.queue_id, numbers, tx.now_ms, tx.id_ms, columns, messages.payloads)
    tx.add(fact)
    return fact.by_commit()


def _add_chunk(
    tx: Transaction, queue: Queue, columns: Columns, messages: MessageColumns
) -> tuple[bytes, range]:
    growing = tx.growing_chunk(queue, columns)
    if growing is not None:
        chunk = growing.chunk
        numbers = range(chunk.first + chunk.count, chunk.first + chunk.count + len(columns.sizes))
        waiting = _waiting(tx, queue, messages, numbers)
        tx.add(ChunkGrown(chunk, growing.fit(columns), messages.payloads, waiting))
        return chunk.prefix, numbers
    body = _take_over(tx, queue, messages.payloads)
    head = Head(tx.next_shared_block(), tx.next_prefix(), tx.now_ms, columns, None, body)
    states = None
    if messages.delays is not None:
        states = own_where(messages.delays)
    chunk = Chunk.of(queue.record.queue_id, head, messages.payloads, states)
    tx.add(ChunkEnqueued(chunk, _waiting(tx, queue, messages, chunk.numbers)))
    tx.let_grow(chunk)
    return chunk.prefix, chunk.numbers


def _take_over(tx: Transaction, queue: Queue, payloads: Sequence[bytes]) -> int:
    """The number under which the payload of the request is stored already; 0 if it must be stored."""
    ahead = tx.ahead
    if ahead is None or len(payloads) != 1 or payloads[0] is not ahead.payload:
        return 0
    tx.ahead = None
    queue_id = queue.record.queue_id
    for staged in tx.memory.staged.chunks_of(ahead.write).values():
        # Pages of a queue that was deleted, and created again since, are gone.
        if staged.queue_id == queue_id:
            [(number, _)] = staged.parts
            tx.add(RecordsChanged(Table.STAGED_PARTS, {part_key(queue_id, number): None}))
            tx.add(RecordsChanged(Table.STAGED, {chunk_key(staged.write, staged.chunk): None}))
            return number
    return 0


def _waiting(tx: Transaction, queue: Queue, messages: MessageColumns, numbers: range) -> dict[int, OwnState]:
    """The states of the messages that have a delay."""
    if messages.delays is None:
        return {}
    return waiting_states(queue, numbers, messages.delays, tx.now_ms)


def own_where(delays: Sequence[int]) -> bytearray:
    """The states of messages in their chunk: messages with a delay have rows of their own."""
    return bytearray([OWN if delay else IMPLIED for delay in delays])


def waiting_states(
    queue: Queue, numbers: Sequence[int], delays: Sequence[int], now_ms: int
) -> dict[int, OwnState]:
    """The states of the messages with a delay. Messages with the same delay share their state."""
    states = {delay: OwnState(queue.record.queue_id, due_ms=now_ms + delay) for delay in {*delays} - {0}}
    return {number: states[delay] for number, delay in zip(numbers, delays, strict=True) if delay}


def to_columns(
    queue: Queue,
    messages: MessageColumns,
    now_ms: int,
    *,
    joins_streams: bool = True,
    sizes: Sequence[int] | None = None,
) -> Columns:
    """The columns of a chunk. For staged messages the payloads are absent and `sizes` gives their sizes;
    their delays and lives start at publication.
    """
    keys, weights, streams, config = messages.keys, messages.weights, messages.streams, queue.record.config
    if streams is not None and joins_streams and queue.is_ordered:
        keys = _bound_keys(queue, keys, streams)
    lanes, lane_at = _lanes(keys, messages.throttle_keys)
    return Columns(
        lanes,
        lane_at,
        weights[0] if weights.count(weights[0]) == len(weights) else [*weights],
        None if messages.headers is None else [*messages.headers],
        [*map(len, messages.payloads)] if sizes is None else sizes,
        _ends_of_life(messages, config.ttl_ms, now_ms),
        None if messages.dedup_keys is None or config.dedup_window_ms else [*messages.dedup_keys],
        None if streams is None else [*streams],
    )


def given_columns(messages: MessageColumns) -> Columns:
    """The result of `to_columns` before the queue and the time are known."""
    lanes, lane_at = _lanes(messages.keys, messages.throttle_keys)
    weights, headers, streams = messages.weights, messages.headers, messages.streams
    return Columns(
        lanes,
        lane_at,
        weights[0] if weights.count(weights[0]) == len(weights) else [*weights],
        None if headers is None else [*headers],
        [*map(len, messages.payloads)],
        streams=None if streams is None else [*streams],
    )


def published_columns(tx: Transaction, queue: Queue, part: StagedPart, now_ms: int) -> Columns:
    """The columns of staged messages without dedup keys, as messages of their queue."""
    columns, config = part.columns, queue.record.config
    if columns.streams is not None and queue.is_ordered:
        return to_columns(queue, part.given(), now_ms, sizes=part.sizes)
    if part.ttls is None and not config.ttl_ms:
        return columns
    return replace(columns, expires=_ends_of_life(part.given(), config.ttl_ms, now_ms))


def _bound_keys(queue: Queue, keys: Sequence[str], streams: Sequence[str]) -> Sequence[str]:
    """The fairness keys, where a stream keeps the key of the message that opened it."""
    known_streams = queue.streams
    if known_streams.may_be_on_disk:
        known_streams.look_up(dict.fromkeys(streams))
    elif len(set(streams)) == len(streams) and known_streams.by_name.keys().isdisjoint(streams):
        # Each message opens a stream of its own, or is the only one without a stream.
        return keys
    known: dict[str, str] = {}
    bound = []
    for key, stream in zip(keys, streams, strict=True):
        if stream and stream not in known:
            known[stream] = known_streams.key_of(stream) or key
        bound.append(known[stream] if stream else key)
    return bound


def _ends_of_life(messages: MessageColumns, queue_ttl_ms: int, now_ms: int) -> list[int] | None:
    """The ends of lives. A message without a time to live of its own (below 0) has that of its queue."""
    ttls = messages.ttls
    if ttls is None:
        return [now_ms + queue_ttl_ms] * messages.length if queue_ttl_ms else None
    if not queue_ttl_ms and max(ttls) <= 0:
        return None
    lives = [queue_ttl_ms if ttl < 0 else ttl for ttl in ttls]
    return [now_ms + life if life else 0 for life in lives]


def _lanes(
    keys: Sequence[str], throttle_keys: Sequence[tuple[str, ...]] | None
) -> tuple[tuple[LaneName, ...], bytes | list[int] | None]:
    """The lanes in the order of their first messages, and the index of the lane of each message."""
    if len(keys) == 1:
        return ((keys[0], *(throttle_keys[0] if throttle_keys else ())),), None
    if throttle_keys is None:
        distinct = [*dict.fromkeys(keys)]
        return tuple([(key,) for key in distinct]), _indexes(keys, distinct)
    names = [(key, *throttled) for key, throttled in zip(keys, throttle_keys, strict=True)]
    lanes = tuple(dict.fromkeys(names))
    return lanes, _indexes(names, lanes)


def _indexes(names: Sequence[Hashable], distinct: Sequence[Hashable]) -> bytes | list[int] | None:
    if len(distinct) == 1:
        return None
    indexes: Iterable[int] = range(len(distinct))
    if len(distinct) < len(names):
        indexes = map({name: at for at, name in enumerate(distinct)}.__getitem__, names)
    return bytes(indexes) if len(distinct) <= _MAX_BYTE else list(indexes)


def check_bounds(tx: Transaction, queue: Queue, count: int, size: int) -> None:
    """Refuse the messages and bytes if, with those that are published and on their way, they exceed the
    queue's bounds.
    """
    config, counts = queue.record.config, queue.counts
    if not config.max_messages and not config.max_bytes:
        return
    coming, coming_bytes = tx.memory.staged.to_come(queue.record.queue_id)
    if config.max_messages and counts.messages + coming + count > config.max_messages:
        raise QueueFull(queue.name, "max_messages", config.max_messages)
    if config.max_bytes and counts.bytes + coming_bytes + size > config.max_bytes:
        raise QueueFull(queue.name, "max_bytes", config.max_bytes)


def check_lanes(tx: Transaction, queue: Queue, most: int, find_lanes: Callable[[], set[LaneName]]) -> None:
    """Refuse new messages that would open too many lanes; `find_lanes` names theirs, `most` at most. Messages
    that return are never refused.
    """
    settings, memory = tx.settings, tx.memory
    if memory.has_room_for_lanes(settings, queue, most):
        return
    here, everywhere = queue.schedule.lane_count, memory.count_lanes()
    new = sum([not queue.schedule.has_lane(lane) for lane in find_lanes()])
    if new and here + new > settings.lanes_per_queue:
        raise TooManyLanes(settings.lanes_per_queue)
    if new and everywhere + new > settings.active_lanes:
        raise TooManyLanes(settings.active_lanes)


WORK: WorkTable = {
    Enqueue: enqueue,
    EnqueueMany: enqueue_many,
    Quarantine: quarantine,
    Twin: twin,
}
