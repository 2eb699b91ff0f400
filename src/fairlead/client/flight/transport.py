"""Streams of Arrow Flight. This is the only file of the folder that uses the network."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
import pyarrow.flight as flight

from fairlead.client.diagnosis import diagnose
from fairlead.client.tls import Tls, files_identity, read_files
from fairlead.errors import FairleadError, InvalidRequest, ProtocolMismatch, Unauthenticated
from fairlead.model.addresses import join_address, split_address
from fairlead.wire.calls import Answer, Open, decode, encode
from fairlead.wire.faults import error_of
from fairlead.wire.requests import pack
from fairlead.wire.schemas import NOTHING, VERSION

#: The errors of a broken stream. StopIteration: the server ended the stream.
BROKEN = (pa.ArrowException, OSError, StopIteration)

#: gRPC must reconnect faster than this client retries, or it fails the attempts without trying. The option
#: with "min" in its name is the time limit of an attempt: long enough for a distant network and a busy
#: server. A separate pool keeps a second client in this process from sharing the socket.
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    # A ping every ten minutes, the highest rate that a Flight server accepts. The timeout that comes with
    # keepalive is what matters, see below.
    ("grpc.keepalive_time_ms", 600_000),
]
#: TCP sends a lost packet again after 200 ms: a connection that lost one packet is not dead.
_MIN_TCP_TIMEOUT_MS = 200


_log = logging.getLogger("fairlead.client")


class ExchangeStream(Protocol):
    """One open exchange. One thread writes and reads at a time. Another thread may call `cancel`, which makes
    a read raise.

    `abandon` reports that the connection gives no answers: streams that are opened later use another one.
    """

    def write(self, metadata: bytes, batch: pa.RecordBatch | None) -> None: ...

    def read(self) -> tuple[bytes, pa.RecordBatch | None]: ...

    def cancel(self) -> None: ...

    def abandon(self) -> None: ...

    def close(self) -> None: ...


class Transport(Protocol):
    def open(self, verb: str) -> ExchangeStream:
        """Open a stream. Raises one of `BROKEN` if there is no connection; then nothing was sent."""
        ...

    def why_hopeless(self) -> str:
        """After a failed attempt: why all others will fail; "" if another may succeed, or the cause is
        unknown.
        """
        ...

    def close(self) -> None: ...


class FlightTransport:
    """One connection that all streams of a client share. gRPC opens it again after it broke.

    A network that silently disappears breaks nothing: gRPC would use the dead connection for many minutes. So
    a call without an answer abandons it. A waiting read can be cancelled. A write larger than the socket's
    buffer cannot, while the peer does not read; so the system ends a connection that delivers nothing for
    `timeout_ms` (TCP_USER_TIMEOUT, which gRPC sets together with its keepalive, on Linux).
    """

    def __init__(
        self, address: str, *, tls: Tls | None = None, api_key: str | None = None, timeout_ms: int = 30_000
    ) -> None:
        self._host, self._port = split_address(address)
        self._target = f"{'grpc' if tls is None else 'grpc+tls'}://{join_address(self._host, self._port)}"
        self._tls = tls
        self._api_key = ApiKey(api_key) if api_key is not None else None
        self._options = [*_OPTIONS, ("grpc.keepalive_timeout_ms", max(timeout_ms, _MIN_TCP_TIMEOUT_MS))]
        self._lock = threading.Lock()
        self._silent = False
        self._identity = files_identity(tls) if tls is not None else ()
        self._files = read_files(tls) if tls is not None else None
        self._client = self._connect()

    def open(self, verb: str) -> ExchangeStream:
        self._renew_files()
        client = self._client
        writer, reader = client.do_exchange(
            flight.FlightDescriptor.for_command(encode(Open(verb))), self._api_key and self._api_key.options()
        )
        writer.begin(NOTHING)
        return FlightStream(writer, reader, lambda: self._abandon(client))

    def why_hopeless(self) -> str:
        if self._silent:
            # The host does not answer at all; another diagnosis takes time that an attempt could use.
            return ""
        found = diagnose(self._host, self._port, self._tls, self._files)
        self._silent = found.silent
        return found.hopeless

    def close(self) -> None:
        with contextlib.suppress(*BROKEN):
            self._client.close()

    def _abandon(self, client: flight.FlightClient) -> None:
        """Open a new connection. The old one is not closed, because other calls may still use it: it ends
        with its last stream.
        """
        with self._lock:
            if self._client is client:
                self._client = self._connect()

    def _renew_files(self) -> None:
        """Use a renewed certificate from the next stream on."""
        if self._tls is None or (found := files_identity(self._tls)) == self._identity:
            return
        with self._lock:
            if found == self._identity:
                return
            self._identity = found
            try:
                files = read_files(self._tls)
            except InvalidRequest as wrong:
                _log.warning("new certificate files cannot be used, the old ones stay: %s", wrong)
                return
            self._files = files
            self._client = self._connect()

    def _connect(self) -> flight.FlightClient:
        if self._tls is None or self._files is None:
            return flight.FlightClient(self._target, generic_options=self._options)
        return flight.FlightClient(
            self._target,
            tls_root_certs=self._files.ca,
            cert_chain=self._files.cert,
            private_key=self._files.key,
            override_hostname=self._tls.server_name,
            generic_options=self._options,
        )


class ApiKey:
    """The key is not in its repr."""

    def __init__(self, key: str) -> None:
        self._header = (b"authorization", b"Bearer " + key.encode("ascii"))

    def options(self) -> flight.FlightCallOptions:
        """Options made for each call: pyarrow shows their contents in its repr, so none are kept."""
        return flight.FlightCallOptions(headers=[self._header])


class FlightStream:
    def __init__(
        self,
        writer: flight.FlightStreamWriter,
        reader: flight.FlightStreamReader,
        abandon: Callable[[], None],
    ) -> None:
        self._writer = writer
        self._reader = reader
        self.abandon = abandon

    def write(self, metadata: bytes, batch: pa.RecordBatch | None) -> None:
        self._writer.write_metadata(pack(metadata, batch))

    def read(self) -> tuple[bytes, pa.RecordBatch | None]:
        chunk = self._reader.read_chunk()
        return chunk.app_metadata.to_pybytes() if chunk.app_metadata is not None else b"", chunk.data

    def cancel(self) -> None:
        self._reader.cancel()

    def close(self) -> None:
        self._reader.cancel()
        with contextlib.suppress(*BROKEN):
            self._writer.close()

    def __del__(self) -> None:
        """Close a stream that an interrupt left open. If its server is gone by then, the destructor of
        Arrow's writer prints a line to stderr, unless the writer was closed before.
        """
        self.close()


def refusal_of(error: BaseException) -> FairleadError | None:
    """The error with which the server ended the stream on purpose, so it took no request from it. None: the
    server gave no reason.
    """
    if isinstance(error, pa.ArrowNotImplementedError):
        return ProtocolMismatch(
            f"version {VERSION} of fairlead's Flight protocol", "a Flight server of another kind"
        )
    if isinstance(error, flight.FlightError) and error.extra_info:
        with contextlib.suppress(InvalidRequest):
            fault = decode(error.extra_info, Answer).error
            return error_of(fault) if fault is not None else None
    if isinstance(error, flight.FlightUnauthenticatedError):
        return Unauthenticated(describe(error))
    return None


def describe(error: BaseException) -> str:
    """The error's text without gRPC's debug context, which repeats it at length."""
    text = str(error).partition(". gRPC client debug context")[0].partition("with message: ")
    return text[2] or text[0] or "the server ended the stream"
