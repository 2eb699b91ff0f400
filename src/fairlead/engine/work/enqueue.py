"""Messages in: checked messages become columns, columns become chunks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from msgspec.structs import astuple, replace

from fairlead.decide.arguments import check_error
from fairlead.engine import moves
from fairlead.engine.memory import Queue
from fairlead.engine.missing import refuse_missing
from fairlead.engine.transaction import Transaction
from fairlead.errors import InvalidRequest, QueueFull
from fairlead.model.checks import CheckedMessage, check_messages, check_text
from fairlead.model.ids import show_id
from fairlead.model.lane import lane_key, lane_throttle_keys
from fairlead.model.limits import MAX_DEDUP_KEY_BYTES
from fairlead.records.chunk import IMPLIED, OWN, Chunk, Columns, Head
from fairlead.records.facts import ChunkEnqueued, KeysRemembered, MessageMoved
from fairlead.records.ids import MAX_CHUNK_MESSAGES, id_of, shown_ids
from fairlead.records.state import DedupRow, OwnState
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine, Twin

#: More lanes than this do not fit in a byte per message.
_MAX_BYTE = 256


def enqueue(tx: Transaction, request: Enqueue) -> str:
    return _append(tx, request.queue, check_messages([request.message()]))[0]


def enqueue_many(tx: Transaction, request: EnqueueMany) -> list[str]:
    return _append(tx, request.queue, check_messages(request.messages))


def quarantine(tx: Transaction, request: Quarantine) -> list[str]:
    """Straight into the dead letters, with a record of why. They have no time to live and no dedup key."""
    messages = check_messages(request.messages)
    error, reason = check_error(request.error, request.reason)
    queue = tx.queue(request.queue)
    if queue.is_dead_letter_queue:
        wanted = "the queue the messages belong to, not its dead-letter queue"
        raise InvalidRequest("queue", wanted, request.queue)
    plain = [replace(message, ttl_ms=0, delay_ms=0, dedup_key="") for message in messages]
    ids: list[str] = []
    for start in range(0, len(plain), MAX_CHUNK_MESSAGES):
        columns, payloads, _ = to_columns(tx, queue, plain[start : start + MAX_CHUNK_MESSAGES])
        head = Head(tx.next_block(), tx.next_prefix(), tx.now_ms, columns, None)
        chunk = Chunk(queue.record.queue_id, head, payloads, bytearray([OWN]) * len(payloads))
        tx.add(ChunkEnqueued(chunk))
        for number in chunk.numbers:
            tx.add(moves.quarantine(tx, number, queue, error, reason))
        ids += shown_ids(chunk.prefix, chunk.numbers)
    return ids


def twin(tx: Transaction, request: Twin) -> str | None:
    key = check_text(request.dedup_key, "dedup_key", MAX_DEDUP_KEY_BYTES)
    row = tx.dedup_rows(tx.queue(request.queue).record.queue_id, [key]).get(key)
    return show_id(row.raw_id) if row is not None and row.holds(tx.now_ms) else None


def _append(tx: Transaction, name: str, messages: Sequence[CheckedMessage]) -> list[str]:
    queue = tx.queue(name)
    if queue.is_dead_letter_queue:
        raise InvalidRequest("queue", "no dead-letter queue; a quarantine puts messages there", name)
    if any([message.dedup_key for message in messages]):  # noqa: C419 - a generator costs three times as much
        return _append_new(tx, queue, messages)
    return [shown for chunk in _add(tx, queue, messages) for shown in shown_ids(chunk.prefix, chunk.numbers)]


def _append_new(tx: Transaction, queue: Queue, messages: Sequence[CheckedMessage]) -> list[str]:
    """Without duplicates: a message whose dedup key is known has the id of the first message with that key."""
    queue_id, window_ms = queue.record.queue_id, queue.record.config.dedup_window_ms
    keys = list(dict.fromkeys(message.dedup_key for message in messages if message.dedup_key))
    rows = tx.dedup_rows(queue_id, keys)
    ids = {key: show_id(row.raw_id) for key, row in rows.items() if row.holds(tx.now_ms)}
    new: list[CheckedMessage] = []
    #: For each message: the id of its twin, or its index among the new ones.
    found: list[str | int] = []
    first: dict[str, int] = {}
    for message in messages:
        key = message.dedup_key
        if key in ids:
            found.append(ids[key])
        elif key and key in first:
            found.append(first[key])
        else:
            found.append(len(new))
            if key:
                first[key] = len(new)
            new.append(message)
    chunks = _add(tx, queue, new)
    raw_ids = [id_of(chunk.prefix, number) for chunk in chunks for number in chunk.numbers]
    until_ms = tx.now_ms + window_ms if window_ms else 0
    if first:
        remembered = {key: DedupRow(raw_ids[at], until_ms) for key, at in first.items()}
        tx.add(KeysRemembered(queue_id, remembered))
    return [show_id(raw_ids[known]) if isinstance(known, int) else known for known in found]


def _add(tx: Transaction, queue: Queue, messages: Sequence[CheckedMessage]) -> list[Chunk]:
    batches = [
        to_columns(tx, queue, messages[start : start + MAX_CHUNK_MESSAGES])
        for start in range(0, len(messages), MAX_CHUNK_MESSAGES)
    ]
    _check_bounds(queue, [columns for columns, _, _ in batches])
    chunks = []
    for columns, payloads, delays in batches:
        head = Head(tx.next_block(), tx.next_prefix(), tx.now_ms, columns, None)
        states = bytearray([OWN if delay else IMPLIED for delay in delays]) if any(delays) else None
        chunk = Chunk(queue.record.queue_id, head, payloads, states)
        chunks.append(chunk)
        tx.add(ChunkEnqueued(chunk))
        for number in chunk.with_own_rows():
            due_ms = tx.now_ms + delays[number - chunk.first]
            tx.add(MessageMoved(number, OwnState(chunk.queue_id, due_ms=due_ms), "delayed"))
    return chunks


def to_columns(
    tx: Transaction, queue: Queue, messages: Sequence[CheckedMessage]
) -> tuple[Columns, Sequence[bytes], Sequence[int]]:
    """The columns of a chunk, its payloads, and how long each message waits."""
    packed, weights, headers, payloads, delays, ttls, dedup_keys, streams = zip(
        *map(astuple, messages), strict=True
    )
    lanes = tuple(dict.fromkeys(packed))
    names = tuple([(lane_key(lane), *lane_throttle_keys(lane)) for lane in lanes])
    refuse_missing(streams)
    config = queue.record.config
    columns = Columns(
        names,
        _indexes(packed, lanes),
        weights[0] if weights.count(weights[0]) == len(weights) else list(weights),
        list(headers) if any(headers) else None,
        list(map(len, payloads)),
        _ends_of_life(ttls, config.ttl_ms, tx.now_ms),
        list(dedup_keys) if not config.dedup_window_ms and any(dedup_keys) else None,
    )
    return columns, payloads, delays


def _ends_of_life(ttls: Sequence[int], queue_ttl_ms: int, now_ms: int) -> list[int] | None:
    """A message without a time to live of its own, which is below 0, has that of its queue."""
    if not queue_ttl_ms and max(ttls) <= 0:
        return None
    lives = [queue_ttl_ms if ttl < 0 else ttl for ttl in ttls]
    return [now_ms + life if life else 0 for life in lives]


def _indexes(names: Sequence[Hashable], distinct: Sequence[Hashable]) -> bytes | list[int] | None:
    if len(distinct) == 1:
        return None
    indexes = map({name: at for at, name in enumerate(distinct)}.__getitem__, names)
    return bytes(indexes) if len(distinct) <= _MAX_BYTE else list(indexes)


def _check_bounds(queue: Queue, columns: Sequence[Columns]) -> None:
    config, counts = queue.record.config, queue.counts
    count = sum(len(part.sizes) for part in columns)
    if config.max_messages and counts.messages + count > config.max_messages:
        raise QueueFull(queue.name, "max_messages", config.max_messages)
    if config.max_bytes and counts.bytes + sum(part.total_bytes() for part in columns) > config.max_bytes:
        raise QueueFull(queue.name, "max_bytes", config.max_bytes)
