"""Messages in: checked messages become columns, columns become chunks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from msgspec.structs import astuple

from fairlead.engine.memory import Queue
from fairlead.engine.missing import refuse_missing
from fairlead.engine.transaction import Transaction
from fairlead.errors import InvalidRequest, QueueFull
from fairlead.model.checks import CheckedMessage, check_messages
from fairlead.model.ids import show_id
from fairlead.model.lane import lane_key, lane_throttle_keys
from fairlead.records.chunk import Chunk, Columns, Head
from fairlead.records.facts import ChunkEnqueued
from fairlead.records.ids import MAX_CHUNK_MESSAGES, id_of, shown_ids
from fairlead.verbs.enqueue import Enqueue, EnqueueMany

#: More lanes than this do not fit in a byte per message.
_MAX_BYTE = 256


def enqueue(tx: Transaction, request: Enqueue) -> str:
    (chunk,) = _append(tx, request.queue, check_messages([request.message()]))
    return show_id(id_of(chunk.prefix, chunk.first))


def enqueue_many(tx: Transaction, request: EnqueueMany) -> list[str]:
    chunks = _append(tx, request.queue, check_messages(request.messages))
    return [
        shown
        for chunk in chunks
        for shown in shown_ids(chunk.prefix, range(chunk.first, chunk.first + chunk.count))
    ]


def _append(tx: Transaction, name: str, messages: Sequence[CheckedMessage]) -> list[Chunk]:
    queue = tx.queue(name)
    if queue.is_dead_letter_queue:
        raise InvalidRequest("queue", "no dead-letter queue; a quarantine puts messages there", name)
    batches = [
        to_columns(messages[start : start + MAX_CHUNK_MESSAGES])
        for start in range(0, len(messages), MAX_CHUNK_MESSAGES)
    ]
    _check_bounds(queue, [columns for columns, _ in batches])
    chunks = []
    for columns, payloads in batches:
        head = Head(tx.next_block(), tx.next_prefix(), tx.now_ms, columns, None)
        chunks.append(Chunk(queue.record.queue_id, head, payloads))
        tx.add(ChunkEnqueued(chunks[-1]))
    return chunks


def to_columns(messages: Sequence[CheckedMessage]) -> tuple[Columns, Sequence[bytes]]:
    """The columns of a chunk, and its payloads."""
    packed, weights, headers, payloads, delays, ttls, dedup_keys, streams = zip(
        *map(astuple, messages), strict=True
    )
    lanes = tuple(dict.fromkeys(packed))
    names = tuple([(lane_key(lane), *lane_throttle_keys(lane)) for lane in lanes])
    refuse_missing(names, delays, ttls, dedup_keys, streams)
    columns = Columns(
        names,
        _indexes(packed, lanes),
        weights[0] if weights.count(weights[0]) == len(weights) else list(weights),
        list(headers) if any(headers) else None,
        list(map(len, payloads)),
    )
    return columns, payloads


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
