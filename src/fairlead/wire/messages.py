"""New messages on their way in, and the ids that come back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pyarrow as pa

from fairlead.errors import InvalidRequest
from fairlead.model.checks import CheckedMessage
from fairlead.model.lane import DEFAULT_KEY, lane_key, lane_throttle_keys
from fairlead.model.message import NewMessage, unpack_headers
from fairlead.wire.columns import Columns, add_column, make_batch
from fairlead.wire.schemas import IDS, MESSAGES


def encode_messages(messages: Sequence[CheckedMessage]) -> pa.RecordBatch:
    """Takes what `model.checks.check_messages` gave: a client refuses by the engine's own rules before anything is sent."""
    return make_batch(MESSAGES, len(messages), message_columns(messages))


def message_columns(messages: Sequence[CheckedMessage]) -> dict[str, pa.Array]:
    columns = {"payload": pa.array([message.payload for message in messages], pa.binary())}
    lanes = [message.lane for message in messages]
    add_column(columns, "fairness_key", pa.utf8(), [_key(lane) for lane in lanes], DEFAULT_KEY)
    add_column(columns, "headers", pa.binary(), [message.headers for message in messages], b"")
    add_column(columns, "weight", pa.int32(), [message.weight for message in messages], 1)
    add_column(columns, "throttle_keys", pa.list_(pa.utf8()), [_throttle_keys(lane) for lane in lanes], ())
    add_column(columns, "stream", pa.utf8(), [message.stream for message in messages], "")
    add_column(columns, "delay_ms", pa.int64(), [message.delay_ms for message in messages], 0)
    add_column(columns, "dedup_key", pa.utf8(), [message.dedup_key for message in messages], "")
    add_column(columns, "ttl_ms", pa.int64(), [message.ttl_ms for message in messages], -1)
    return columns


def decode_messages(batch: pa.RecordBatch, schema: pa.Schema = MESSAGES) -> list[NewMessage]:
    return read_messages(Columns(batch, schema))


def read_messages(columns: Columns) -> list[NewMessage]:
    """What a stranger says is not checked here but by the engine, as always; only what cannot be put into words is refused."""
    payloads = columns.read("payload", b"")
    keys = columns.read("fairness_key", DEFAULT_KEY)
    weights = columns.read("weight", 1)
    more = [columns.find(name) for name in ("headers", "throttle_keys", "stream", "delay_ms", "dedup_key", "ttl_ms")]
    if not any(more):
        return [NewMessage(payload, None, key, weight) for payload, key, weight in zip(payloads, keys, weights, strict=True)]
    headers, throttle_keys, streams, delays, dedup_keys, ttls = [column or [None] * columns.length for column in more]
    return [
        NewMessage(payload, _headers(packed), key, weight, throttled or (), stream, _duration(delay), dedup_key, _duration(ttl))
        for payload, packed, key, weight, throttled, stream, delay, dedup_key, ttl in zip(
            payloads, headers, keys, weights, throttle_keys, streams, delays, dedup_keys, ttls, strict=True
        )
    ]


def encode_ids(ids: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.utf8())], schema=IDS)


def decode_ids(batch: pa.RecordBatch) -> list[str]:
    return Columns(batch, IDS).read("id", "")


def _headers(packed: bytes | None) -> dict[str, str] | None:
    if not packed:
        return None
    try:
        return unpack_headers(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest("headers", "a MessagePack map of text to text", str(wrong)) from None


def _duration(ms: int | None) -> timedelta | None:
    if ms is None:
        return None
    try:
        return timedelta(milliseconds=ms)
    except OverflowError:
        raise InvalidRequest("duration", "between 0 and 10 years", ms) from None


#: Lanes and their keys come back by the thousand; taking them apart costs more than remembering.
_keys: dict[bytes, str] = {}
_MOST_KEYS = 200_000


def _key(lane: bytes) -> str:
    key = _keys.get(lane)
    if key is None:
        if len(_keys) >= _MOST_KEYS:
            _keys.clear()
        key = _keys[lane] = lane_key(lane)
    return key


def _throttle_keys(lane: bytes) -> tuple[str, ...]:
    return () if lane[-2:] == b"\0\0" and len(lane) == 4 + int.from_bytes(lane[:2], "big") else lane_throttle_keys(lane)


def keys_of(lanes: Sequence[bytes]) -> tuple[list[str], list[tuple[str, ...]]]:
    return [_key(lane) for lane in lanes], [_throttle_keys(lane) for lane in lanes]


