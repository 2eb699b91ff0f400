"""Frames of the Flight door that no client of ours would send."""

from __future__ import annotations

import struct
from typing import Any

import grpc
import msgspec
import pyarrow as pa
import pytest

from fairlead.testing.server import ServerProcess
from fairlead.wire.schemas import MESSAGES
from tests.doors.flight.raw import put
from tests.hostile import fuzz
from tests.hostile.by_hand import (
    PATIENCE_S,
    Stranger,
    batch_parts,
    frame,
    opening,
    request,
    rows_without_columns,
    schema_header,
)
from tests.hostile.conftest import usage

encode = msgspec.msgpack.encode
ONE = pa.record_batch({"payload": pa.array([b"1"])})
METADATA: dict[str, Any] = {
    "enqueue_many": {"queue": "q"},
    "consumers.record": {"name": "c", "queue": "q", "generation": 1, "number": 1},
    "staging.stage": {"token": "t", "chunk": "c", "queue": "q"},
}


@pytest.mark.parametrize("verb", METADATA)
@pytest.mark.parametrize("rows", [-(1 << 62), -1, 300_000, 1 << 30, 1 << 62])
def test_a_batch_that_says_it_has_more_rows_than_bytes_is_refused_before_room_is_made_for_them(
    server: ServerProcess, verb: str, rows: int
) -> None:
    header, body = rows_without_columns(rows)
    before = usage(server.pid)["peak"]
    with Stranger(server.addresses["flight"]) as stranger:
        call = fuzz.packed(verb, METADATA[verb])
        stranger.send(opening(fuzz.channel_of(verb)), request(pa.schema([]), header, body, call))
        assert stranger.outcome() == "invalid_request"
    assert usage(server.pid)["peak"] - before < 500


MIB = 1 << 20
BOMB_BYTES = 256 * MIB
#: What the largest batch of this test takes that is sent as it is; a bomb must not take as much.
LARGE_BYTES = 64 * MIB


def _bombs(codec: str) -> dict[str, tuple[pa.Schema, bytes, bytes]]:
    """Small batches that say they are large, and would be once they are unpacked."""
    one = pa.RecordBatch.from_arrays([pa.array([bytes(BOMB_BYTES)], pa.binary())], names=["payload"])
    columns = [pa.array([bytes(BOMB_BYTES // 16)], pa.binary())] * 16
    many = pa.RecordBatch.from_arrays(columns, names=[f"c{number}" for number in range(16)])
    return {
        "one column": (one.schema, *batch_parts(one, compression=codec)),
        "many columns": (many.schema, *batch_parts(many, compression=codec)),
    }


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_batch_is_refused_before_it_takes_memory(own_server: ServerProcess, codec: str) -> None:
    bombs, call = _bombs(codec), put("nowhere")
    large = pa.RecordBatch.from_arrays([pa.array([bytes(LARGE_BYTES)], pa.binary())], names=["payload"])
    before = usage(own_server.pid)["peak"]
    for schema, header, body in bombs.values():
        for _ in range(3):
            with Stranger(own_server.addresses["flight"]) as stranger:
                stranger.send(opening("write"), request(schema, header, body, call))
                assert stranger.outcome() == "invalid_request"
            with Stranger(own_server.addresses["flight"]) as stranger:
                stranger.send(opening("write", schema), frame(header=header, body=body, metadata=call))
                assert stranger.outcome().startswith("expected schema to be one without columns")
            with Stranger(own_server.addresses["flight"]) as stranger:
                stranger.send(opening("write"), frame(header=header, body=body, metadata=call))
                assert stranger.outcome().startswith("expected request to be")
    bombed = usage(own_server.pid)["peak"]
    with Stranger(own_server.addresses["flight"]) as stranger:
        stranger.send(opening("write"), request(large.schema, *batch_parts(large), call))
        assert stranger.outcome() == "invalid_request"
    assert bombed - before < usage(own_server.pid)["peak"] - bombed


def test_a_dictionary_that_is_compressed_is_refused(server: ServerProcess) -> None:
    batch = pa.record_batch({"fairness_key": pa.array(["x" * 1000] * 50).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_batch(batch)
    with Stranger(server.addresses["flight"]) as stranger:
        stranger.send(
            opening("write"),
            frame(metadata=encode([put(), sink.getvalue().to_pybytes()])),
        )
        assert stranger.outcome() == "invalid_request"


def _dictionary() -> tuple[bytes, ...]:
    batch = pa.record_batch(
        {"payload": pa.array([b"1"]), "fairness_key": pa.array(["a"]).dictionary_encode()}
    )
    return opening("write"), request(batch.schema, *batch_parts(ONE), put())


def _wide() -> tuple[bytes, ...]:
    schema = pa.schema([(f"c{number}", pa.int8()) for number in range(20_000)])
    header, body = batch_parts(
        pa.RecordBatch.from_arrays([pa.array([1], pa.int8())] * len(schema), schema=schema)
    )
    return opening("write"), request(schema, header, body, put())


def _deep() -> tuple[bytes, ...]:
    kind = pa.binary()
    for _ in range(60):
        kind = pa.list_(kind)
    return opening("write"), request(pa.schema([("payload", kind)]), *batch_parts(ONE), b"\x80")


def _cut(header: bytes, body: bytes) -> tuple[bytes, ...]:
    return opening("write"), request(ONE.schema, header, body, put())


def _nameless() -> tuple[bytes, ...]:
    header, body = batch_parts(ONE)
    return opening("write"), _request(
        schema_header(ONE.schema).replace(b"payload", b"pay\xff\xfead"), header, body
    )


def _list_that_leads_far_away() -> tuple[bytes, ...]:
    """Whoever asks such a batch for its size before it was found sound reads memory that is not ours."""
    batch = pa.RecordBatch.from_pylist(
        [{"throttle_keys": ["a"]}, {"throttle_keys": ["b"]}], schema=MESSAGES
    ).select(["throttle_keys"])
    header, body = batch_parts(batch)
    lie = body.replace(struct.pack("<iii", 0, 1, 2), struct.pack("<iii", 0, 1 << 29, 1 << 30), 1)
    assert lie != body
    return opening("write"), _request(batch.schema, header, lie)


def _request(schema: pa.Schema | bytes, header: bytes, body: bytes) -> bytes:
    return request(schema, header, body, put())


WRONG_FRAMES: dict[str, tuple[bytes, ...]] = {
    "no frame": (),
    "an empty one": (b"",),
    "no protobuf": (b"\xff" * 100,),
    "a path instead of a command": (b"\x0a\x05\x08\x01\x1a\x01a",),
    "another kind of descriptor": (b"\x0a\x02\x08\x63",),
    "a command of arrays in arrays": (frame(command=b"\x91" * 100_000, header=schema_header(MESSAGES)),),
    "a verb of a megabyte": (
        frame(command=encode({"verb": "x" * 1_000_000}), header=schema_header(MESSAGES)),
    ),
    "a schema that is none": (opening("write", header=b"\xff" * 500),),
    "a batch before its schema": (opening("write", header=batch_parts(ONE)[0]),),
    "the body cut off": _cut(batch_parts(ONE)[0], batch_parts(ONE)[1][:-8]),
    "the header cut off": _cut(batch_parts(ONE)[0][:-8], batch_parts(ONE)[1]),
    "a dictionary that never comes": _dictionary(),
    "twenty thousand columns": _wide(),
    "sixty lists in each other": _deep(),
    "a column whose name is no text": _nameless(),
    "a list that leads far away": _list_that_leads_far_away(),
}


@pytest.mark.parametrize("frames", WRONG_FRAMES.values(), ids=WRONG_FRAMES.keys())
def test_a_frame_that_makes_no_sense_ends_its_channel_with_words(
    server: ServerProcess, frames: tuple[bytes, ...]
) -> None:
    with Stranger(server.addresses["flight"]) as stranger:
        stranger.send(*frames)
        stranger.end()
        outcome = stranger.outcome()
    assert outcome not in ("", "ended", "broken_invariant")
    assert "Traceback" not in outcome
    assert not set(outcome) & set("\x1b\n\r")


def test_a_verb_that_could_fool_a_terminal_comes_back_harmless(server: ServerProcess) -> None:
    with Stranger(server.addresses["flight"]) as stranger:
        stranger.send(frame(command=encode({"verb": "\x1b[2J\u202e\n"}), header=schema_header(MESSAGES)))
        assert "'\\x1b[2J\\u202e\\n'" in stranger.outcome()


@pytest.mark.parametrize(
    ("method", "streams"),
    [("DoGet", False), ("DoPut", True), ("DoAction", False), ("ListFlights", False), ("ListActions", False)],
)
def test_what_flight_could_do_besides_is_refused_without_a_stack(
    server: ServerProcess, method: str, streams: bool
) -> None:
    request = opening("write") if streams else b""
    with grpc.insecure_channel(server.addresses["flight"]) as channel:
        call = channel.stream_stream(f"/arrow.flight.protocol.FlightService/{method}")(
            iter([request]), timeout=PATIENCE_S
        )
        with pytest.raises(grpc.RpcError) as refused:
            list(call)
    assert "DoExchange" in str(refused.value.details())
    assert "Traceback" not in str(refused.value.details())


def test_what_a_stranger_writes_on_a_schema_is_not_kept(server: ServerProcess) -> None:
    def send(at: int) -> None:
        batch = pa.RecordBatch.from_pylist(
            [], schema=pa.schema([("payload", pa.binary())], metadata={"x": bytes([at]) * 20_000_000})
        )
        header, body = batch_parts(batch)
        with Stranger(server.addresses["flight"]) as stranger:
            stranger.send(opening("write"), request(batch.schema, header, body, put()))
            assert stranger.outcome() == ""

    send(0)
    before = usage(server.pid)["rss"]
    for at in range(1, 25):
        send(at)
    assert usage(server.pid)["rss"] - before < 250
