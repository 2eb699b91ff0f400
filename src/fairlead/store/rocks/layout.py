"""Keys. Each family's key sorts by what the questions ask for; the table is in the package's docstring."""

from __future__ import annotations

import struct

from fairlead.model.names import Scoped

FAMILIES = (
    "messages",
    "state",
    "ready",
    "waiting",
    "leases",
    "lease_expiry",
    "done",
    "ttl",
    "dedup",
    "dedup_end",
    "streams",
    "stream_rows",
    "requests",
    "queues",
    "counters",
    "config",
    "clock",
    "buckets",
    "intents",
    "meta",
    "keys",
    "audit",
    "runbooks",
    "consumers",
    "claim_members",
    "claim_outcomes",
    "claim_choices",
    "staged",
    "staged_chunks",
    "publishing",
    "published",
    "published_end",
)

queue_key = struct.Struct(">I").pack
expiry_key = struct.Struct(">QQ").pack  # expires_ms, claim_id
read_expiry_key = struct.Struct(">QQ").unpack
number = struct.Struct(">Q").pack
timed_key = struct.Struct(">IQ16s").pack  # queue_id, time, id: waiting, done, ttl
read_timed_key = struct.Struct(">IQ16s").unpack
timed_prefix = struct.Struct(">IQ").pack

#: The one row of the family `clock`.
CLOCK_MARK = b"mark"
LAST_PLACE = b"\xff" * 8


def ready_key(queue_id: int, lane: bytes, row: bytes) -> bytes:
    return queue_key(queue_id) + lane + row[:8]


def dedup_key(queue_id: int, key: str) -> bytes:
    return queue_key(queue_id) + key.encode()


def dedup_end_key(queue_id: int, until_ms: int, key: str) -> bytes:
    return timed_prefix(queue_id, until_ms) + key.encode()


def stream_key(queue_id: int, name: str) -> bytes:
    raw = name.encode()
    return queue_key(queue_id) + len(raw).to_bytes(2, "big") + raw


def stream_row_key(queue_id: int, name: str, seq: int) -> bytes:
    return stream_key(queue_id, name) + number(seq)


def scoped_key(scoped: Scoped) -> bytes:
    """Sorts by queue, then by name: no queue's name has a NUL."""
    return b"\0".join([scoped.queue.encode(), scoped.name.encode()])


def chunk_key(write: Scoped, chunk: str) -> bytes:
    raw = scoped_key(write)
    return len(raw).to_bytes(2, "big") + raw + chunk.encode()


def published_end_key(until_ms: int, write: Scoped) -> bytes:
    return number(until_ms) + scoped_key(write)


def numbered_key(consumer: Scoped, claim_number: int) -> bytes:
    """What the keys of a numbered claim's rows begin with."""
    raw = scoped_key(consumer)
    return len(raw).to_bytes(2, "big") + raw + number(claim_number)


def after_prefix(prefix: bytes) -> bytes:
    """The first key behind all keys with this prefix."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else b"\xff" * (len(prefix) + 64)
