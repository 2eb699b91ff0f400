"""Few rows travel in the metadata: a record batch of one row costs more to make and to read than all the rest
of a call.

A row is a MessagePack array in the order of the schema's columns. The rows of a small request are in its
call, and who asks in rows is answered in rows, unless the answer is large; a batch is always understood.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.model.checks import CheckedMessage
from fairlead.model.delivery import Delivery
from fairlead.model.delivery_columns import Runs
from fairlead.model.failure import FailureRecord
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.message import Message, MessageState, NewMessage, lane_of, seq_of, weight_of
from fairlead.wire.values import keys_of, lanes_of, queues_of, read_duration, read_headers

#: Above either, a batch is as quick: measured with messages of 1 KB.
FEW_ROWS = 200
FEW_BYTES = 256 * 1024


class MessageRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    payload: bytes
    headers: bytes | None = None
    fairness_key: str = DEFAULT_KEY
    weight: int = 1
    throttle_keys: tuple[str, ...] = ()
    stream: str | None = None
    delay_ms: int | None = None
    dedup_key: str | None = None
    ttl_ms: int | None = None


class DeliveryRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: bytes
    lease: int
    lease_until: int
    payload: bytes
    headers: bytes
    fairness_key: str
    weight: int
    throttle_keys: tuple[str, ...]
    stream: str
    seq: int
    enqueued_at: int
    deliveries: int = 1
    attempts: int = 0
    progress: int = 0
    carry: bytes = b""
    failures: tuple[FailureRecord, ...] = ()
    dead_since: int = 0
    source: str | None = None


def message_rows(messages: Sequence[CheckedMessage]) -> list[MessageRow]:
    keys, throttle_keys = keys_of([message.lane for message in messages])
    return [
        MessageRow(
            message.payload,
            message.headers or None,
            key,
            message.weight,
            throttled,
            message.stream or None,
            message.delay_ms or None,
            message.dedup_key or None,
            None if message.ttl_ms < 0 else message.ttl_ms,
        )
        for message, key, throttled in zip(messages, keys, throttle_keys, strict=True)
    ]


def read_message_rows(rows: Sequence[MessageRow]) -> list[NewMessage]:
    return [
        NewMessage(
            row.payload,
            read_headers(row.headers) if row.headers else None,
            row.fairness_key,
            row.weight,
            row.throttle_keys,
            row.stream,
            None if row.delay_ms is None else read_duration(row.delay_ms),
            row.dedup_key,
            None if row.ttl_ms is None else read_duration(row.ttl_ms),
        )
        for row in rows
    ]


def are_few(deliveries: Sequence[Delivery]) -> bool:
    return (
        len(deliveries) <= FEW_ROWS and sum([delivery.message.size for delivery in deliveries]) <= FEW_BYTES
    )


def delivery_rows(deliveries: Sequence[Delivery]) -> list[DeliveryRow]:
    """Most have no state: nothing has happened to them yet, and they are what they were enqueued as."""
    keys, throttle_keys = keys_of([lane_of(delivery.message, delivery.state) for delivery in deliveries])
    rows = []
    for delivery, key, throttled in zip(deliveries, keys, throttle_keys, strict=True):
        message, state = delivery.message, delivery.state
        weight, seq = (
            (message.weight, message.seq)
            if state is None
            else (weight_of(message, state), seq_of(message, state))
        )
        happened = (
            _NOTHING
            if state is None
            else (state.attempts, state.progress, state.carry, state.failures, state.dead_since_ms)
        )
        rows.append(
            DeliveryRow(
                message.id,
                delivery.claim_id,
                delivery.lease_until,
                message.payload,
                message.headers,
                key,
                weight,
                throttled,
                message.stream,
                seq,
                message.enqueued_ms,
                delivery.deliveries,
                *happened,
                delivery.source,
            )
        )
    return rows


_NOTHING: tuple[int, int, bytes, tuple[FailureRecord, ...], int] = (0, 0, b"", (), 0)


def read_delivery_rows(rows: Sequence[DeliveryRow], runs: Runs) -> list[Delivery]:
    """Ids of queues, places and what else only the engine needs stay behind: they are 0 here."""
    queues = queues_of(runs, len(rows))
    throttle_keys = [row.throttle_keys for row in rows]
    lanes = lanes_of([row.fairness_key for row in rows], throttle_keys if any(throttle_keys) else None)
    return [
        Delivery(
            Message(
                row.id,
                0,
                lane,
                row.weight,
                row.headers,
                row.payload,
                row.enqueued_at,
                0,
                0,
                0,
                "",
                row.stream,
                row.seq,
            ),
            _state(row)
            if row.attempts or row.progress or row.carry or row.failures or row.dead_since
            else None,
            queue,
            row.lease,
            row.lease_until,
            row.deliveries,
            row.source,
        )
        for row, queue, lane in zip(rows, queues, lanes, strict=True)
    ]


def _state(row: DeliveryRow) -> MessageState:
    return MessageState(
        0,
        attempts=row.attempts,
        progress=row.progress,
        carry=row.carry,
        failures=row.failures,
        dead_since_ms=row.dead_since,
    )
