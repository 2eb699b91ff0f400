"""Streams of Arrow Flight: the only file of the client that talks to the network."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
import pyarrow.flight as flight

from fairlead.errors import FairleadError, InvalidRequest, ProtocolMismatch
from fairlead.model.addresses import join_address, split_address
from fairlead.wire.calls import Answer, Open, decode, encode
from fairlead.wire.faults import error_of
from fairlead.wire.schemas import CHANNELS, VERSION

#: What a broken stream raises; StopIteration is a stream that the server ended.
BROKEN = (pa.ArrowException, OSError, StopIteration)

#: gRPC's own reconnecting must be quicker than ours, or it fails our attempts without trying. The one called "min" is how
#: long an attempt may take: long enough for a far network and a busy server. A pool of its own keeps a second client in
#: this process from sharing the socket.
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
]


class Stream(Protocol):
    """One open exchange. One thread writes and reads at a time; `cancel` may come from any other, and makes a read raise.

    `abandon` says that its connection gives no answers: streams opened from now on do not share it.
    """

    def write(self, metadata: bytes, batch: pa.RecordBatch | None) -> None: ...

    def read(self) -> tuple[bytes, pa.RecordBatch | None]: ...

    def cancel(self) -> None: ...

    def abandon(self) -> None: ...

    def close(self) -> None: ...


class Transport(Protocol):
    def open(self, verb: str) -> Stream:
        """Raises one of `BROKEN` when there is no connection; then nothing was sent."""
        ...

    def close(self) -> None: ...


class FlightTransport:
    """One connection that all streams of a client share; gRPC makes it anew when it broke.

    A network that went away without a word breaks nothing: gRPC would go on for many minutes with a connection that leads
    nowhere. So who waited in vain abandons it.
    """

    def __init__(self, address: str) -> None:
        self._target = f"grpc://{join_address(*split_address(address))}"
        self._lock = threading.Lock()
        self._client = self._connect()

    def open(self, verb: str) -> Stream:
        client = self._client
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(encode(Open(verb))))
        schema = CHANNELS[verb][0]
        if schema is not None:
            writer.begin(schema)
        return FlightStream(writer, reader, lambda: self._abandon(client))

    def close(self) -> None:
        with contextlib.suppress(*BROKEN):
            self._client.close()

    def _abandon(self, client: flight.FlightClient) -> None:
        """Not closed: other calls may still be under way on it. It goes with the last of its streams."""
        with self._lock:
            if self._client is client:
                self._client = self._connect()

    def _connect(self) -> flight.FlightClient:
        return flight.FlightClient(self._target, generic_options=_OPTIONS)


class FlightStream:
    def __init__(self, writer: flight.FlightStreamWriter, reader: flight.FlightStreamReader, abandon: Callable[[], None]) -> None:
        self._writer = writer
        self._reader = reader
        self.abandon = abandon

    def write(self, metadata: bytes, batch: pa.RecordBatch | None) -> None:
        if batch is None:
            self._writer.write_metadata(metadata)
        else:
            self._writer.write_with_metadata(batch, metadata)

    def read(self) -> tuple[bytes, pa.RecordBatch | None]:
        chunk = self._reader.read_chunk()
        return chunk.app_metadata.to_pybytes() if chunk.app_metadata is not None else b"", chunk.data

    def cancel(self) -> None:
        self._reader.cancel()

    def close(self) -> None:
        self._reader.cancel()
        # Otherwise its destructor writes to stderr that it could not be closed.
        with contextlib.suppress(*BROKEN):
            self._writer.close()


def refusal_of(error: BaseException) -> FairleadError | None:
    """What the server said when it ended a stream on purpose: it took no request from it. None: it said nothing."""
    if isinstance(error, pa.ArrowNotImplementedError):
        return ProtocolMismatch(f"version {VERSION} of fairlead's Flight protocol", "a Flight server of another kind")
    if isinstance(error, flight.FlightServerError) and error.extra_info:
        with contextlib.suppress(InvalidRequest):
            fault = decode(error.extra_info, Answer).error
            return error_of(fault) if fault is not None else None
    return None


def describe(error: BaseException) -> str:
    """Without gRPC's own account of it, which says the same again at length."""
    text = str(error).partition(". gRPC client debug context")[0].partition("with message: ")
    return text[2] or text[0] or "the server ended the stream"
