"""A Flight client with no manners: sends what it is told, right or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from fairlead.request import Request
from fairlead.wire.calls import Answer, ClaimCall, Open, PagesCall, WriteCall, decode, encode
from fairlead.wire.plain import encode_fields, plain
from fairlead.wire.requests import pack
from fairlead.wire.schemas import NOTHING


class RawChannel:
    def __init__(
        self,
        client: flight.FlightClient,
        verb: str,
        *,
        command: bytes | None = None,
        options: flight.FlightCallOptions | None = None,
    ) -> None:
        descriptor = flight.FlightDescriptor.for_command(encode(Open(verb)) if command is None else command)
        self.writer, self.reader = client.do_exchange(descriptor, options)
        self.writer.begin(NOTHING)

    def send(self, metadata: bytes, batch: pa.RecordBatch | None = None) -> None:
        self.writer.write_metadata(pack(metadata, batch))

    def receive(self) -> tuple[Answer, pa.RecordBatch | None]:
        chunk = self.reader.read_chunk()
        return decode(chunk.app_metadata.to_pybytes(), Answer), chunk.data

    def call(self, call: Any, batch: pa.RecordBatch | None = None) -> tuple[Answer, pa.RecordBatch | None]:
        self.send(call if isinstance(call, bytes) else encode(call), batch)
        return self.receive()


def pages(request: Request[Any]) -> bytes:
    """The call for an answer of many batches."""
    return encode(PagesCall(encode_fields(request)))


def write(verb: str, place: Mapping[str, Any] | None = None, **fields: Any) -> bytes:
    """The call of a request with rows; `place` is its place in a session."""
    return encode(WriteCall(verb, encode(plain(fields)), **(place or {})))


def put(queue: str = "q", place: Mapping[str, Any] | None = None) -> bytes:
    """The call of an enqueue."""
    return write("enqueue_many", place, queue=queue)


def claim(queue: object = "q", **fields: Any) -> bytes:
    return encode(ClaimCall(encode(plain({"queue": queue, **fields}))))
