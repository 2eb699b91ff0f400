"""Random strangers, by seed: what a client of ours would send, with bytes of it changed, cut, doubled or
swapped.

`decoders` hands it to the code that reads requests, `live` to a server's port. A finding is an
`AssertionError` that names the seed; the same seed does the same again.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pyarrow as pa

from fairlead import Broker
from fairlead.errors import BrokenInvariant, FairleadError, InvalidRequest
from fairlead.middleware.stack import AdmittedCaller
from fairlead.server import answers
from fairlead.server.streamed import STREAMED
from fairlead.wire.calls import ClaimCall, decode
from fairlead.wire.records import record_verbs
from fairlead.wire.requests import read_batch
from fairlead.wire.schemas import CHANNELS, DELIVERIES, EXCHANGE, MESSAGES, SETTLEMENTS
from tests.hostile import by_hand
from tests.hostile.by_hand import Stranger, batch_parts, opening
from tests.hostile.values import NASTY

encode = msgspec.msgpack.encode
Frames = tuple[str, bytes, bytes, bytes]
Sound = dict[str, tuple[pa.RecordBatch | None, dict[str, Any]]]

_SOUND: Sound = {
    "enqueue": (
        pa.RecordBatch.from_pylist(
            [
                {
                    "payload": b"x",
                    "headers": b"\x81\xa1a\xa1b",
                    "fairness_key": "k",
                    "weight": 2,
                    "throttle_keys": ["a", "b"],
                    "stream": "s",
                    "delay_ms": 5,
                    "dedup_key": "d",
                    "ttl_ms": 7,
                },
                {"payload": b"y"},
            ],
            schema=MESSAGES,
        ),
        {"queues": [["gone", 2]]},
    ),
    "settle": (
        pa.RecordBatch.from_pylist(
            [
                {
                    "action": 1,
                    "id": b"i" * 16,
                    "lease": 3,
                    "error": "e",
                    "reason": 2,
                    "progress": 1,
                    "retry_in_ms": 5,
                    "dead": True,
                },
                {
                    "action": 3,
                    "id": b"j" * 16,
                    "lease": 4,
                    "duration_ms": 9,
                    "carry": b"c",
                    "keep_order": True,
                },
            ],
            schema=SETTLEMENTS,
        ),
        {"answered": []},
    ),
    "exchange": (
        pa.RecordBatch.from_pylist(
            [
                {"action": 3, "id": b"i" * 16, "lease": 3},
                {"action": 0, "id": b"i" * 16, "lease": 3},
                {"payload": b"x"},
            ],
            schema=EXCHANGE,
        ),
        {
            "settles": 2,
            "queues": [["gone", 1]],
            "claim": {"queue": "gone", "limit": 1},
        },
    ),
    "request": (pa.RecordBatch.from_pylist([], schema=DELIVERIES), {}),
    "claim": (
        pa.RecordBatch.from_pylist([], schema=DELIVERIES),
        {"queue": "gone", "limit": 1, "consumer": "c"},
    ),
}
#: Apart from the others, so that their seeds go on meaning what they meant. The consumer and the write may be
#: there or not.
_NO_ROWS = pa.RecordBatch.from_pylist([], schema=DELIVERIES)
_CLAIM = {"name": "c", "queue": "gone", "generation": 1, "number": 1}
BULK: Sound = {
    "consumers.claim": (None, {**_CLAIM, "limit": 5, "max_bytes": 9}),
    "read": (_NO_ROWS, {**_CLAIM, "slice": 0, "slices": 2}),
    "consumers.record": (_SOUND["settle"][0], {**_CLAIM, "part": "p"}),
    "staging.stage": (
        _SOUND["enqueue"][0],
        {
            "token": "t",
            "chunk": "c",
            "queue": "gone",
            "ttl": "1d",
            "skip_invalid": True,
            "dead": ["unknown", "e"],
        },
    ),
    "browse": (_NO_ROWS, {"queue": "gone", "view": "dead", "low": "", "high": "", "after": ""}),
}
#: Verbs that may be asked with anything; a checkpoint writes files where it is told to.
_VERBS = [verb for verb in record_verbs() if verb != "checkpoint"]


def request(chance: random.Random, sound: Sound = _SOUND) -> Frames:
    """A verb, and the header, body and metadata of one frame, most of them a little wrong."""
    verb = chance.choice(list(sound))
    batch, call = sound[verb]
    metadata = packed(verb, call)
    if verb == "request":
        field = chance.choice(["queue", "name", "ids", "filter"])
        fields = mangle(chance, encode({field: chance.choice(NASTY), "queue": "gone"}))
        metadata = encode({"verb": chance.choice(_VERBS), "fields": fields})
    if chance.random() < 0.5 and call:
        call = {
            **call,
            chance.choice([*call, "rows", "session", "number", "arrived", "token"]): chance.choice(NASTY),
        }
        metadata = packed(verb, call)
    compression = chance.choice([None, None, "zstd", "lz4"])
    header, body = (b"", b"") if batch is None else batch_parts(batch, compression=compression)
    wrong = chance.randrange(4)
    return (
        verb,
        mangle(chance, header) if wrong == 0 else header,
        mangle(chance, body) if wrong == 1 else body,
        mangle(chance, metadata) if wrong == 2 else metadata,
    )


def decoders(seed: int, broker: Broker | AdmittedCaller, sound: Sound = _SOUND) -> None:
    """Everything that reads a request, as the Flight door calls it."""
    verb, header, body, metadata = request(random.Random(seed), sound)
    try:
        batch = None if sound[verb][0] is None else _read(verb, header, body)
    except InvalidRequest:
        return
    try:
        carry_out(broker, verb, metadata, batch)
    except BrokenInvariant as broken:
        raise AssertionError(f"seed {seed}: {verb} broke an invariant") from broken
    except FairleadError:
        return
    except Exception as unforeseen:
        raise AssertionError(f"seed {seed}: {verb} met {unforeseen!r}") from unforeseen


def carry_out(broker: Any, verb: str, metadata: bytes, batch: pa.RecordBatch | None) -> object:
    """As the Flight door does it, but that nothing waits."""
    if verb == "claim":
        call = decode(metadata, ClaimCall)
        return answers.claim(broker, call, call.limit, 0)
    if verb in STREAMED:
        return [*STREAMED[verb](broker, metadata)]
    return answers.ANSWERS[channel_of(verb)](broker, metadata, batch)


def channel_of(verb: str) -> str:
    return verb if verb in CHANNELS else "request"


def packed(verb: str, call: dict[str, Any]) -> bytes:
    """A call of a channel, or a request that travels as a record."""
    if verb in STREAMED:
        return encode({"fields": encode(call)})
    return encode(call) if verb in CHANNELS else encode({"verb": verb, "fields": encode(call)})


def live(seed: int, address: str, sound: Sound = _SOUND) -> None:
    chance = random.Random(seed)
    verb, header, body, metadata = request(chance, sound)
    first = opening(channel_of(verb))
    sent = [
        first if chance.random() < 0.8 else mangle(chance, first),
        by_hand.frame(metadata=metadata)
        if sound[verb][0] is None
        else by_hand.request(_schema_of(verb), header, body, metadata),
    ]
    if chance.random() < 0.2:
        sent[1] = mangle(chance, sent[1])
    with Stranger(address) as stranger:
        stranger.send(*sent)
        if chance.random() < 0.8:
            stranger.end()
            outcome = stranger.outcome()
            assert outcome != "broken_invariant", f"seed {seed}: {verb}"
            assert "Traceback" not in outcome, f"seed {seed}: {verb}"


def _read(verb: str, header: bytes, body: bytes) -> pa.RecordBatch:
    schema = _schema_of(verb)
    raw = b"\xff\xff\xff\xff" + len(header).to_bytes(4, "little") + header + body
    return read_batch(memoryview(schema.serialize().to_pybytes() + raw))


def _schema_of(verb: str) -> pa.Schema:
    in_records = {"consumers.record": SETTLEMENTS, "staging.stage": MESSAGES}
    return in_records.get(verb) or CHANNELS[verb][0] or DELIVERIES


def mangle(chance: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(changed) + 1)
        kind = chance.randrange(6)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[at : at + 4] = chance.choice(
                [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\x01\0\0\0"]
            )
        elif kind == 2:
            del changed[at : at + chance.randrange(1, 9)]
        elif kind == 3:
            changed[at:at] = chance.randbytes(chance.randrange(1, 9))
        elif kind == 4:
            changed[at : at + 8] = chance.choice([1 << 33, 1 << 62, (1 << 64) - 1, 1 << 16]).to_bytes(
                8, "little"
            )
        else:
            del changed[at:]
    return bytes(changed)
