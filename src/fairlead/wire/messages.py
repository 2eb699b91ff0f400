"""New messages on their way in, and the ids that come back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import repeat

import msgspec
import pyarrow as pa
from msgspec.structs import astuple

from fairlead.errors import InvalidRequest
from fairlead.model.checks import CheckedMessage
from fairlead.model.lane import DEFAULT_KEY, lane_key, lane_throttle_keys
from fairlead.model.message import NewMessage, unpack_headers
from fairlead.wire.columns import Columns, add_column, make_batch
from fairlead.wire.schemas import IDS, MESSAGES


def encode_messages(messages: Sequence[CheckedMessage]) -> pa.RecordBatch:
    """Takes what `model.checks.check_messages` gave: a client refuses by the engine's own rules before
    anything is sent.
    """
    return make_batch(MESSAGES, len(messages), message_columns(messages))


def message_columns(messages: Sequence[CheckedMessage]) -> dict[str, pa.Array]:
    if not messages:
        return {}
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
    return columns


def decode_messages(batch: pa.RecordBatch, schema: pa.Schema = MESSAGES) -> list[NewMessage]:
    return read_messages(Columns(batch, schema))


def read_messages(columns: Columns) -> list[NewMessage]:
    """What a stranger says is not checked here but by the engine, as always; only what cannot be put into
    words is refused.
    """
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


def encode_ids(ids: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.utf8())], schema=IDS)


def decode_ids(batch: pa.RecordBatch) -> list[str]:
    return Columns(batch, IDS).read("id", "")


def read_headers(packed: bytes | None) -> dict[str, str] | None:
    if not packed:
        return None
    try:
        return unpack_headers(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest("headers", "a MessagePack map of text to text", str(wrong)) from None


def read_duration(ms: int | None) -> timedelta | None:
    if ms is None:
        return None
    try:
        return timedelta(milliseconds=ms)
    except OverflowError:
        raise InvalidRequest("duration", "between 0 and 10 years", ms) from None


#: Lanes and their keys come back by the thousand; taking them apart costs more than remembering.
_keys: dict[bytes, tuple[str, tuple[str, ...]]] = {}
_MOST_KEYS = 200_000


def keys_of(lanes: Sequence[bytes]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Fairness keys and throttle keys, in the order of the lanes."""
    global _keys
    known = _keys
    missing = set(lanes).difference(known)
    if len(known) + len(missing) > _MOST_KEYS:
        # Not emptied: another thread may be reading it.
        known = _keys = {}
        missing = set(lanes)
    for lane in missing:
        known[lane] = lane_key(lane), lane_throttle_keys(lane)
    both = [known[lane] for lane in lanes]
    return [key for key, _ in both], [throttled for _, throttled in both]
