"""What no client would send, kind by kind at each door: an answer that says what is wrong or a closed
connection, and nothing else.

The fixture `server` looks after each case whether the server still serves, has stored nothing, and has
nothing in its log that nobody foresaw. What a door has no place for (columns at the gRPC door, JSON at all
three) is sent to it all the same.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import grpc
import msgspec
import pyarrow as pa
import pytest

import fairlead
from fairlead.server.fila.v1 import service_pb2
from fairlead.testing.server import ServerProcess, run_server
from fairlead.wire.schemas import MESSAGES, SETTLEMENTS
from tests.doors.flight.raw import put
from tests.hostile.by_hand import PATIENCE_S, Stranger, batch_parts, frame, http2_call, opening, request
from tests.hostile.test_http import get, talk

encode = msgspec.msgpack.encode
Outcome = str
Case = Callable[[ServerProcess], Outcome]

EXCHANGE = "/arrow.flight.protocol.FlightService/DoExchange"
ENQUEUE = "/fila.v1.FilaService/Enqueue"
SOUND = service_pb2.EnqueueRequest(queue="q", payload=b"x").SerializeToString()
NAMES = [
    "",
    " ",
    "a/b/c",
    "../x",
    "-x",
    "q\0",
    "q\n",
    "é",
    "x" * 201,
    "\u202eq",
    "q\x1b[2J",
    "\ud7ff",
    "q.dlq.dlq/",
]


def over_tcp(door: str, raw: bytes) -> Case:
    def send(server: ServerProcess) -> Outcome:
        answer = talk(server.addresses[door], raw)
        return "closed" if door != "http" or not answer else answer[:12].decode()

    return send


def batch_case(
    batch: pa.RecordBatch,
    change: Callable[[bytes, bytes], tuple[bytes, bytes]] = lambda header, body: (header, body),
    *,
    verb: str = "write",
    schema: pa.Schema | None = None,
    call: object = None,
) -> Case:
    def send(server: ServerProcess) -> Outcome:
        header, body = batch_parts(batch)
        changed = change(header, body)
        with Stranger(server.addresses["flight"]) as stranger:
            metadata = put() if call is None else encode(call)
            stranger.send(opening(verb), request(schema or batch.schema, changed[0], changed[1], metadata))
            stranger.end()
            return stranger.outcome()

    return send


def metadata_case(verb: str, call: object) -> Case:
    def send(server: ServerProcess) -> Outcome:
        with Stranger(server.addresses["flight"]) as stranger:
            stranger.send(opening(verb), frame(metadata=call if isinstance(call, bytes) else encode(call)))
            stranger.end()
            return stranger.outcome()

    return send


def call_case(request: bytes, **options: object) -> Case:
    def send(server: ServerProcess) -> Outcome:
        with grpc.insecure_channel(
            server.addresses["grpc"], options=[("grpc.max_send_message_length", -1)]
        ) as channel:
            try:
                channel.unary_unary(ENQUEUE)(request, timeout=PATIENCE_S, **options)
            except grpc.RpcError as refused:
                code, details = refused.code().name, refused.details() or ""  # type: ignore[attr-defined]
                return str(details if "Traceback" in details else code)
        return "OK"

    return send


def replaced(old: bytes, new: bytes) -> Callable[[bytes, bytes], tuple[bytes, bytes]]:
    def change(header: bytes, body: bytes) -> tuple[bytes, bytes]:
        assert old in body
        return header, body.replace(old, new, 1)

    return change


def in_header(old: bytes, new: bytes) -> Callable[[bytes, bytes], tuple[bytes, bytes]]:
    def change(header: bytes, body: bytes) -> tuple[bytes, bytes]:
        assert old in header
        return header.replace(old, new, 1), body

    return change


TWO = pa.RecordBatch.from_pylist(
    [{"payload": b"12345"}, {"payload": b"6789"}], schema=pa.schema([("payload", pa.binary())])
)
TOO_LARGE = service_pb2.EnqueueRequest(queue="q", payload=bytes(20 << 20)).SerializeToString()
OFFSETS = struct.pack("<iii", 0, 5, 9)
DEEP_JSON = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
MANY = {f"header-{number}": "v" for number in range(10_000)}

CASES: dict[str, dict[str, list[Case]]] = {
    "random bytes": {
        door: [over_tcp(door, random.Random(seed).randbytes(3000)) for seed in range(20)]
        for door in ("flight", "grpc", "http")
    },
    "truncated frames": {
        "flight": [
            over_tcp("flight", http2_call(EXCHANGE, b"\0\0\0\x03\xe8" + b"0123456789")),
            over_tcp("flight", http2_call(EXCHANGE, b"\0\0\0")),
            over_tcp("flight", http2_call(EXCHANGE, b"\0" + b"\0\0\0\x05hello")[:-20]),
            batch_case(TWO, lambda header, body: (header, body[:-8])),
            batch_case(TWO, lambda header, body: (header[:-8], body)),
        ],
        "grpc": [
            over_tcp("grpc", http2_call(ENQUEUE, b"\0\0\0\x03\xe8" + SOUND)),
            over_tcp("grpc", http2_call(ENQUEUE, b"\0\0")),
            over_tcp("grpc", http2_call(ENQUEUE, b"\0" + len(SOUND).to_bytes(4, "big") + SOUND)[:-12]),
            call_case(SOUND[:-2]),
        ],
        "http": [over_tcp("http", get(b"/healthz")[:cut]) for cut in (1, 5, 14, 25)],
    },
    "oversize frames": {
        "flight": [
            over_tcp("flight", http2_call(EXCHANGE, start + bytes(9000)))
            for start in (b"\0\xff\xff\xff\xff", b"\0\x7f\xff\xff\xff")
        ],
        "grpc": [
            over_tcp("grpc", http2_call(ENQUEUE, b"\0\xff\xff\xff\xff")),
            call_case(TOO_LARGE),
            call_case(TOO_LARGE, compression=grpc.Compression.Gzip),
        ],
        "http": [
            over_tcp("http", get(b"/" + b"a" * 70_000)),
            over_tcp("http", b"POST /healthz HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + bytes(9000)),
        ],
    },
    "wrong schemas and types": {
        "flight": [
            batch_case(pa.record_batch({"payload": pa.array(["text"])})),
            batch_case(pa.record_batch({"nonsense": pa.array([b"1"])})),
            batch_case(pa.record_batch({"payload": pa.array([1.5])})),
            batch_case(TWO, call={"verb": "consumers.record", "fields": encode({"name": "c", "queue": "q"})}),
            batch_case(pa.record_batch([pa.array([b"1"])] * 2, names=["payload", "payload"])),
            batch_case(TWO, schema=pa.schema([("payload", pa.int64())])),
            batch_case(TWO, schema=SETTLEMENTS),
            batch_case(TWO, verb="claim", call={}),
            batch_case(pa.record_batch({"payload": pa.array([{"a": 1}])})),
            metadata_case("write", {"verb": "enqueue_many", "fields": "q"}),
            metadata_case("write", [1, 2]),
            metadata_case("write", put()),
        ],
        "grpc": [
            call_case(raw)
            for raw in (
                b"\x08\x05",
                b"\x0d\0\0\0\0",
                b"\x09" + bytes(8),
                b"\x1a\x02\x08\x01",
                b"\x0a\x02\xff\xfe",
                b"",
                b"\x12\x04\x0a\x02\xff\xfe",
            )
        ],
        "http": [
            over_tcp(
                "http",
                b"POST /metrics HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
            )
        ],
    },
    "broken offsets and lying lengths": {
        "flight": [
            batch_case(TWO, replaced(OFFSETS, struct.pack("<iii", *lie)))
            for lie in (
                (0, 9, 5),
                (-5, 5, 9),
                (0, 5, 1 << 30),
                (9, 9, 9 + (1 << 20)),
                (0, -1, 9),
                (5, 0, 9),
                (0, 1 << 31 - 1, 9),
                (2, 1, 0),
            )
        ]
        + [
            batch_case(TWO, in_header(struct.pack("<q", 2), struct.pack("<q", lie)))
            for lie in (-1, 3, 1 << 20, 1 << 40, 1 << 62)
        ]
        + [
            batch_case(TWO, in_header(struct.pack("<q", 12), struct.pack("<q", lie)))
            for lie in (-1, 0, 1 << 20, 1 << 62)
        ],
        "grpc": [
            call_case(raw)
            for raw in (
                b"\x0a\xff\xff\xff\xff\x0f",
                b"\x0a\x7fq",
                b"\x1a\x05x",
                b"\x12\xff\xff\xff\xff\x07",
                b"\x0a" + b"\xff" * 8 + b"\x01",
            )
        ],
        "http": [
            over_tcp("http", get(b"/healthz", b"Content-Length: " + lie))
            for lie in (b"-1", b"1e9", b"99999999999999999999", b"0, 5")
        ],
    },
    "control characters and unicode in names": {
        "flight": [
            batch_case(TWO, call={"verb": "enqueue_many", "fields": encode({"queue": name})})
            for name in NAMES
        ]
        + [metadata_case("claim", {"fields": encode({"queue": name})}) for name in NAMES]
        + [metadata_case("claim", {"fields": b"\x81\xa5queue\xa2\xff\xfe"})],
        "grpc": [call_case(service_pb2.EnqueueRequest(queue=name).SerializeToString()) for name in NAMES]
        + [call_case(b"\x0a\x03\xed\xa0\x80")],
        "http": [
            over_tcp("http", get(path))
            for path in (
                b"/\x1b[2J",
                b"/\0",
                "/\u202ehealthz".encode(),
                b"/\xff\xfe",
                b"/healthz\x01",
                b"/%00%1b",
            )
        ],
    },
    "ten thousand headers": {
        "flight": [
            batch_case(
                pa.RecordBatch.from_pylist([{"payload": b"x", "headers": encode(MANY)}], schema=MESSAGES)
            ),
        ],
        "grpc": [
            call_case(service_pb2.EnqueueRequest(queue="q", headers=MANY).SerializeToString()),
            call_case(SOUND, metadata=[(name, "v") for name in MANY]),
        ],
        "http": [over_tcp("http", get(b"/", *(b"X%d: y" % number for number in range(10_000))))],
    },
    "deep JSON": {
        "flight": [
            metadata_case("write", DEEP_JSON),
            metadata_case("write", b"\x81" * 100_000),
            metadata_case("claim", b"\x81\xa7session" + b"\x91" * 100_000),
            batch_case(
                pa.RecordBatch.from_pylist(
                    [{"payload": b"x", "headers": b"\x81\xa1a" * 50_000}], schema=MESSAGES
                )
            ),
            metadata_case("claim", {"fields": b"\x91" * 100_000}),
        ],
        "grpc": [call_case(raw) for raw in (DEEP_JSON, b"\x0b" * 100_000, b"\x1a\x02" * 50_000)],
        "http": [
            over_tcp("http", b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(DEEP_JSON) + DEEP_JSON),
            over_tcp("http", get(b"/metrics?a=" + b"[" * 5000)),
        ],
    },
}
#: What a refusal is called: codes of our own errors, and what they are as a status.
REFUSALS = {
    "closed",
    "ended",
    "invalid_request",
    "queue_not_found",
    "INVALID_ARGUMENT",
    "RESOURCE_EXHAUSTED",
    *(f"HTTP/1.1 {status}" for status in (400, 404, 405, 414, 431, 501, 505)),
}
#: A page is a page: what is said of a body that nobody reads, or cut off behind the first line, changes
#: nothing about it.
HARMLESS = {
    (kind, "http"): {"HTTP/1.1 200"}
    for kind in ("truncated frames", "broken offsets and lying lengths", "deep JSON")
}


@pytest.mark.parametrize(("kind", "door"), [(kind, door) for kind, doors in CASES.items() for door in doors])
def test_it_is_refused_in_words_or_hung_up_on(server: ServerProcess, kind: str, door: str) -> None:
    for number, case in enumerate(CASES[kind][door]):
        outcome = case(server)
        assert outcome in REFUSALS | HARMLESS.get((kind, door), set()) or outcome.startswith("expected "), (
            number,
            outcome,
        )
        assert "Traceback" not in outcome
        assert not set(outcome) & set("\x1b\n\0"), (number, outcome)


def test_every_kind_is_tried_at_every_door() -> None:
    assert {frozenset(doors) for doors in CASES.values()} == {frozenset({"flight", "grpc", "http"})}


@pytest.mark.parametrize(
    "payload", [DEEP_JSON, b"[" * 100_000, b"[" * 900_000 + b"]" * 900_000, b'{"a":' * 100_000], ids=len
)
def test_a_payload_of_deep_json_is_kept_as_it_is_and_left_out_of_a_view_that_would_look_into_it(
    tmp_path: Path, payload: bytes
) -> None:
    with run_server(
        tmp_path / "data", settings={"durability": "os", "redact.json_paths": "$..secret"}
    ) as server:
        with fairlead.connect(server.address) as client:
            client.create_queue("q")
            client.enqueue("q", payload)
            (shown,) = client.peek("q")
            assert shown.payload != payload
            assert "payload" in str(shown.hidden)
            (delivery,) = client.claim("q")
            assert delivery.payload == payload
        assert server.stop() == 0
        assert "Traceback" not in server.log
