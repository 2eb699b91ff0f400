"""The same, seen from outside a real server process."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import fairlead
from fairlead import Complete, NewMessage
from fairlead.testing import run_server
from tests.doors.http.collector import running_collector
from tests.doors.http.shown import Values, read
from tests.doors.http.test_tracing import Traced
from tests.integration.world import wait_until


def _get(address: str, path: str) -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_server_is_measured_from_its_first_message_on(tmp_path: Path) -> None:
    with run_server(tmp_path / "data", http=True) as server, fairlead.connect(server.address) as client:
        address = server.addresses["http"]
        assert (_get(address, "/healthz")[0], json.loads(_get(address, "/readyz")[1])) == (
            200,
            {"ready": True},
        )
        client.create_queue("orders")
        client.enqueue_many("orders", [NewMessage(b"x" * 100)] * 5)
        client.settle([Complete(delivery) for delivery in client.claim("orders", limit=3)])
        shown: Values = read(_get(address, "/metrics")[1])
        # Connections are counted now and then.
        connections = "fairlead_connections_open{door=resp}"
        wait_until(lambda: read(_get(address, "/metrics")[1]).get(connections, 0) > 0)
    moved = {
        verb: shown[f"fairlead_messages_{verb}_total{{queue=orders}}"]
        for verb in ("enqueued", "delivered", "completed")
    }
    assert moved == {"enqueued": 5, "delivered": 3, "completed": 3}
    assert shown["fairlead_queue_messages{queue=orders,state=ready}"] == 2
    assert shown["fairlead_delivery_latency_seconds_count{queue=orders}"] == 3
    assert shown["fairlead_sync_seconds_count"] > 0
    assert shown["fairlead_store_free_bytes"] > 0


def test_a_trace_reaches_the_consumer_through_a_real_server(tmp_path: Path) -> None:
    producer, consumer = Traced(), Traced()
    with running_collector() as collector:
        settings = {"tracing.otlp_endpoint": collector.endpoint, "tracing.service_name": "the-queue"}
        with run_server(tmp_path / "data", settings=settings) as server:
            with fairlead.connect(server.address) as client:
                client.create_queue("orders")
                with producer.tracing.enqueue_span("orders", [NewMessage(b"")]) as messages:
                    client.enqueue_many("orders", messages)
                (delivery,) = client.claim("orders")
                with consumer.tracing.process_span(delivery):
                    client.settle([Complete(delivery)])
            assert server.stop() == 0
        assert collector.services() == {"the-queue"}
        seen = collector.spans()
    sent, processed = producer.spans()["enqueue orders"].context, consumer.spans()["process orders"]
    assert processed.context.trace_id == sent.trace_id
    assert int.from_bytes(seen["enqueue orders"].trace_id, "big") == sent.trace_id
    assert int.from_bytes(seen["enqueue orders"].parent_span_id, "big") == sent.span_id
