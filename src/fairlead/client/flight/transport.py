"""Streams of Arrow Flight: the only file of this folder that talks to the network."""

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

#: What a broken stream raises; StopIteration is a stream that the server ended.
BROKEN = (pa.ArrowException, OSError, StopIteration)

#: gRPC's own reconnecting must be quicker than ours, or it fails our attempts without trying. The one called
#: "min" is how long an attempt may take: long enough for a far network and a busy server. A pool of its own
#: keeps a second client in this process from sharing the socket.
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    # A ping every ten minutes, as often as a Flight server accepts. What matters is the timeout that goes
    # with it, see below.
    ("grpc.keepalive_time_ms", 600_000),
]
#: TCP sends a lost packet again after 200 ms: a connection that lost one is not dead.
_MIN_TCP_TIMEOUT_MS = 200


_log = logging.getLogger("fairlead.client")


class ExchangeStream(Protocol):
    """One open exchange. One thread writes and reads at a time; `cancel` may come from any other, and makes a
    read raise.

    `abandon` says that its connection gives no answers: streams opened from now on do not share it.
    """

    def write(self, metadata: bytes, batch: pa.RecordBatch | None) -> None: ...

    def read(self) -> tuple[bytes, pa.RecordBatch | None]: ...

    def cancel(self) -> None: ...

    def abandon(self) -> None: ...

    def close(self) -> None: ...


class Transport(Protocol):
    def open(self, verb: str) -> ExchangeStream:
        """Raises one of `BROKEN` when there is no connection; then nothing was sent."""
        ...

    def why_hopeless(self) -> str:
        """After a try that failed: why all others will; "" when one may succeed, or nobody knows."""
        ...

    def close(self) -> None: ...


class FlightTransport:
    """One connection that all streams of a client share; gRPC makes it anew when it broke.

    A network that went away without a word breaks nothing: gRPC would go on for many minutes with a
    connection that leads nowhere. So who waited in vain abandons it. A read that waits can be cancelled; a
    write of more than the socket takes cannot, while the peer does not read. So the system ends a connection
    that delivers nothing for `timeout_ms` (TCP_USER_TIMEOUT, which gRPC sets together with its keepalive, on
    Linux).
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
            # Nobody answers there at all; to ask again takes time that a try could use.
            return ""
        found = diagnose(self._host, self._port, self._tls, self._files)
        self._silent = found.silent
        return found.hopeless

    def close(self) -> None:
        with contextlib.suppress(*BROKEN):
            self._client.close()

    def _abandon(self, client: flight.FlightClient) -> None:
        """Not closed: other calls may still be under way on it. It goes with the last of its streams."""
        with self._lock:
            if self._client is client:
                self._client = self._connect()

    def _renew_files(self) -> None:
        """A certificate that was renewed is used from the next stream on."""
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
    """Shown nowhere."""

    def __init__(self, key: str) -> None:
        self._header = (b"authorization", b"Bearer " + key.encode("ascii"))

    def options(self) -> flight.FlightCallOptions:
        """Made for each call, because pyarrow shows what is in them to whoever prints them."""
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
        """An interrupt may leave a stream that nobody closes. If its server is gone by then, the destructor
        of Arrow's writer would print a line to stderr, unless the writer is closed before.
        """
        self.close()


def refusal_of(error: BaseException) -> FairleadError | None:
    """What the server said when it ended a stream on purpose: it took no request from it. None: it said
    nothing.
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
    """Without gRPC's own account of it, which says the same again at length."""
    text = str(error).partition(". gRPC client debug context")[0].partition("with message: ")
    return text[2] or text[0] or "the server ended the stream"
