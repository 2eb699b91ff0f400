"""Where one request ends and the next begins must never be a guess."""

from __future__ import annotations

import json
import logging
import select
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from prometheus_client import Metric

from fairlead.server.event_loop import EventLoop
from fairlead.server.http import HttpDoor
from fairlead.server.limits import Limit, Limits
from fairlead.server.metrics import Metrics
from tests.doors.http.test_http import get, raw
from tests.integration.world import World, wait_until

HIDDEN = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
SOUND = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def answers(door: HttpDoor, sent: bytes) -> bytes:
    """All that comes until the door closes the connection; this side stays open."""
    with raw(door, sent) as client:
        return b"".join(iter(lambda: client.recv(65536), b""))


def statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def request(*headers: bytes, body: bytes = HIDDEN, method: bytes = b"GET") -> bytes:
    return b"\r\n".join([method + b" /healthz HTTP/1.1", b"Host: x", *headers, b"", body])


LENGTH = b"%d" % len(HIDDEN)
CHUNKED = b"0\r\n\r\n" + HIDDEN
AMBIGUOUS = {
    "two lengths": (request(b"Content-Length: " + LENGTH, b"Content-Length: 0"), 400),
    "two lengths, the other way": (request(b"Content-Length: 0", b"Content-Length: " + LENGTH), 400),
    "two lengths in one header": (request(b"Content-Length: 0, " + LENGTH), 400),
    "a space before the colon of a length": (request(b"Content-Length : " + LENGTH), 400),
    "a space before the colon of an encoding": (request(b"Transfer-Encoding : chunked", body=CHUNKED), 400),
    "a length with a sign": (request(b"Content-Length: +" + LENGTH), 400),
    "a length and an encoding": (
        request(b"Content-Length: " + LENGTH, b"Transfer-Encoding: chunked", body=CHUNKED),
        400,
    ),
    "two encodings": (
        request(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=CHUNKED),
        501,
    ),
    "an encoding that hides another": (request(b"Transfer-Encoding: x, chunked", body=CHUNKED), 501),
    "an encoding behind a strange space": (request(b"Transfer-Encoding: \x0bchunked", body=CHUNKED), 400),
    "a header that is no header": (request(b"Content-Length", body=HIDDEN), 400),
    "two hosts": (request(b"Host: y"), 400),
}
every_ambiguity = pytest.mark.parametrize(("sent", "status"), AMBIGUOUS.values(), ids=AMBIGUOUS.keys())


@every_ambiguity
def test_an_ambiguous_request_is_refused_and_its_body_is_no_request(
    door: HttpDoor, sent: bytes, status: int
) -> None:
    answer = answers(door, sent)
    assert statuses(answer) == [status]
    assert b"connection: close" in answer.lower()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_request"


@every_ambiguity
def test_requests_before_an_ambiguous_one_are_answered_and_none_behind_it(
    door: HttpDoor, sent: bytes, status: int
) -> None:
    assert statuses(answers(door, SOUND * 3 + sent + SOUND)) == [200, 200, 200, status]


def test_what_a_refused_client_sends_on_is_read_and_ignored(
    door: HttpDoor, caplog: pytest.LogCaptureFixture
) -> None:
    with raw(door, b"no request\r\n\r\n") as client:
        answer = client.recv(65536)
        client.sendall(SOUND * 5000)
        answer += b"".join(iter(lambda: client.recv(65536), b""))
    assert statuses(answer) == [400]
    assert get(door, "/healthz")[0] == 200
    assert caplog.text == ""


@pytest.mark.parametrize(
    "sent",
    [
        request(b"Content-Length: " + LENGTH),
        request(b"Content-Length: 3", body=b"abc" + HIDDEN),
        request(b"Content-Length: 100000", body=HIDDEN),
        request(b"Transfer-Encoding: chunked", body=CHUNKED),
        request(b"Transfer-Encoding: chunked", body=b"%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n" + CHUNKED),
        request(b"Transfer-Encoding: chunked", body=b"no size\r\n" + HIDDEN),
        request(b"Transfer-Encoding: chunked", body=b"-1\r\n" + HIDDEN),
    ],
)
def test_the_connection_ends_behind_a_request_with_a_body(door: HttpDoor, sent: bytes) -> None:
    answer = answers(door, SOUND + sent)
    assert statuses(answer) == [200, 200]
    assert b"connection: close" in answer.lower()


def test_requests_without_a_body_are_answered_in_their_order_on_one_connection(door: HttpDoor) -> None:
    nowhere = SOUND.replace(b"healthz", b"nowhere")
    no_length = request(b"Content-Length: 0", body=b"")
    last = request(b"Connection: close", body=b"")
    assert statuses(answers(door, SOUND + nowhere + no_length + nowhere + last)) == [200, 404, 200, 404, 200]


def test_a_client_that_waits_to_be_told_to_continue_gets_its_answer_at_once(door: HttpDoor) -> None:
    waiting = (b"Content-Length: 10", b"Expect: 100-continue")
    assert statuses(answers(door, request(*waiting, method=b"POST", body=b""))) == [405]
    assert statuses(answers(door, request(*waiting, body=b""))) == [200]


def test_http_1_0_is_answered_and_closed(door: HttpDoor) -> None:
    answer = answers(door, b"GET /readyz HTTP/1.0\r\n\r\n")
    assert statuses(answer) == [200]
    assert answer.endswith(b'{"ready": true}\n')


def test_a_client_that_ends_its_side_early_gets_its_answers(door: HttpDoor) -> None:
    with raw(door, HIDDEN + SOUND + HIDDEN) as client:
        client.shutdown(socket.SHUT_WR)
        assert statuses(b"".join(iter(lambda: client.recv(65536), b""))) == [200, 200, 200]


def test_a_client_that_sends_its_request_slowly_is_closed_although_it_is_never_silent(
    world: World, metrics: Metrics, event_loop: EventLoop
) -> None:
    door = HttpDoor(world.broker, "127.0.0.1:0", metrics, event_loop, timeout_s=0.1)
    door.start()
    with raw(door, b"GET /healthz HTTP/1.1\r\nX: ") as client:
        while not select.select([client], [], [], 0.01)[0]:
            client.sendall(b"x")
        assert client.recv(1) == b""
    door.stop()


class Blocked:
    """A collector that is at work until the test lets it go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.times = 0

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        self.times += 1
        self.begun.set()
        assert self.go_on.wait(30)
        return []


@contextmanager
def blocked(metrics: Metrics) -> Iterator[Blocked]:
    collector = Blocked()
    metrics.registry.register(collector)  # type: ignore[arg-type]
    try:
        yield collector
    finally:
        collector.go_on.set()


def test_a_scrape_that_takes_long_delays_no_other_page(
    world: World, metrics: Metrics, event_loop: EventLoop
) -> None:
    door = HttpDoor(world.broker, "127.0.0.1:0", metrics, event_loop, max_connections=2, timeout_s=600)
    door.start()
    with blocked(metrics) as scrape, raw(door, HIDDEN) as first, raw(door, HIDDEN):
        assert scrape.begun.wait(30)
        assert get(door, "/healthz")[0] == 200
        assert get(door, "/readyz")[0] == 200
        scrape.go_on.set()
        assert first.recv(15) == b"HTTP/1.1 200 OK"
    door.stop()


def test_a_client_that_waits_for_its_answer_is_not_slow(
    world: World, metrics: Metrics, event_loop: EventLoop
) -> None:
    door = HttpDoor(world.broker, "127.0.0.1:0", metrics, event_loop, timeout_s=0.1)
    door.start()
    with blocked(metrics) as scrape, raw(door, HIDDEN) as waiting:
        assert scrape.begun.wait(30)
        with raw(door) as silent:
            assert silent.recv(1) == b""
        scrape.go_on.set()
        assert waiting.recv(15) == b"HTTP/1.1 200 OK"
    door.stop()


def test_clients_that_leave_early_cannot_ask_for_any_number_of_scrapes(
    world: World, metrics: Metrics, event_loop: EventLoop
) -> None:
    limits = Limits()
    door = HttpDoor(
        world.broker, "127.0.0.1:0", metrics, event_loop, max_connections=2, timeout_s=600, limits=limits
    )
    door.start()
    with blocked(metrics) as scrape:
        for _ in range(20):
            with suppress(OSError), raw(door, SOUND + HIDDEN) as client:
                came = b""
                while not came.endswith(b"ok\n") and (more := client.recv(65536)):
                    came += more
                # Closing it resets the connection, which the door notices at once.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: limits.refusals[Limit.HTTP_CONNECTIONS] == 18)
    wait_until(lambda: len(door._connections) == 0)
    assert 0 < scrape.times <= 4
    assert get(door, "/healthz")[0] == 200
    door.stop()


def test_the_library_leaves_signals_logs_and_output_alone(
    door: HttpDoor, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert get(door, "/healthz")[0] == 200
    assert statuses(answers(door, b"nonsense\r\n\r\n")) == [400]
    door.stop()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert not any(
        logging.getLogger(name).handlers for name in ("uvicorn", "uvicorn.access", "uvicorn.error")
    )
    assert capfd.readouterr() == ("", "")
