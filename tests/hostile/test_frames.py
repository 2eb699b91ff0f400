"""Frames of the Flight door that no client of ours would send."""

from __future__ import annotations

import struct
from typing import Any

import grpc
import msgspec
import pyarrow as pa
import pytest

from fairlead.testing.server import ServerProcess
from fairlead.wire.schemas import EXCHANGE, MESSAGES
from tests.hostile.by_hand import PATIENCE_S, Stranger, batch_parts, frame, opening, rows_without_columns, schema_header
from tests.hostile.conftest import usage

encode = msgspec.msgpack.encode
ONE = pa.record_batch({"payload": pa.array([b"1"])})
METADATA: dict[str, Any] = {
    "enqueue": {"queues": []}, "settle": {}, "exchange": {"consumer": "c"}, "admin": {}, "record": {"name": "c", "generation": 1, "number": 1},
    "stage": {"token": "t", "chunk": "c", "queue": "q"},
}  # fmt: skip


@pytest.mark.parametrize("verb", METADATA)
@pytest.mark.parametrize("rows", [-(1 << 62), -1, 300_000, 1 << 30, 1 << 62])
def test_a_batch_that_says_it_has_more_rows_than_bytes_is_refused_before_room_is_made_for_them(server: ServerProcess, verb: str, rows: int) -> None:
    header, body = rows_without_columns(rows)
    before = usage(server.pid)["peak"]
    with Stranger(server.address) as stranger:
        stranger.send(opening(verb), frame(header=header, body=body, metadata=encode(METADATA[verb])))
        assert stranger.outcome() == "invalid_request"
    assert usage(server.pid)["peak"] - before < 500


@pytest.mark.parametrize("said", [0, 1, 14_999, 1 << 33, 1 << 40, 1 << 62, -2])
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_column_that_lies_about_its_size_ends_its_channel_and_tells_nothing_of_our_insides(
    server: ServerProcess, codec: str, said: int
) -> None:
    batch = pa.record_batch({"payload": pa.array([b"x" * 5000] * 3)})
    header, body = batch_parts(batch, compression=codec)
    lie = body.replace(struct.pack("<q", 15_000), struct.pack("<q", said))
    assert lie != body
    with Stranger(server.address) as stranger:
        stranger.send(opening("enqueue", batch.schema), frame(header=header, body=lie, metadata=encode({"queues": [["q", 3]]})))
        outcome = stranger.outcome()
    assert outcome.startswith(("expected batch to be Arrow's format", "the server is at its limit of 1073741824 bytes of memory for Arrow"))
    assert "Traceback" not in outcome
    assert "File" not in outcome


def _dictionary() -> tuple[bytes, ...]:
    batch = pa.record_batch({"payload": pa.array([b"1"]), "fairness_key": pa.array(["a"]).dictionary_encode()})
    return opening("enqueue", batch.schema), frame(header=batch_parts(ONE)[0], body=batch_parts(ONE)[1], metadata=encode({"queues": [["q", 1]]}))


def _wide() -> tuple[bytes, ...]:
    schema = pa.schema([(f"c{number}", pa.int8()) for number in range(20_000)])
    header, body = batch_parts(pa.RecordBatch.from_arrays([pa.array([1], pa.int8())] * len(schema), schema=schema))
    return opening("enqueue", schema), frame(header=header, body=body, metadata=encode({"queues": [["q", 1]]}))


def _deep() -> tuple[bytes, ...]:
    kind = pa.binary()
    for _ in range(60):
        kind = pa.list_(kind)
    return opening("enqueue", pa.schema([("payload", kind)])), frame(header=batch_parts(ONE)[0], body=batch_parts(ONE)[1], metadata=b"\x80")


def _cut(header: bytes, body: bytes) -> tuple[bytes, ...]:
    return opening("enqueue", ONE.schema), frame(header=header, body=body, metadata=encode({"queues": [["q", 1]]}))


def _nameless() -> tuple[bytes, ...]:
    header, body = batch_parts(ONE)
    return opening("enqueue", header=schema_header(ONE.schema).replace(b"payload", b"pay\xff\xfead")), _request(header, body)


def _list_that_leads_far_away() -> tuple[bytes, ...]:
    """Whoever asks such a batch for its size before it was found sound reads memory that is not ours."""
    batch = pa.RecordBatch.from_pylist([{"throttle_keys": ["a"]}, {"throttle_keys": ["b"]}], schema=MESSAGES).select(["throttle_keys"])
    header, body = batch_parts(batch)
    lie = body.replace(struct.pack("<iii", 0, 1, 2), struct.pack("<iii", 0, 1 << 29, 1 << 30), 1)
    assert lie != body
    return opening("enqueue", batch.schema), _request(header, lie)


def _request(header: bytes, body: bytes) -> bytes:
    return frame(header=header, body=body, metadata=encode({"queues": [["q", 2]]}))


WRONG_FRAMES: dict[str, tuple[bytes, ...]] = {
    "no frame": (),
    "an empty one": (b"",),
    "no protobuf": (b"\xff" * 100,),
    "a path instead of a command": (b"\x0a\x05\x08\x01\x1a\x01a",),
    "another kind of descriptor": (b"\x0a\x02\x08\x63",),
    "a command of arrays in arrays": (frame(command=b"\x91" * 100_000, header=schema_header(MESSAGES)),),
    "a verb of a megabyte": (frame(command=encode({"verb": "x" * 1_000_000}), header=schema_header(MESSAGES)),),
    "a schema that is none": (opening("enqueue", header=b"\xff" * 500),),
    "a batch before its schema": (opening("enqueue", header=batch_parts(ONE)[0]),),
    "the body cut off": _cut(batch_parts(ONE)[0], batch_parts(ONE)[1][:-8]),
    "the header cut off": _cut(batch_parts(ONE)[0][:-8], batch_parts(ONE)[1]),
    "a dictionary that never comes": _dictionary(),
    "twenty thousand columns": _wide(),
    "sixty lists in each other": _deep(),
    "a column whose name is no text": _nameless(),
    "a list that leads far away": _list_that_leads_far_away(),
}


@pytest.mark.parametrize("frames", WRONG_FRAMES.values(), ids=WRONG_FRAMES.keys())
def test_a_frame_that_makes_no_sense_ends_its_channel_with_words(server: ServerProcess, frames: tuple[bytes, ...]) -> None:
    with Stranger(server.address) as stranger:
        stranger.send(*frames)
        stranger.end()
        outcome = stranger.outcome()
    assert outcome not in ("", "ended", "broken_invariant")
    assert "Traceback" not in outcome
    assert not set(outcome) & set("\x1b\n\r")


def test_a_verb_that_could_fool_a_terminal_comes_back_harmless(server: ServerProcess) -> None:
    with Stranger(server.address) as stranger:
        stranger.send(frame(command=encode({"verb": "\x1b[2J\u202e\n"}), header=schema_header(MESSAGES)))
        assert "'\\x1b[2J\\u202e\\n'" in stranger.outcome()


@pytest.mark.parametrize(
    ("method", "streams"), [("DoGet", False), ("DoPut", True), ("DoAction", False), ("ListFlights", False), ("ListActions", False)]
)
def test_what_flight_could_do_besides_is_refused_without_a_stack(server: ServerProcess, method: str, streams: bool) -> None:
    request = opening("enqueue") if streams else b""
    with grpc.insecure_channel(server.address) as channel:
        call = channel.stream_stream(f"/arrow.flight.protocol.FlightService/{method}")(iter([request]), timeout=PATIENCE_S)
        with pytest.raises(grpc.RpcError) as refused:
            list(call)
    assert "DoExchange" in str(refused.value.details())
    assert "Traceback" not in str(refused.value.details())


def test_what_a_stranger_writes_on_a_schema_is_not_kept(server: ServerProcess) -> None:
    def send(at: int) -> None:
        batch = pa.RecordBatch.from_pylist([], schema=pa.schema([("payload", pa.binary())], metadata={"x": bytes([at]) * 20_000_000}))
        header, body = batch_parts(batch)
        with Stranger(server.address) as stranger:
            stranger.send(opening("enqueue", batch.schema), frame(header=header, body=body, metadata=encode({"queues": [["q", 0]]})))
            assert stranger.outcome() == ""

    send(0)
    before = usage(server.pid)["rss"]
    for at in range(1, 25):
        send(at)
    assert usage(server.pid)["rss"] - before < 250


MIXED = pa.RecordBatch.from_pylist([{"action": 0, "id": b"i" * 16, "lease": 1}, {"payload": b"1"}], schema=EXCHANGE)


@pytest.mark.parametrize(
    "counts",
    [{"extends": -1, "settles": 2}, {"settles": 1 << 62}, {"extends": (1 << 64) - 1}, {"settles": 3}, {"settles": 1}, {}, {"extends": 2},
     {"extends": 1, "queues": [["q", 1]]}, {"settles": 1, "queues": [["q", 2]]}],
    ids=str,
)  # fmt: skip
def test_an_exchange_whose_counts_do_not_add_up_is_refused_as_a_whole(server: ServerProcess, counts: dict[str, Any]) -> None:
    header, body = batch_parts(MIXED)
    with Stranger(server.address) as stranger:
        stranger.send(opening("exchange", EXCHANGE), frame(header=header, body=body, metadata=encode({"consumer": "c", **counts})))
        assert stranger.outcome() == "invalid_request"


@pytest.mark.parametrize("verb", ["enqueue", "settle"])
def test_ids_of_answered_requests_are_read_also_without_an_id_of_its_own(server: ServerProcess, verb: str) -> None:
    call = {"enqueue": {"queues": [["q", 1]], "rows": [[b"x"]]}, "settle": {"rows": [[0, b"i" * 16, 1]]}}[verb]
    with Stranger(server.address) as stranger:
        stranger.send(opening(verb), frame(metadata=encode({**call, "answered": ["no id"]})))
        assert stranger.outcome() == "invalid_request"


@pytest.mark.parametrize(
    ("verb", "field", "row"), [("enqueue", "rows", b"\x91\xc4\0"), ("settle", "rows", b"\x93\0\xc4\0\0"), ("enqueue", "queues", b"\x92\xa0\0")]
)
def test_millions_of_rows_beside_a_batch_are_refused_before_they_are_made(server: ServerProcess, verb: str, field: str, row: bytes) -> None:
    count = 3_000_000
    name = encode(field)
    before = usage(server.pid)["peak"]
    with Stranger(server.address) as stranger:
        stranger.send(opening(verb), frame(metadata=b"\x81" + name + b"\xdd" + count.to_bytes(4, "big") + row * count))
        assert stranger.outcome() == "invalid_request"
    assert usage(server.pid)["peak"] - before < 150
