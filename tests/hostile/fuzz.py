"""Random strangers, by seed: what a client of ours would send, with bytes of it changed, cut, doubled or
swapped.

`decoders` hands it to the code that reads requests, `live` to a server's port. A finding is an
`AssertionError` that names the seed; the same seed does the same again.
"""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa

from fairlead import Broker
from fairlead.errors import BrokenInvariant, FairleadError, InvalidRequest
from fairlead.middleware.stack import AdmittedCaller
from fairlead.server import answers
from fairlead.server.streamed import STREAMED
from fairlead.wire.requests import read_batch
from fairlead.wire.schemas import CHANNELS, DELIVERIES, MESSAGES, SETTLEMENTS
from tests.hostile import by_hand
from tests.hostile.by_hand import Stranger, batch_parts, opening
from tests.hostile.values import NASTY

encode = msgspec.msgpack.encode
Frames = tuple[str, bytes, bytes, bytes]
Sound = dict[str, tuple[pa.RecordBatch | None, dict[str, Any]]]

_SOUND: Sound = {
    "enqueue_many": (
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
        {"queue": "gone"},
    ),
    "claim": (None, {"queue": "gone", "limit": 1, "consumer": "c"}),
}
#: Apart from the others, because the consumer and the write may be there or not.
_CLAIM = {"name": "c", "queue": "gone", "generation": 1, "number": 1}
_OUTCOMES = pa.RecordBatch.from_pylist(
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
)
BULK: Sound = {
    "read": (None, {**_CLAIM, "slice": 0, "slices": 2}),
    "consumers.record": (_OUTCOMES, {**_CLAIM, "part": "p"}),
    "staging.stage": (
        _SOUND["enqueue_many"][0],
        {
            "token": "t",
            "chunk": "c",
            "queue": "gone",
            "ttl": "1d",
            "skip_invalid": True,
            "dead": ["unknown", "e"],
        },
    ),
    "browse": (None, {"queue": "gone", "view": "dead", "low": "", "high": "", "after": ""}),
}
#: Beside the fields of a call.
_PLACE = ("session", "number", "arrived")


def request(chance: random.Random, sound: Sound = _SOUND) -> Frames:
    """A verb, and the header, body and metadata of one frame, most of them a little wrong."""
    verb = chance.choice(list(sound))
    batch, call = sound[verb]
    place: dict[str, Any] = {}
    if chance.random() < 0.5:
        wrong, value = chance.choice([*call, *_PLACE, "token"]), chance.choice(NASTY)
        if wrong in _PLACE and wrong not in call:
            place = {wrong: value}
        else:
            call = {**call, wrong: value}
    metadata = packed(verb, call, place)
    compression = chance.choice([None, None, "zstd", "lz4"])
    header, body = (b"", b"") if batch is None else batch_parts(batch, compression=compression)
    part = chance.randrange(4)
    return (
        verb,
        mangle(chance, header) if part == 0 else header,
        mangle(chance, body) if part == 1 else body,
        mangle(chance, metadata) if part == 2 else metadata,
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
        with patch.object(answers, "MAX_WAIT_MS", 0):
            return answers.claim(broker, metadata)
    if verb in STREAMED:
        return [*STREAMED[verb](broker, metadata)]
    return answers.write(broker, metadata, batch)


def channel_of(verb: str) -> str:
    return verb if verb in CHANNELS else "write"


def packed(verb: str, fields: dict[str, Any], place: dict[str, Any] | None = None) -> bytes:
    """The call of a request."""
    named = {} if verb in CHANNELS else {"verb": verb}
    return encode({**named, "fields": encode(fields), **(place or {})})


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
    schemas = {"consumers.record": SETTLEMENTS, "staging.stage": MESSAGES, "enqueue_many": MESSAGES}
    return schemas.get(verb, DELIVERIES)


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
