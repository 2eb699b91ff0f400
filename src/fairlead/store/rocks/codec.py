"""Records to bytes and back. The first byte is the record's version; what does not decode is `StoreCorrupt`,
with family and key.

The hot encoders are inlined in `commit.py`: they use the structs below, so that both directions stand in one
file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from fairlead.errors import StoreCorrupt
from fairlead.model.access import AuditRecord, KeyRecord
from fairlead.model.clock_mark import BucketLevel, ClockMark
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.facts import Intent
from fairlead.model.lane import lane_end
from fairlead.model.lease import Claim, Lease
from fairlead.model.message import Message, MessageState
from fairlead.model.names import Scoped
from fairlead.model.queue import QueueRecord
from fairlead.model.staging import Published, Publishing, StagedChunk
from fairlead.model.stream import StreamRecord, StreamRow

VERSION = 1
V1 = bytes((VERSION,))

#: version, queue_id, weight, enqueued_ms, place, then the lengths of lane, headers and extras; those three
#: and the payload follow.
MESSAGE = struct.Struct(">BIHQQHIH")
#: version, id, weight, flags, size; the name of the stream follows, if it has one.
READY = struct.Struct(">B16sHBI")
#: version, queue_id, claim_id, expires_ms, deliveries, started; the row without its id, the lane and the
#: stream follow.
LEASE = struct.Struct(">BIQQIB")
_LEASE_ROW = LEASE.size
_LEASE_LANE = LEASE.size + 15
#: version, id, until_ms
DEDUP = struct.Struct(">B16sQ")
#: version, ready, waiting, leased, done, bytes
COUNTERS = struct.Struct(">BQQQQQ")
#: version, tokens, at_ms, rate, burst
BUCKET = struct.Struct(">BdQdd")
#: version, value
META = struct.Struct(">BQ")


class Extras(msgspec.Struct, array_like=True, gc=False):
    """The fields of a message that most messages do not have."""

    due_ms: int = 0
    expires_ms: int = 0
    dedup_key: str = ""
    dedup_until_ms: int = 0
    live_dedup: bool = False
    stream: str = ""
    seq: int = 0


encode = msgspec.msgpack.Encoder().encode
_read_extras = msgspec.msgpack.Decoder(Extras).decode

T = TypeVar("T")


def encode_message(message: Message) -> bytes:
    extras = encode_extras(message)
    return (
        MESSAGE.pack(
            VERSION,
            message.queue_id,
            message.weight,
            message.enqueued_ms,
            message.place,
            len(message.lane),
            len(message.headers),
            len(extras),
        )
        + message.lane
        + message.headers
        + extras
        + message.payload
    )


def encode_extras(message: Message) -> bytes:
    if message.due_ms or message.expires_ms or message.dedup_key or message.stream:
        return encode(
            Extras(
                message.due_ms,
                message.expires_ms,
                message.dedup_key,
                message.dedup_until_ms,
                message.live_dedup,
                message.stream,
                message.seq,
            )
        )
    return b""


def decode_messages(ids: Sequence[bytes], raws: Sequence[bytes | None]) -> list[Message | None]:
    """Bulk, because a claim reads hundreds: no function call per plain message."""
    unpack, fixed = MESSAGE.unpack_from, MESSAGE.size
    found: list[Message | None] = []
    for id, raw in zip(ids, raws, strict=True):
        if raw is None:
            found.append(None)
            continue
        try:
            version, queue_id, weight, enqueued_ms, place, lane_bytes, header_bytes, extra_bytes = unpack(raw)
            headers_at = fixed + lane_bytes
            extras_at = headers_at + header_bytes
            payload_at = extras_at + extra_bytes
            if version != VERSION or payload_at > len(raw):
                raise ValueError(f"version {version}, {len(raw)} bytes")
            lane, headers, payload = raw[fixed:headers_at], raw[headers_at:extras_at], raw[payload_at:]
            if extra_bytes:
                e = _read_extras(raw[extras_at:payload_at])
                found.append(
                    Message(
                        id,
                        queue_id,
                        lane,
                        weight,
                        headers,
                        payload,
                        enqueued_ms,
                        place,
                        e.due_ms,
                        e.expires_ms,
                        e.dedup_key,
                        e.dedup_until_ms,
                        e.live_dedup,
                        e.stream,
                        e.seq,
                    )
                )
            else:
                found.append(Message(id, queue_id, lane, weight, headers, payload, enqueued_ms, place))
        except (struct.error, ValueError, msgspec.DecodeError) as why:
            raise undecodable("messages", id, why) from None
    return found


def encode_lease(lease: Lease) -> bytes:
    row = lease.row
    fixed = LEASE.pack(
        VERSION, lease.queue_id, lease.claim_id, lease.expires_ms, lease.deliveries, lease.started
    )
    return fixed + row[:8] + row[24:31] + lease.lane + row[31:]


def decode_lease(id: bytes, raw: bytes) -> Lease:
    try:
        version, queue_id, claim_id, expires_ms, deliveries, started = LEASE.unpack_from(raw)
        if version != VERSION or len(raw) < _LEASE_LANE or len(id) != 16:
            raise ValueError(f"version {version}, {len(raw)} bytes")
    except (struct.error, ValueError) as why:
        raise undecodable("leases", id, why) from None
    end = lane_end(raw, _LEASE_LANE)
    row = raw[_LEASE_ROW : _LEASE_ROW + 8] + id + raw[_LEASE_ROW + 8 : _LEASE_LANE] + raw[end:]
    return Lease(queue_id, raw[_LEASE_LANE:end], row, claim_id, expires_ms, deliveries, bool(started))


def decode_fixed(family: str, key: bytes, raw: bytes, shape: struct.Struct) -> tuple[Any, ...]:
    """The fields after the version of a record of fixed size."""
    if len(raw) != shape.size or raw[0] != VERSION:
        raise undecodable(
            family,
            key,
            f"expected version {VERSION} and {shape.size} bytes, got {raw[:1].hex() or 'none'} and {len(raw)}",
        )
    return shape.unpack(raw)[1:]


def decode_bucket(key: bytes, raw: bytes) -> BucketLevel:
    tokens, at_ms, rate, burst = decode_fixed("buckets", key, raw, BUCKET)
    return BucketLevel(decode_text("buckets", key, V1 + key), tokens, at_ms, rate, burst)


def packed_decoder(family: str, kind: type[T]) -> Callable[[bytes, bytes], T]:
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(key: bytes, raw: bytes) -> T:
        if raw[:1] != V1:
            raise undecodable(family, key, f"version {raw[:1].hex() or 'none'}")
        try:
            return decode(raw[1:])
        except msgspec.DecodeError as why:
            raise undecodable(family, key, why) from None

    return read


decode_state = packed_decoder("state", MessageState)
decode_claim = packed_decoder("lease_expiry", Claim)
decode_queue = packed_decoder("queues", QueueRecord)
decode_intent = packed_decoder("intents", Intent)
decode_clock_mark = packed_decoder("clock", ClockMark)
decode_key = packed_decoder("keys", KeyRecord)
decode_audit = packed_decoder("audit", AuditRecord)
decode_stream = packed_decoder("streams", StreamRecord)
decode_stream_row = packed_decoder("stream_rows", StreamRow)
decode_consumer = packed_decoder("consumers", ConsumerRecord)
decode_outcomes = packed_decoder("claim_outcomes", tuple[str, bytes])
decode_choice = packed_decoder("claim_choices", tuple[str, ...])


def decode_members(key: bytes, raw: bytes) -> list[bytes]:
    if raw[:1] != V1 or len(raw) % 16 != 1:
        raise undecodable("claim_members", key, f"version {raw[:1].hex() or 'none'}, {len(raw)} bytes")
    return [raw[at : at + 16] for at in range(1, len(raw), 16)]


decode_chunk = packed_decoder("staged_chunks", StagedChunk)
decode_publishing = packed_decoder("publishing", Publishing)
decode_published = packed_decoder("published", Published)


def decode_scoped(family: str, key: bytes) -> Scoped:
    queue, separator, name = key.partition(b"\0")
    if not separator:
        raise undecodable(family, key, "expected a queue, a NUL and a name")
    try:
        return Scoped(queue.decode(), name.decode())
    except UnicodeDecodeError as why:
        raise undecodable(family, key, why) from None


def decode_text(family: str, key: bytes, raw: bytes) -> str:
    if raw[:1] != V1:
        raise undecodable(family, key, f"version {raw[:1].hex() or 'none'}")
    try:
        return raw[1:].decode()
    except UnicodeDecodeError as why:
        raise undecodable(family, key, why) from None


def undecodable(family: str, key: bytes, why: object) -> StoreCorrupt:
    return StoreCorrupt(f"{family} {key.hex()}", f"the record does not decode ({why})")
