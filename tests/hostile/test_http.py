"""The HTTP door and whatever else speaks to its port."""

from __future__ import annotations

import socket

import pytest

from fairlead.testing.server import ServerProcess

PATIENCE_S = 60.0
_LAST = b"Host: x\r\nConnection: close\r\n\r\n"


def talk(address: str, raw: bytes) -> bytes:
    """All that comes back until the other side is done."""
    host, _, port = address.rpartition(":")
    came = b""
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(65_536):
                came += more
        except TimeoutError:
            raise
        except OSError:
            return came
    return came


def get(target: bytes, *headers: bytes) -> bytes:
    return b"GET " + target + b" HTTP/1.1\r\n" + b"".join(header + b"\r\n" for header in headers) + _LAST


REFUSED: dict[str, tuple[bytes, int]] = {
    "an address that is none": (get(b"http://[::1/healthz"), 400),
    "a path that climbs": (get(b"/../../etc/passwd"), 404),
    "the same in other letters": (get(b"/metrics/%2e%2e/%2e%2e/etc/passwd"), 404),
    "a zero byte": (get(b"/\0healthz"), 400),
    "a method nobody has": (b"BREW / HTTP/1.1\r\n" + _LAST, 501),
    "a method that may not": (b"POST /healthz HTTP/1.1\r\nContent-Length: 5\r\n" + _LAST, 405),
    "a length below nothing": (get(b"/healthz", b"Content-Length: -5"), 400),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    "a version to come": (b"GET / HTTP/9.9\r\n" + _LAST, 505),
    "a version long gone": (b"GET /healthz\r\n\r\n", 400),
    "a version that is none": (b"GET / HTTP/1." + b"9" * 5000 + b"\r\n" + _LAST, 400),
    "no HTTP": (b"\x16\x03\x01\x02\0\x01" + bytes(range(32, 255)) + b"\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "a line without end": (get(b"/" + b"a" * 70_000), 414),
    "a header without end": (get(b"/", b"X: " + b"a" * 70_000), 431),
    "ten thousand headers": (get(b"/", *(b"X%d: y" % number for number in range(10_000))), 431),
}


@pytest.mark.parametrize(("raw", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_request_gets_an_answer_that_says_so(
    server: ServerProcess, raw: bytes, status: int
) -> None:
    answer = talk(server.addresses["http"], raw)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert len(answer) < 1000
    if status in (414, 431):
        shown = talk(server.addresses["http"], get(b"/metrics"))
        assert b'fairlead_refused_total{limit="http_request"}' in shown
        assert b'fairlead_refused_total{limit="http_request"} 0.0' not in shown


@pytest.mark.parametrize(
    "accept",
    [
        b"application/openmetrics-text;version=abc",
        b"application/openmetrics-text;version=;;=,",
        b";;;",
        b"\xff",
        b"x" * 5000,
    ],
)
def test_metrics_are_shown_whatever_is_said_to_be_acceptable(server: ServerProcess, accept: bytes) -> None:
    answer = talk(
        server.addresses["http"],
        get(b"/metrics?name[]=%ff&a;b", b"Accept: " + accept, b"Accept-Encoding: gzip;q=x"),
    )
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_requests_in_a_row_are_all_answered_and_a_body_is_not_taken_for_one(server: ServerProcess) -> None:
    address = server.addresses["http"]
    assert (
        talk(address, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 100 + get(b"/healthz")).count(
            b"HTTP/1.1 200 "
        )
        == 101
    )
    assert (
        talk(
            address,
            b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        ).count(b"HTTP/1.1 ")
        == 1
    )


def test_clients_that_never_finish_their_request_keep_nobody_out(server: ServerProcess) -> None:
    host, _, port = server.addresses["http"].rpartition(":")
    slow = [socket.create_connection((host, int(port)), timeout=PATIENCE_S) for _ in range(200)]
    try:
        for connection in slow:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX-a: ")
        for _ in range(5):
            assert talk(server.addresses["http"], get(b"/healthz")).startswith(b"HTTP/1.1 200 ")
        assert b'fairlead_refused_total{limit="http_connections"} 0.0' not in talk(
            server.addresses["http"], get(b"/metrics")
        )
    finally:
        for connection in slow:
            connection.close()


_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
NO_GRPC: dict[str, bytes] = {
    "noise": bytes((7 * at * at + at) % 256 for at in range(5000)),
    "half a greeting": _HELLO[:10],
    "a greeting and noise": _HELLO + b"\x93" * 3000,
    "a frame of 16 MiB that is not there": _HELLO + b"\xff\xff\xff\x04\0\0\0\0\0" + bytes(100_000),
    "ten thousand settings": _HELLO + _SETTINGS * 10_000,
    "ten thousand pings": _HELLO + _SETTINGS + b"\0\0\x08\x06\0\0\0\0\0ping-him" * 10_000,
    "streams opened and reset": _HELLO
    + _SETTINGS
    + b"".join(
        b"\0\0\x01\x01\x05"
        + (2 * at + 1).to_bytes(4, "big")
        + b"\x82"
        + b"\0\0\x04\x03\0"
        + (2 * at + 1).to_bytes(4, "big")
        + b"\0\0\0\x08"
        for at in range(3000)
    ),
    "HTTP/1.1": b"GET / HTTP/1.1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(500),
}


@pytest.mark.parametrize("door", ["flight", "grpc"])
@pytest.mark.parametrize("raw", NO_GRPC.values(), ids=NO_GRPC.keys())
def test_what_is_no_grpc_is_hung_up_on(server: ServerProcess, door: str, raw: bytes) -> None:
    # `talk` ends when the door has closed the connection.
    assert not talk(server.addresses[door], raw).startswith(b"HTTP/1.1 200 ")
    assert talk(server.addresses["http"], get(b"/healthz")).startswith(b"HTTP/1.1 200 ")
