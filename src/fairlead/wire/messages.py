"""New messages as columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import msgspec
import pyarrow as pa
from msgspec.structs import astuple

from fairlead.errors import InvalidRequest
from fairlead.model.checks import (
    CheckedColumns,
    CheckedMessage,
    MessageColumns,
    NotPlain,
    are_plain,
    good_headers,
    good_texts,
    good_throttle_keys,
)
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.limits import MAX_BATCH_MESSAGES, MAX_DEDUP_KEY_BYTES, MAX_DURATION_MS, MAX_KEY_BYTES
from fairlead.model.message import NewMessage
from fairlead.wire.columns import BatchColumns, add_column, make_batch
from fairlead.wire.schemas import MESSAGES
from fairlead.wire.values import keys_of, read_duration, read_headers


def encode_messages(messages: Sequence[CheckedMessage]) -> pa.RecordBatch:
    """Encode messages that `model.checks.check_messages` returned: a client applies the engine's own rules
    before it sends anything.
    """
    if not messages:
        return make_batch(MESSAGES, 0, {})
    lanes, weights, headers, payloads, delays, ttls, dedup_keys, streams = zip(
        *map(astuple, messages), strict=True
    )
    keys, throttle_keys = keys_of(lanes)
    columns = {"payload": pa.array(payloads, pa.binary())}
    add_column(columns, "fairness_key", pa.utf8(), keys, DEFAULT_KEY)
    add_column(columns, "headers", pa.binary(), headers, b"")
    add_column(columns, "weight", pa.int32(), weights, 1)
    add_column(columns, "throttle_keys", pa.list_(pa.utf8()), throttle_keys, ())
    add_column(columns, "stream", pa.utf8(), streams, "")
    add_column(columns, "delay_ms", pa.int64(), delays, 0)
    add_column(columns, "dedup_key", pa.utf8(), dedup_keys, "")
    add_column(columns, "ttl_ms", pa.int64(), ttls, -1)
    return make_batch(MESSAGES, len(messages), columns)


def decode_messages(batch: pa.RecordBatch) -> Sequence[NewMessage]:
    """The messages of a batch. Columns that are valid as a whole stay columns.

    Otherwise the engine checks the values, message by message. Only values that cannot become a `NewMessage`
    are refused here.
    """
    columns = BatchColumns(batch, MESSAGES)
    good = _find_columns(columns)
    return read_messages(columns) if good is None else CheckedColumns(good)


def _find_columns(columns: BatchColumns) -> MessageColumns | None:
    """The counterpart of `model.checks.find_columns`, with the same rules."""
    if not 0 < columns.length <= MAX_BATCH_MESSAGES:
        return None
    payloads = columns.read("payload", b"")
    keys = columns.read("fairness_key", DEFAULT_KEY)
    weights = columns.read("weight", 1)
    if not are_plain(payloads, keys, weights):
        return None
    headers, throttle_keys = columns.find("headers"), columns.find("throttle_keys")
    try:
        return MessageColumns(
            payloads,
            keys,
            weights,
            None if headers is None or not any(headers) else good_headers([one or b"" for one in headers]),
            None
            if throttle_keys is None
            else good_throttle_keys([tuple(one or ()) for one in throttle_keys]),
            _good_texts(columns, "stream", MAX_KEY_BYTES),
            _good_times(columns, "delay_ms", 0),
            _good_texts(columns, "dedup_key", MAX_DEDUP_KEY_BYTES),
            _good_times(columns, "ttl_ms", -1),
        )
    except (NotPlain, InvalidRequest, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
        # The check message by message finds the invalid one.
        return None


def _good_texts(columns: BatchColumns, name: str, most_bytes: int) -> Sequence[str] | None:
    texts = columns.find(name)
    return None if texts is None else good_texts(texts, most_bytes)


def _good_times(columns: BatchColumns, name: str, none_ms: int) -> Sequence[int] | None:
    times = columns.find(name)
    if times is None:
        return None
    distinct = set(times) - {None}
    if min(distinct) < 0 or max(distinct) > MAX_DURATION_MS:
        raise NotPlain
    if distinct == {none_ms}:
        return None
    return [none_ms if ms is None else ms for ms in times]


def read_messages(columns: BatchColumns) -> list[NewMessage]:
    payloads = columns.read("payload", b"")
    keys = columns.read("fairness_key", DEFAULT_KEY)
    weights = columns.read("weight", 1)
    more = [
        columns.find(name)
        for name in ("headers", "throttle_keys", "stream", "delay_ms", "dedup_key", "ttl_ms")
    ]
    if not any(more):
        return [*map(NewMessage, payloads, repeat(None), keys, weights)]
    headers, throttle_keys, streams, delays, dedup_keys, ttls = [
        column or [None] * columns.length for column in more
    ]
    return [
        NewMessage(
            payload,
            read_headers(packed),
            key,
            weight,
            throttled or (),
            stream,
            read_duration(delay),
            dedup_key,
            read_duration(ttl),
        )
        for payload, packed, key, weight, throttled, stream, delay, dedup_key, ttl in zip(
            payloads, headers, keys, weights, throttle_keys, streams, delays, dedup_keys, ttls, strict=True
        )
    ]
