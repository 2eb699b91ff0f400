"""Flight spoken by hand over plain gRPC: every part of a frame is whatever a test says."""

from __future__ import annotations

import queue
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import msgspec
import pyarrow as pa

#: Generous: a loaded machine is slow.
PATIENCE_S = 60.0

_SERVICE = "/arrow.flight.protocol.FlightService/"
_BYTES = 2


def frame(
    *,
    command: bytes | None = None,
    header: bytes | None = None,
    metadata: bytes | None = None,
    body: bytes | None = None,
) -> bytes:
    """A FlightData message."""
    described = None if command is None else b"\x08\x02" + _field(2, command)
    parts = {1: described, 2: header, 3: metadata, 1000: body}
    return b"".join(_field(number, part) for number, part in parts.items() if part is not None)


def opening(verb: str, schema: pa.Schema | None = None, *, header: bytes | None = None) -> bytes:
    """The first frame of a channel."""
    return frame(
        command=msgspec.msgpack.encode({"verb": verb, "fairlead": 1}),
        header=header or schema_header(schema or pa.schema([])),
    )


def request(schema: pa.Schema | bytes, header: bytes, body: bytes, call: bytes) -> bytes:
    """A frame whose app_metadata has a call and a batch. `schema` may be its header in IPC."""
    described = schema if isinstance(schema, bytes) else schema_header(schema)
    stream = (
        b"".join(b"\xff\xff\xff\xff" + struct.pack("<i", len(one)) + one for one in (described, header))
        + body
    )
    return frame(metadata=msgspec.msgpack.encode([call, stream]))


def schema_header(schema: pa.Schema) -> bytes:
    return _parts(schema.serialize())[0]


def batch_parts(batch: pa.RecordBatch, *, compression: str | None = None) -> tuple[bytes, bytes]:
    """What goes into the header and the body of a frame."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as stream:
        stream.write_batch(batch)
    raw = sink.getvalue()
    begins = 8 + len(schema_header(batch.schema))
    return _parts(raw[begins:])


def rows_without_columns(rows: int) -> tuple[bytes, bytes]:
    """A batch that takes no room and says that it has so many rows."""
    honest = pa.RecordBatch.from_struct_array(pa.array([{}] * 1357, pa.struct([])))
    header, body = batch_parts(honest)
    return header.replace(struct.pack("<q", 1357), struct.pack("<q", rows)), body


class Stranger:
    """One connection of its own, and one call on it."""

    def __init__(self, address: str, method: str = "DoExchange") -> None:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        self._channel = grpc.insecure_channel(address, options=options)
        self._sent: queue.Queue[bytes | None] = queue.Queue()
        self.call = self._channel.stream_stream(_SERVICE + method)(
            iter(self._sent.get, None), timeout=PATIENCE_S
        )

    def send(self, *frames: bytes) -> None:
        for one in frames:
            self._sent.put(one)

    def end(self) -> None:
        self._sent.put(None)

    def answer(self) -> dict[str, Any]:
        """The map of the next answer; raises `grpc.RpcError` when the call ends with a status,
        `StopIteration` when it just ends.
        """
        while True:
            found = dict(_fields(next(self.call)))
            if 3 in found:
                decoded: dict[str, Any] = msgspec.msgpack.decode(found[3])
                return decoded

    def outcome(self) -> str:
        """The code of the error that the next answer has, "" for none; or the text that the call ended with."""
        try:
            error = self.answer().get("error")
        except StopIteration:
            return "ended"
        except grpc.RpcError as ended:
            return str(ended.details())  # type: ignore[attr-defined]
        return str(error["code"]) if error else ""

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.call.cancel()
        self._channel.close()


def _parts(message: pa.Buffer) -> tuple[bytes, bytes]:
    """An encapsulated IPC message without its length, and its body."""
    raw = message.to_pybytes()
    ends = 8 + int(struct.unpack("<i", raw[4:8])[0])
    body = pa.ipc.read_message(pa.py_buffer(raw)).body
    return raw[8:ends], b"" if body is None else body.to_pybytes()


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(raw):
        tag = number()
        assert tag & 7 == _BYTES
        length = number()
        yield tag >> 3, raw[at : at + length]
        at += length


def http2_call(path: str, *messages: bytes, headers: Sequence[tuple[str, str]] = ()) -> bytes:
    """All that a client sends over a connection of its own to make one gRPC call; messages begin with flag
    and length, true or not.
    """
    block = b"\x83\x86" + b"".join(
        b"\x00" + _literal(name) + _literal(value)
        for name, value in (
            (":path", path),
            (":authority", "x"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *headers,
        )
    )
    end_headers, end_stream = 4, 1
    frames = [_http2_frame(4, 0, 0, b""), _http2_frame(1, end_headers, 1, block)]
    frames += [_http2_frame(0, 0, 1, message) for message in messages]
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(frames) + _http2_frame(0, end_stream, 1, b"")


def _http2_frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def _literal(text: str) -> bytes:
    raw = text.encode()
    assert len(raw) < 127
    return bytes([len(raw)]) + raw
