"""`fairlead serve` with the doors it has: they open together, say where, and close without waiting for idle
clients.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
import pyarrow.flight as flight
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

import fairlead
from fairlead.server.fila.v1 import admin_pb2, admin_pb2_grpc
from fairlead.testing import ServerProcess, run_server
from fairlead.testing.server import PATIENCE_S
from fairlead.wire.calls import Answer, Open, decode, encode
from fairlead.wire.schemas import NOTHING
from tests.doors.flight.raw import claim
from tests.serve.test_process import until


def get(server: ServerProcess, page: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://{server.addresses['http']}{page}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        return refused.code, refused.read().decode()


def calls_in_flight(server: ServerProcess) -> float:
    page = get(server, "/metrics?name[]=fairlead_calls_in_flight")[1]
    return float(
        next(line for line in page.splitlines() if line.startswith("fairlead_calls_in_flight ")).split()[1]
    )


class Channel:
    """One Flight stream for claims, spoken by hand."""

    def __init__(self, server: ServerProcess) -> None:
        self._client = flight.connect(f"grpc://{server.addresses['flight']}")
        self._writer, self._reader = self._client.do_exchange(
            flight.FlightDescriptor.for_command(encode(Open("claim")))
        )
        self._writer.begin(NOTHING)

    def claim(self, **fields: object) -> None:
        self._writer.write_metadata(claim("q", **fields))

    def answer(self) -> tuple[Answer, int]:
        chunk = self._reader.read_chunk()
        return decode(
            chunk.app_metadata.to_pybytes(), Answer
        ), 0 if chunk.data is None else chunk.data.num_rows


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """With a queue `q` and one message."""
    with fairlead.open(tmp_path / "data", durability="os") as broker:
        broker.create_queue("q")
        broker.enqueue("q", b"hello")
    return tmp_path / "data"


def test_every_door_is_open_when_the_addresses_are_printed(data: Path) -> None:
    with run_server(data, grpc=True, http=True) as server:
        assert list(server.addresses) == ["resp", "flight", "grpc", "http"]
        assert get(server, "/readyz")[0] == 200
        with grpc.insecure_channel(server.addresses["grpc"]) as channel:
            listed = admin_pb2_grpc.FilaAdminStub(channel).ListQueues(
                admin_pb2.ListQueuesRequest(), timeout=PATIENCE_S
            )
            assert "q" in [queue.name for queue in listed.queues]
        claims = Channel(server)
        claims.claim()
        assert claims.answer()[1] == 1


def test_a_stop_answers_the_claim_that_waits_and_does_not_wait_for_its_open_channel(data: Path) -> None:
    with run_server(data, http=True, settings={"limits.drain_grace_ms": "1h"}) as server:
        claims, idle = Channel(server), Channel(server)
        claims.claim()
        claims.answer()
        claims.claim(wait="1h")
        until(lambda: calls_in_flight(server) == 1)
        server.terminate()
        answer, rows = claims.answer()
        assert (answer.error, rows) == (None, 0)
        assert server.wait() == 0
        assert "calls are cut off" not in server.log
        del idle


def test_leases_of_flight_clients_stay_over_a_restart(data: Path) -> None:
    with run_server(data, settings={"durability": "os"}) as server:
        claims = Channel(server)
        claims.claim()
        claims.answer()
        server.restart()
        assert server.stop() == 0
    with fairlead.open(data) as broker:
        assert broker.stats("q").leased == 1


def test_spans_of_calls_are_sent_before_a_stop_is_over(data: Path) -> None:
    collected: list[str] = []

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            for resource in request.resource_spans:
                named = {
                    attribute.key: attribute.value.string_value for attribute in resource.resource.attributes
                }
                collected.extend(
                    f"{named['service.name']}: {span.name}"
                    for scope in resource.scope_spans
                    for span in scope.spans
                )
            return trace_service_pb2.ExportTraceServiceResponse()

    collector = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), collector)
    endpoint = f"http://127.0.0.1:{collector.add_insecure_port('127.0.0.1:0')}"
    collector.start()
    try:
        with run_server(
            data, settings={"tracing.otlp_endpoint": endpoint, "tracing.service_name": "harbour"}
        ) as server:
            claims = Channel(server)
            claims.claim()
            claims.answer()
            assert server.stop() == 0
            assert collected == ["harbour: claim q"]
    finally:
        collector.stop(None)


def test_port_0_on_ipv6_prints_the_port_that_was_picked(data: Path) -> None:
    doors = dict.fromkeys(("resp", "flight", "grpc", "http"), "[::1]:0")
    server = ServerProcess(data, doors, {})
    try:
        server.start()
        ports = [address.removeprefix("[::1]:") for address in server.addresses.values()]
        assert len(ports) == 4
        assert all(int(port) > 0 for port in ports)
        assert get(server, "/healthz") == (200, "ok\n")
        with fairlead.connect(server.address) as client:
            assert [info.name for info in client.queues()] == ["q", "q.dlq"]
    finally:
        if server._process is not None and server._process.poll() is None:
            server.kill()


def test_people_read_the_addresses_line_by_line(data: Path) -> None:
    command = [sys.executable, "-c", "from fairlead.cli import main; main()"]
    flags = [
        "serve",
        "--data",
        str(data),
        "--resp",
        "127.0.0.1:0",
        "--flight",
        "127.0.0.1:0",
        "--grpc",
        "off",
        "--http",
        "127.0.0.1:0",
    ]
    for ahead, form in (([], "text"), (["-o", "json"], "json")):
        with subprocess.Popen(
            [*command, *ahead, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            if form == "json":
                assert json.loads(first)["addresses"].keys() == {"resp", "flight", "http"}
            else:
                assert first == f"fairlead {fairlead.__version__} serving {data}\n"
                assert process.stdout.readline().startswith("  resp    127.0.0.1:")
                assert process.stdout.readline().startswith("  flight  127.0.0.1:")
                assert process.stdout.readline().startswith("  http    127.0.0.1:")
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
            assert process.stdout.read() == ""
