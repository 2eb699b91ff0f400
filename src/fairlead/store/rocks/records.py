"""Every record of every family, read with checksums and decoded: what `verify` needs beyond the questions of
the port.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from fairlead.errors import StoreCorrupt
from fairlead.store.rocks import codec
from fairlead.store.rocks.layout import FAMILIES, number, numbered_key
from fairlead.store.rocks.questions import Questions

_PAGE = 2000
#: A chunk, and what one call said about a claim, may have hundreds of megabytes.
_CHUNK_PAGE = 1
_MOST_PROBLEMS = 1000
#: Families whose keys begin with a queue id.
_OF_A_QUEUE = ("ready", "waiting", "done", "ttl", "dedup", "dedup_end", "streams", "stream_rows", "counters")

#: Families of what a consumer has in hand.
_OF_A_CLAIM = ("claim_members", "claim_outcomes", "claim_choices")


def check_records(store: Questions) -> list[str]:
    """What does not decode, belongs to no queue, or stands beside no message. Bounded memory: pages, and
    look-ups by key.
    """
    problems: list[str] = []
    queues = {key for key, _ in store._scan("queues", b"", None, 1 << 60)}
    for family in FAMILIES:
        try:
            for page in _pages(store, family):
                _check_page(store, family, page, queues, problems)
                if len(problems) > _MOST_PROBLEMS:
                    return [*problems, "more problems were found than are worth listing"]
        except StoreCorrupt as damage:
            problems.append(damage.message)
    return problems


def _check_page(
    store: Questions, family: str, page: list[tuple[bytes, bytes]], queues: set[bytes], problems: list[str]
) -> None:
    for key, raw in page:
        try:
            _DECODE[family](key, raw)
        except StoreCorrupt as damage:
            problems.append(damage.message)
        if family in _OF_A_QUEUE and key[:4] not in queues:
            problems.append(
                f"{family} {key.hex()} belongs to queue id {int.from_bytes(key[:4], 'big')}, which does not exist"
            )
    if family in ("state", "leases"):
        keys = [key for key, _ in page]
        problems += [
            f"{family} {key.hex()} has no message"
            for key, body in zip(keys, store._get("messages", keys), strict=True)
            if body is None
        ]
    if family == "dedup":
        _check_dedup(store, page, problems)
    if family in _OF_A_CLAIM:
        in_hand = {
            numbered_key(record.key, record.number) for record in store.consumers() if record.phase != "idle"
        }
        claims = [(key, key[: 10 + int.from_bytes(key[:2], "big")]) for key, _ in page]
        problems += [
            f"{family} {key.hex()} belongs to a claim that is over"
            for key, claim in claims
            if claim not in in_hand
        ]
    if family in _TWINS:
        twin, twin_key = _TWINS[family]
        found = store._get(twin, [twin_key(key, raw) for key, raw in page])
        problems += [
            f"{family} {key.hex()} has no row in {twin}"
            for (key, _), row in zip(page, found, strict=True)
            if row is None
        ]


#: A row of the family has one in another, under a key that follows from it.
_TWINS: dict[str, tuple[str, Callable[[bytes, bytes], bytes]]] = {
    "staged": ("staged_chunks", lambda key, raw: key),
    "published": ("published_end", lambda key, raw: number(codec.decode_published(key, raw).until_ms) + key),
    "published_end": ("published", lambda key, raw: key[8:]),
}


def _check_dedup(store: Questions, page: list[tuple[bytes, bytes]], problems: list[str]) -> None:
    """A live key has its message, a window has its end."""
    rows = [(key, *codec.decode_fixed("dedup", key, raw, codec.DEDUP)) for key, raw in page]
    live = [(key, id) for key, id, until_ms in rows if not until_ms]
    for (key, id), body in zip(live, store._get("messages", [id for _, id in live]), strict=True):
        if body is None:
            problems.append(f"dedup {key.hex()} is live, but message {id.hex()} is gone")
    ends = [(key, key[:4] + until_ms.to_bytes(8, "big") + key[4:]) for key, _, until_ms in rows if until_ms]
    for (key, _), end in zip(ends, store._get("dedup_end", [end for _, end in ends]), strict=True):
        if end is None:
            problems.append(f"dedup {key.hex()} has a window without an end row")


def _pages(store: Questions, family: str) -> Iterator[list[tuple[bytes, bytes]]]:
    start, size = b"", _CHUNK_PAGE if family in ("staged", "claim_outcomes") else _PAGE
    while page := store._scan(family, start, None, size):
        yield page
        start = page[-1][0] + b"\0"


def _fixed(family: str, shape: struct.Struct) -> Callable[[bytes, bytes], object]:
    return lambda key, raw: codec.decode_fixed(family, key, raw, shape)


def _at_least(family: str, key_bytes: int, value_bytes: int) -> Callable[[bytes, bytes], object]:
    def check(key: bytes, raw: bytes) -> None:
        if len(key) < key_bytes or len(raw) < value_bytes or raw[0] != codec.VERSION:
            raise codec.undecodable(
                family, key, f"a key of {len(key)} bytes, version {raw[:1].hex() or 'none'}, {len(raw)} bytes"
            )

    return check


_DECODE: dict[str, Callable[[bytes, bytes], object]] = {
    "clock": codec.decode_clock_mark,
    "buckets": codec.decode_bucket,
    "messages": lambda key, raw: codec.decode_messages([key], [raw]),
    "state": codec.decode_state,
    "ready": _at_least("ready", 12, codec.READY.size),
    "waiting": _at_least("waiting", 28, 8),
    "leases": codec.decode_lease,
    "lease_expiry": codec.decode_claim,
    "done": _at_least("done", 28, 20),
    "ttl": _at_least("ttl", 28, 1),
    "dedup": _fixed("dedup", codec.DEDUP),
    "dedup_end": _at_least("dedup_end", 12, 1),
    "streams": codec.decode_stream,
    "stream_rows": codec.decode_stream_row,
    "requests": _at_least("requests", 16, 1),
    "queues": codec.decode_queue,
    "counters": _fixed("counters", codec.COUNTERS),
    "config": lambda key, raw: codec.decode_text("config", key, raw),
    "intents": codec.decode_intent,
    "keys": codec.decode_key,
    "audit": codec.decode_audit,
    "runbooks": lambda key, raw: codec.decode_text("runbooks", key, raw),
    "staged": _at_least("staged", 3, 2),
    "staged_chunks": codec.decode_chunk,
    "publishing": codec.decode_publishing,
    "published": codec.decode_published,
    "published_end": _at_least("published_end", 9, 1),
    "consumers": codec.decode_consumer,
    "claim_members": codec.decode_members,
    "claim_outcomes": codec.decode_outcomes,
    "claim_choices": codec.decode_choice,
    "meta": _fixed("meta", codec.META),
}
