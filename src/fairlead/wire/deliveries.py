"""Deliveries as record batches. Both sides hold the same `Delivery`; a queue's name travels once per run of
rows, not per row.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat

import msgspec
import pyarrow as pa

from fairlead.model.delivery import Delivery
from fairlead.model.delivery_columns import DeliveryColumns, Runs, columns_of, runs_of_queues
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.message import Message, MessageState
from fairlead.model.packed_payloads import PackedPayloads
from fairlead.model.views import MessageInfo
from fairlead.wire.columns import BatchColumns, add_column, make_batch, packed_ids_column
from fairlead.wire.schemas import DELIVERIES
from fairlead.wire.values import lanes_of, queues_of, read_failures

#: The offsets of a binary column have 32 bits.
_MAX_OFFSET = (1 << 31) - 1
_encode_failures = msgspec.msgpack.Encoder().encode


def runs_of(found: Sequence[Delivery] | Sequence[MessageInfo]) -> Runs:
    return runs_of_queues([one.queue for one in found])


def encode_deliveries(deliveries: Sequence[Delivery], *, payloads: bool = True) -> pa.RecordBatch:
    return encode_columns(columns_of(deliveries), payloads=payloads)


def encode_columns(rows: DeliveryColumns, *, payloads: bool = True) -> pa.RecordBatch:
    return make_batch(DELIVERIES, rows.length, arrays_of(rows, payloads=payloads))


def arrays_of(rows: DeliveryColumns, *, payloads: bool = True) -> dict[str, pa.Array]:
    """The columns that every delivery has, and all others that hold more than defaults."""
    columns = {
        "id": packed_ids_column(rows.ids),
        "enqueued_at": pa.array(rows.enqueued_ms, pa.int64()),
        "fairness_key": pa.array(rows.keys, pa.utf8()),
    }
    if payloads:
        columns["payload"] = _payloads(rows.payloads)
    if rows.claim_ids is not None:
        columns["lease"] = pa.array(rows.claim_ids, pa.uint64())
        columns["lease_until"] = pa.array(rows.lease_untils, pa.int64())
    has_streams = rows.streams is not None and any(rows.streams)
    add_column(columns, "headers", pa.binary(), rows.headers, b"")
    add_column(columns, "weight", pa.int32(), rows.weights, 1)
    add_column(columns, "throttle_keys", pa.list_(pa.utf8()), rows.throttle_keys, ())
    add_column(columns, "deliveries", pa.int32(), rows.deliveries, 1)
    add_column(columns, "source", pa.utf8(), rows.sources, None)
    add_column(columns, "stream", pa.utf8(), rows.streams, "")
    add_column(columns, "seq", pa.int64(), rows.seqs if has_streams else None, 0)
    if rows.states is not None:
        _add_states(columns, [state or _UNTOUCHED for state in rows.states])
    return columns


def _payloads(payloads: Sequence[bytes]) -> pa.Array:
    """The payload column.

    Packed payloads are not copied: the column refers to the bytes of their chunk. Other payloads are copied
    into Arrow's memory. A server bounds that memory, so that many clients that do not read their answers
    cannot fill the machine.
    """
    if not isinstance(payloads, PackedPayloads) or len(payloads.raw) > _MAX_OFFSET:
        return pa.array(payloads, pa.binary())
    bounds = pa.py_buffer(array("i", payloads.bounds))
    return pa.BinaryArray.from_buffers(pa.binary(), len(payloads), [None, bounds, pa.py_buffer(payloads.raw)])


def _add_states(columns: dict[str, pa.Array], states: Sequence[MessageState]) -> None:
    failures = [_encode_failures(state.failures) if state.failures else b"" for state in states]
    add_column(columns, "attempts", pa.int32(), [state.attempts for state in states], 0)
    add_column(columns, "progress", pa.int64(), [state.progress for state in states], 0)
    add_column(columns, "carry", pa.binary(), [state.carry for state in states], b"")
    add_column(columns, "failures", pa.binary(), failures, b"")
    add_column(columns, "dead_since", pa.int64(), [state.dead_since_ms for state in states], 0)


_UNTOUCHED = MessageState(queue_id=0)


def decode_deliveries(batch: pa.RecordBatch, runs: Runs) -> list[Delivery]:
    """The deliveries of a batch. Queue ids, places and other values that only the engine needs do not travel;
    they are 0 here.
    """
    columns = BatchColumns(batch, DELIVERIES)
    queues = queues_of(runs, columns.length)
    lanes = lanes_of(columns.read("fairness_key", DEFAULT_KEY), columns.find("throttle_keys"))
    zero = repeat(0)
    messages = map(
        Message,
        columns.ids(),
        zero,
        lanes,
        columns.read("weight", 1),
        columns.read("headers", b""),
        columns.read("payload", b""),
        columns.read("enqueued_at", 0),
        zero,
        zero,
        zero,
        repeat(""),
        columns.read("stream", ""),
        columns.read("seq", 0),
    )
    return [
        *map(
            Delivery,
            messages,
            _states(columns),
            queues,
            columns.read("lease", 0),
            columns.read("lease_until", 0),
            columns.read("deliveries", 1),
            columns.read("source"),
        )
    ]


def _states(columns: BatchColumns) -> list[MessageState | None]:
    names = ("attempts", "progress", "carry", "failures", "dead_since")
    found = [columns.find(name) for name in names]
    if not any(found):
        return [None] * columns.length
    attempts, progress, carry, failures, dead_since = [column or [None] * columns.length for column in found]
    return [
        MessageState(
            0,
            attempts=tries or 0,
            progress=bits or 0,
            carry=carried or b"",
            failures=read_failures(packed),
            dead_since_ms=since or 0,
        )
        for tries, bits, carried, packed, since in zip(
            attempts, progress, carry, failures, dead_since, strict=True
        )
    ]
