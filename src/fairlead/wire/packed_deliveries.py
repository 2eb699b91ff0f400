"""Deliveries as MessagePack: one array of columns, from which `Delivery` objects read on demand.

The array begins with the server's clock, then come the columns of `_Columns` in this order. `queues` is a
list of names, each with the number of consecutive rows that it has. A column is a list with a value for each
row, a list of one value that all rows have, or nil if all rows have the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from fairlead.model.delivery import Delivery
from fairlead.model.delivery_columns import DeliveryColumns, columns_of
from fairlead.model.failure import FailureRecord
from fairlead.model.lane import DEFAULT_KEY, lane_key, lane_throttle_keys, pack_lane
from fairlead.model.message import Message, MessageState, lane_of, seq_of, weight_of
from fairlead.wire.values import queues_of

T = TypeVar("T")

_ID_BYTES = 16


class _Happened(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """The history of one message since it was enqueued."""

    attempts: int = 0
    progress: int = 0
    carry: bytes = b""
    failures: tuple[FailureRecord, ...] = ()
    dead_since: int = 0


class _Columns(msgspec.Struct, array_like=True, frozen=True):
    now_ms: int
    queues: list[tuple[str, int]]
    #: 16 bytes each, concatenated.
    ids: bytes
    payloads: list[bytes]
    leases: list[int] | None
    lease_untils: list[int] | None
    enqueued_at: list[int] | None
    fairness_keys: list[str] | None = None
    weights: list[int] | None = None
    headers: list[bytes] | None = None
    throttle_keys: list[tuple[str, ...]] | None = None
    streams: list[str] | None = None
    seqs: list[int] | None = None
    deliveries: list[int] | None = None
    sources: list[str | None] | None = None
    happened: list[_Happened | None] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Columns)


def encode_deliveries(deliveries: Sequence[Delivery], now_ms: int) -> bytes:
    if len(deliveries) == 1:
        return _encode(_columns_of_one(deliveries[0], now_ms))
    rows = columns_of(deliveries)
    return _encode(
        _Columns(
            now_ms,
            rows.runs,
            rows.ids,
            rows.payloads,  # type: ignore[arg-type]  # any sequence encodes alike
            _short(rows.claim_ids, 0),
            _short(rows.lease_untils, 0),
            _short(rows.enqueued_ms, 0),
            _short(rows.keys, DEFAULT_KEY),
            _short(rows.weights, 1),
            _short(rows.headers, b""),
            _short(rows.throttle_keys, ()),
            _short(rows.streams, ""),
            _short(rows.seqs, 0),
            _short(rows.deliveries, 1),
            _short(rows.sources, None),
            None if rows.states is None else [_happened(state) for state in rows.states],
        )
    )


def _columns_of_one(delivery: Delivery, now_ms: int) -> _Columns:
    """The result of `columns_of` for one delivery, in a third of the time: most claims take one message."""
    message, state = delivery.message, delivery.state
    lane = lane_of(message, state)
    throttle_keys = lane_throttle_keys(lane)
    return _Columns(
        now_ms,
        [(delivery.queue, 1)],
        message.id,
        [message.payload],
        [delivery.claim_id],
        [delivery.lease_until],
        [message.enqueued_ms],
        [lane_key(lane)],
        [weight_of(message, state)],
        [message.headers] if message.headers else None,
        [throttle_keys] if throttle_keys else None,
        [message.stream] if message.stream else None,
        [seq_of(message, state)],
        [delivery.deliveries],
        [delivery.source] if delivery.source else None,
        [_happened(state)] if state is not None else None,
    )


def _short(column: Sequence[T] | None, default: T) -> Any:
    """The column in its shortest form, as it travels."""
    if not column:
        return None
    first = column[0]
    if column.count(first) < len(column):
        return column
    return None if first == default else [first]


def _happened(state: MessageState | None) -> _Happened | None:
    if state is None:
        return None
    return _Happened(state.attempts, state.progress, state.carry, state.failures, state.dead_since_ms)


def decode_deliveries(raw: bytes) -> tuple[list[Delivery], int]:
    """The deliveries, whose messages are made on demand, and the server's clock.

    Queue ids, places and other values that only the engine needs do not travel; they are 0 here.
    """
    columns = _decoder.decode(raw)
    count = len(columns.payloads)
    if len(columns.ids) != count * _ID_BYTES:
        raise ValueError(f"{count} payloads and {len(columns.ids)} bytes of ids")
    queues = queues_of(columns.queues, count)
    stored = ArrivedMessages(columns, count)
    if count == 1:
        return [_only_delivery(columns, stored, queues[0])], columns.now_ms
    states = (
        [None] * count
        if columns.happened is None
        else [_state(one) for one in _long(columns.happened, None, count)]
    )
    return [
        *map(
            Delivery,
            [stored] * count,
            states,
            queues,
            _long(columns.leases, 0, count),
            _long(columns.lease_untils, 0, count),
            _long(columns.deliveries, 1, count),
            _long(columns.sources, None, count),
            range(count),
        )
    ], columns.now_ms


def _only_delivery(columns: _Columns, stored: ArrivedMessages, queue: str) -> Delivery:
    """The result of the general loops for one delivery, in less time: most claims take one message."""
    return Delivery(
        stored,
        _state(_only(columns.happened, None)),
        queue,
        _only(columns.leases, 0),
        _only(columns.lease_untils, 0),
        _only(columns.deliveries, 1),
        _only(columns.sources, None),
        0,
    )


def _only(column: list[T] | None, default: T) -> T:
    if column is None:
        return default
    (value,) = column
    return value


def _long(column: list[T] | None, default: T, count: int) -> list[T]:
    """The column with a value for each row."""
    if column is None:
        return [default] * count
    if len(column) == count:
        return column
    if len(column) != 1:
        raise ValueError(f"a column of {len(column)} values for {count} rows")
    return column * count


def _state(happened: _Happened | None) -> MessageState | None:
    if happened is None:
        return None
    return MessageState(
        0,
        attempts=happened.attempts,
        progress=happened.progress,
        carry=happened.carry,
        failures=happened.failures,
        dead_since_ms=happened.dead_since,
    )


class ArrivedMessages:
    """The messages of one answer, by row."""

    __slots__ = ("_columns", "_count")

    def __init__(self, columns: _Columns, count: int) -> None:
        self._columns = columns
        self._count = count
        for column in (
            columns.enqueued_at,
            columns.fairness_keys,
            columns.weights,
            columns.headers,
            columns.throttle_keys,
            columns.streams,
            columns.seqs,
        ):
            if column is not None and len(column) not in (1, count):
                raise ValueError(f"a column of {len(column)} values for {count} rows")

    def raw_id(self, number: int) -> bytes:
        return self._columns.ids[number * _ID_BYTES : (number + 1) * _ID_BYTES]

    def payload(self, number: int) -> bytes:
        return self._columns.payloads[number]

    def message(self, number: int) -> Message:
        columns = self._columns
        key = _at(columns.fairness_keys, DEFAULT_KEY, number)
        return Message(
            self.raw_id(number),
            0,
            pack_lane(key, _at(columns.throttle_keys, (), number)),
            _at(columns.weights, 1, number),
            _at(columns.headers, b"", number),
            columns.payloads[number],
            _at(columns.enqueued_at, 0, number),
            0,
            stream=_at(columns.streams, "", number),
            seq=_at(columns.seqs, 0, number),
        )

    def columns_of(self, deliveries: Sequence[Delivery]) -> DeliveryColumns:
        messages = [
            msgspec.structs.replace(one, stored=one.message) if not isinstance(one.stored, Message) else one
            for one in deliveries
        ]
        return columns_of(messages)


def _at(column: list[T] | None, default: T, number: int) -> T:
    if column is None:
        return default
    return column[0] if len(column) == 1 else column[number]
