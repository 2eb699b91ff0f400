"""An OpenTelemetry collector that keeps what it gets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self._received: list[Any] = []
        self.endpoint = ""

    def Export(self, request: Any, context: Any) -> Any:
        self._received += request.resource_spans
        return trace_service_pb2.ExportTraceServiceResponse()

    def services(self) -> set[str]:
        attributes = [attribute for resource in self._received for attribute in resource.resource.attributes]
        return {attribute.value.string_value for attribute in attributes if attribute.key == "service.name"}

    def spans(self) -> dict[str, Any]:
        return {
            span.name: span
            for resource in self._received
            for scope in resource.scope_spans
            for span in scope.spans
        }


@contextmanager
def running_collector() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
