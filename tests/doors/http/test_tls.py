"""The HTTP door behind TLS: a handshake is a client's own affair."""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.config import TlsSettings
from fairlead.model.addresses import split_address
from fairlead.server.certificates import Certificates
from fairlead.server.event_loop import EventLoop
from fairlead.server.http import HttpDoor
from fairlead.server.metrics import Metrics
from tests.doors.http.test_http import wait_until
from tests.integration.world import World
from tests.security.certificates import Files

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(tmp_path / "tls")
    files.server()
    return files


@pytest.fixture
def certificates(files: Files) -> Certificates:
    return Certificates(TlsSettings(str(files.cert()), str(files.key())))


@pytest.fixture
def door(
    world: World, metrics: Metrics, certificates: Certificates, event_loop: EventLoop
) -> Iterator[HttpDoor]:
    door = HttpDoor(
        world.broker,
        "127.0.0.1:0",
        metrics,
        event_loop,
        max_connections=4,
        timeout_s=600,
        certificates=certificates,
    )
    door.start()
    yield door
    door.stop()


def raw(door: HttpDoor, sent: bytes) -> socket.socket:
    connection = socket.create_connection(split_address(door.address), timeout=60)
    connection.sendall(sent)
    return connection


def ok(door: HttpDoor, files: Files) -> bool:
    connection = http.client.HTTPSConnection(
        *split_address(door.address), context=ssl.create_default_context(cafile=files.ca), timeout=60
    )
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    try:
        return (answer.status, answer.read()) == (200, b"ok\n")
    finally:
        connection.close()


def test_handshakes_that_do_not_come_to_an_end_keep_nobody_out(door: HttpDoor, files: Files) -> None:
    """More of them than there is room for connections; with the handshake in the accepting thread the first
    would do.
    """
    clients = []
    for number in range(12):
        clients.append(raw(door, HELLO if number % 2 else b""))
        assert ok(door, files)
        assert len(door._connections) <= 4
    assert clients[0].recv(1) == b""
    for client in clients:
        client.close()


def test_a_handshake_has_a_time_in_which_to_end(
    world: World, metrics: Metrics, certificates: Certificates, event_loop: EventLoop
) -> None:
    door = HttpDoor(
        world.broker, "127.0.0.1:0", metrics, event_loop, timeout_s=0.05, certificates=certificates
    )
    door.start()
    try:
        with raw(door, HELLO) as client:
            assert client.recv(1) == b""
        wait_until(lambda: len(door._connections) == 0)
    finally:
        door.stop()


def test_whoever_speaks_plainly_is_told_where_to_go(door: HttpDoor, files: Files) -> None:
    connection = http.client.HTTPConnection(*split_address(door.address), timeout=60)
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (400, b"expected TLS: this door is https://, not http://\n")
    connection.close()
    assert ok(door, files)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x00\x05hello",
        b"\x16" * 5000,
        HELLO + bytes(600),
        b"\x00" * 100,
        b"\x80\x2e\x01\x00\x02",
    ],
)
def test_what_is_no_handshake_closes_its_own_connection(
    door: HttpDoor, files: Files, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with raw(door, sent) as client:
        try:
            client.shutdown(socket.SHUT_WR)
        except OSError as closed:
            if closed.errno != errno.ENOTCONN:  # then the door was quicker
                raise
        while True:
            try:
                if not client.recv(65536):
                    break
            except ConnectionResetError:
                break
    assert ok(door, files)
    assert "nobody foresaw" not in caplog.text


def test_a_client_that_only_connects_and_leaves_does_no_harm(door: HttpDoor, files: Files) -> None:
    for _ in range(20):
        raw(door, b"").close()
    assert ok(door, files)
    wait_until(lambda: len(door._connections) == 0)


def test_a_stop_ends_connections_in_the_middle_of_a_handshake(door: HttpDoor) -> None:
    with raw(door, HELLO) as client:
        wait_until(lambda: len(door._connections) == 1)
        door.stop()
        assert client.recv(1) == b""
