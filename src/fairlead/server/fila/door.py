"""The fila.v1 door: a gRPC server around one broker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from fairlead.clock import Clock, SystemClock
from fairlead.engine.broker import Broker
from fairlead.errors import AddressUnavailable
from fairlead.middleware.stack import Layers
from fairlead.model.addresses import join_address, split_address
from fairlead.model.limits import MAX_HEADERS_BYTES, MAX_PAYLOAD_BYTES
from fairlead.server.fila.admin import FilaAdmin
from fairlead.server.fila.calls import CallGate
from fairlead.server.fila.consumers import Consumers
from fairlead.server.fila.service import FilaService
from fairlead.server.fila.starts import Starter
from fairlead.server.fila.tls import credentials
from fairlead.server.fila.v1 import admin_pb2, admin_pb2_grpc, service_pb2, service_pb2_grpc
from fairlead.server.limits import Limits

if TYPE_CHECKING:
    from fairlead.server.certificates import Certificates

_SERVICES = (
    service_pb2.DESCRIPTOR.services_by_name["FilaService"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["FilaAdmin"].full_name,
)
#: Headers take more bytes in a request than packed.
_MAX_BYTES = MAX_PAYLOAD_BYTES + 16 * MAX_HEADERS_BYTES
#: The largest number of calls of one connection at a time, in addition to its streams.
_CALLS_PER_CONNECTION = 1000
#: A stream beyond the limit needs a thread to be refused.
_REFUSING_THREADS = 2


class FilaDoor:
    """Serves clients of Fila at `address`.

    An open stream keeps a thread. Single calls have `call_threads` of their own, and up to `max_waiting` of
    them may wait for a thread. Beyond this number, or beyond the `limits` that the door shares with other
    doors, a call is answered with RESOURCE_EXHAUSTED and nothing is carried out. With `trace_headers`, the
    W3C trace context of an enqueue becomes headers of its message. `stop` gives calls in flight `grace_s` to
    end before it cancels them.
    """

    name = "grpc"

    def __init__(
        self,
        broker: Broker,
        address: str = "127.0.0.1:5555",
        limits: Limits | None = None,
        *,
        max_waiting: int = 10_000,
        call_threads: int = 32,
        trace_headers: bool = False,
        grace_s: float = 5.0,
        clock: Clock | None = None,
        layers: Layers | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self.address = address
        self._certificates = certificates
        self._grace_s = grace_s
        self._limits = limits = limits or Limits()
        layers = layers or Layers(broker, limits=limits)
        self._stream_threads = ThreadPoolExecutor(
            limits.max_streams + _REFUSING_THREADS, thread_name_prefix="fila-stream"
        )
        self._starter = Starter(broker)
        self._health = health.HealthServicer()
        consumers = Consumers()
        self.service = FilaService(
            layers,
            consumers,
            self._starter,
            clock=clock or SystemClock(),
            stopping=lambda: limits.closed,
            trace_headers=trace_headers,
        )
        self._call_threads = ThreadPoolExecutor(call_threads, thread_name_prefix="fila-call")
        self._server = grpc.server(
            self._call_threads,
            interceptors=[CallGate(layers, limits, self._stream_threads)],
            options=_options(limits),
            maximum_concurrent_rpcs=limits.max_streams + max_waiting,
        )
        service_pb2_grpc.add_FilaServiceServicer_to_server(self.service, self._server)  # type: ignore[no-untyped-call]
        admin_pb2_grpc.add_FilaAdminServicer_to_server(FilaAdmin(consumers), self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )

    def start(self) -> None:
        host, _ = split_address(self.address, may_pick_port=True)
        try:
            if self._certificates is None:
                port = self._server.add_insecure_port(self.address)
            else:
                port = self._server.add_secure_port(self.address, credentials(self._certificates))
        except RuntimeError as refused:
            raise AddressUnavailable(self.name, self.address, str(refused)) from refused
        self._server.start()
        self._starter.open()
        self.address = join_address(host, port)
        self._say_health(health_pb2.HealthCheckResponse.SERVING)

    def drain(self) -> None:
        """Consume streams end with UNAVAILABLE as soon as their waits are over."""
        self._say_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._limits.close()

    def stop(self) -> None:
        """Deliveries that streams had claimed and not written are returned before this method returns."""
        self.drain()
        self._server.stop(self._grace_s).wait(2 * self._grace_s)
        self._limits.wait_until_no_stream(self._grace_s)
        self._starter.close()
        self._stream_threads.shutdown(wait=False)
        self._call_threads.shutdown(wait=False)

    def _say_health(self, status: int) -> None:
        for service in ("", *_SERVICES):
            self._health.set(service, status)


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", _MAX_BYTES),
        # Beyond this number a client waits until one of its own calls ends. The number is higher than the
        # limit of streams, because a stream beyond that limit needs a place to be refused.
        ("grpc.max_concurrent_streams", limits.settings.max_streams_per_connection + _CALLS_PER_CONNECTION),
        ("grpc.server_handshake_timeout_ms", limits.settings.greeting_ms),
        # Close a connection without calls. Its client opens another one when needed.
        ("grpc.max_connection_idle_ms", limits.settings.idle_ms),
        # Two servers on one port would share its clients at random.
        ("grpc.so_reuseport", 0),
        # Detect clients that disappeared without closing their connections.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients may check the server in the same way.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
