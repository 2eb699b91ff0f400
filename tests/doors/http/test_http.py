from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from fairlead import Complete
from fairlead.errors import StoreFailed
from fairlead.server.doors import Door
from fairlead.server.event_loop import EventLoop
from fairlead.server.http import HttpDoor
from fairlead.server.metrics import Metrics
from fairlead.testing import CommitStep
from fairlead.testing.steps import ignore
from tests.doors.http.shown import of, read
from tests.integration.world import World, wait_until

PATIENCE_S = 30


@contextmanager
def connected(door: HttpDoor) -> Iterator[http.client.HTTPConnection]:
    host, _, port = door.address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    try:
        yield connection
    finally:
        connection.close()


def get(
    door: HttpDoor, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    with connected(door) as connection:
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def raw(door: HttpDoor, sent: bytes = b"") -> socket.socket:
    host, _, port = door.address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    client.sendall(sent)
    return client


def test_it_is_a_door_and_port_0_becomes_a_real_one(door: HttpDoor) -> None:
    as_door: Door = door
    assert as_door.name == "http"
    assert as_door.address.startswith("127.0.0.1:")
    assert not as_door.address.endswith(":0")


def test_health_is_that_the_process_lives(door: HttpDoor) -> None:
    assert get(door, "/healthz")[::2] == (200, b"ok\n")


def test_ready_while_the_broker_works(door: HttpDoor) -> None:
    status, headers, body = get(door, "/readyz")
    assert (status, headers["Content-Type"], json.loads(body)) == (200, "application/json", {"ready": True})


def test_not_ready_while_draining_but_still_alive_and_measured(door: HttpDoor) -> None:
    door.drain()
    status, _, body = get(door, "/readyz")
    assert (status, json.loads(body)["reason"]) == (503, "server_stopping")
    assert get(door, "/healthz")[0] == 200
    assert get(door, "/metrics")[0] == 200


def test_not_ready_after_the_store_has_failed(world: World, door: HttpDoor) -> None:
    def break_down(step: CommitStep) -> None:
        raise StoreFailed("the disk is gone")

    world.store.on_step = break_down
    with pytest.raises(StoreFailed):
        world.fill("q", count=1)
    world.store.on_step = ignore
    status, _, body = get(door, "/readyz")
    said = json.loads(body)
    assert (status, said["ready"], said["reason"]) == (503, False, "store_failed")
    assert "the disk is gone" in said["message"]
    assert get(door, "/healthz")[0] == 200
    assert read(get(door, "/metrics")[2].decode())["fairlead_broker_up"] == 0


def test_not_ready_after_the_broker_is_closed(world: World, door: HttpDoor) -> None:
    world.broker.close()
    status, _, body = get(door, "/readyz")
    assert (status, json.loads(body)["reason"]) == (503, "broker_closed")


def test_metrics_are_prometheus_text_unless_openmetrics_is_asked_for(world: World, door: HttpDoor) -> None:
    world.fill("q", count=3)
    status, headers, body = get(door, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert read(body.decode())["fairlead_messages_enqueued_total{queue=q}"] == 3
    status, headers, body = get(door, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    samples = {
        sample.name: sample.value for family in parse_openmetrics(body.decode()) for sample in family.samples
    }
    assert samples["fairlead_messages_enqueued_total"] == 3


def test_metrics_are_packed_when_the_client_takes_gzip(door: HttpDoor) -> None:
    _, headers, body = get(door, "/metrics", Accept_Encoding="gzip")
    assert headers["Content-Encoding"] == "gzip"
    assert "fairlead_broker_up" in read(gzip.decompress(body).decode())


def test_some_metrics_may_be_asked_for_by_name(door: HttpDoor) -> None:
    assert set(read(get(door, "/metrics?name[]=fairlead_broker_up")[2].decode())) == {"fairlead_broker_up"}


def test_the_index_names_the_pages(door: HttpDoor) -> None:
    status, headers, body = get(door, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert all(path in body.decode() for path in ("/healthz", "/readyz", "/metrics"))


@pytest.mark.parametrize("path", ["/nowhere", "/metrics/", "/healthz/../metrics", "/%68ealthz", "*"])
def test_anything_else_is_not_found_and_says_so_in_json(door: HttpDoor, path: str) -> None:
    status, _, body = get(door, path)
    assert (status, json.loads(body)["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_looking_is_allowed(door: HttpDoor, method: str) -> None:
    status, headers, body = get(door, "/metrics", method)
    assert (status, headers["Allow"], json.loads(body)["error"]["code"]) == (
        405,
        "GET, HEAD",
        "method_not_allowed",
    )


def test_a_method_nobody_has_heard_of_is_refused_in_json(door: HttpDoor) -> None:
    status, _, body = get(door, "/healthz", "FROBNICATE")
    assert status == 501
    assert "FROBNICATE" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/", "/nowhere"])
def test_head_has_the_headers_of_get_and_no_body(door: HttpDoor, path: str) -> None:
    status, headers, body = get(door, path)
    head_status, head_headers, head_body = get(door, path, "HEAD")
    assert (head_status, head_body) == (status, b"")
    with raw(door, f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()) as client:
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.endswith(b"\r\n\r\n")
    assert head_headers["Content-Type"] == headers["Content-Type"]
    assert int(head_headers["Content-Length"]) > 0
    assert int(headers["Content-Length"]) == len(body)


def test_one_connection_serves_many_requests(door: HttpDoor) -> None:
    with connected(door) as connection:
        ports = set()
        for path in ("/healthz", "/readyz", "/nowhere", "/metrics", "/healthz"):
            connection.request("GET", path)
            connection.getresponse().read()
            ports.add(connection.sock.getsockname())
        assert len(ports) == 1


def test_an_unread_body_is_not_taken_for_the_next_request(door: HttpDoor) -> None:
    body = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    with raw(
        door, b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    ) as client:
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 not http at all\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /" + b"x" * 70_000,
        b"GET / HTTP/9.9\r\n\r\n",
    ],
)
def test_what_is_no_http_ends_its_own_connection_only(door: HttpDoor, sent: bytes) -> None:
    with raw(door, sent) as client:
        while True:
            try:
                if not client.recv(65536):
                    break
            except ConnectionResetError:
                break
    assert get(door, "/healthz")[0] == 200


def test_a_page_that_fails_is_an_answer_and_no_broken_connection(
    door: HttpDoor, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def collect(self) -> None:
            raise RuntimeError("a collector is broken")

    door._metrics.registry.register(Broken())  # type: ignore[arg-type]
    status, _, body = get(door, "/metrics")
    assert (status, json.loads(body)["error"]["code"]) == (500, "internal")
    assert "a page could not be made" in caplog.text
    assert get(door, "/healthz")[0] == 200


def test_slow_and_idle_clients_keep_nobody_out(world: World, metrics: Metrics, event_loop: EventLoop) -> None:
    door = HttpDoor(world.broker, "127.0.0.1:0", metrics, event_loop, max_connections=4, timeout_s=600)
    door.start()
    clients: list[socket.socket] = []
    try:
        for number in range(12):
            clients.append(raw(door, b"GET /heal" if number % 2 else b""))
            assert get(door, "/healthz")[::2] == (200, b"ok\n")
            assert len(door._connections) <= 4
        assert clients[0].recv(1) == b""
    finally:
        for client in clients:
            client.close()
        door.stop()


def test_a_client_that_does_not_read_its_answer_keeps_nobody_out(
    world: World, metrics: Metrics, event_loop: EventLoop
) -> None:
    for number in range(150):
        world.broker.create_queue(f"a-queue-with-a-rather-long-name-{number}")
    door = HttpDoor(world.broker, "127.0.0.1:0", metrics, event_loop, max_connections=1, timeout_s=600)
    door.start()
    deaf = socket.socket()
    try:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = door.address.rpartition(":")
        deaf.connect((host, int(port)))
        deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 400)
        assert get(door, "/healthz")[0] == 200
    finally:
        deaf.close()
        door.stop()


def test_a_silent_connection_is_closed_after_its_time(
    world: World, metrics: Metrics, event_loop: EventLoop
) -> None:
    door = HttpDoor(world.broker, "127.0.0.1:0", metrics, event_loop, timeout_s=0.05)
    door.start()
    try:
        with raw(door, b"GET /healthz HTTP/1.1\r\n") as client:
            assert client.recv(1) == b""
        wait_until(lambda: len(door._connections) == 0)
    finally:
        door.stop()


def test_a_stop_ends_every_connection_and_thread_and_may_be_repeated(
    world: World, metrics: Metrics, event_loop: EventLoop
) -> None:
    door = HttpDoor(world.broker, "127.0.0.1:0", metrics, event_loop, timeout_s=600)
    door.start()
    idle = raw(door)
    with connected(door) as connection:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        door.stop()
        door.stop()
        assert idle.recv(1) == b""
    idle.close()
    wait_until(lambda: not any(thread.name.startswith("fairlead-http") for thread in threading.enumerate()))
    with pytest.raises(OSError):
        raw(door)


def test_scrapes_under_load_see_counts_that_only_grow_and_end_exact(world: World, door: HttpDoor) -> None:
    done = threading.Event()
    rounds, batch = 60, 20
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(rounds):
                world.broker.create_queue(f"extra-{number}")
                world.fill("q", count=batch)
                world.broker.settle([Complete(delivery) for delivery in world.broker.claim("q", limit=batch)])
        except BaseException as problem:
            problems.append(problem)
        finally:
            done.set()

    worker = threading.Thread(target=work)
    worker.start()
    last = {"enqueued": 0.0, "delivered": 0.0, "completed": 0.0}
    while True:
        over = done.is_set()
        status, _, body = get(door, "/metrics")
        assert status == 200
        shown = read(body.decode())
        for what, earlier in last.items():
            value = shown.get(f"fairlead_messages_{what}_total{{queue=q}}", 0)
            assert value >= earlier
            last[what] = value
        buckets = [
            value
            for series, value in of(shown, "fairlead_delivery_latency_seconds_bucket")
            if "queue=q}" in series
        ]
        assert buckets == sorted(buckets)
        if over:
            break
    worker.join()
    assert problems == []
    assert last == dict.fromkeys(last, float(rounds * batch))
