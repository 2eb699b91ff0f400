"""Addresses, API keys and TLS."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.client.addresses import Endpoint, read_endpoint
from fairlead.errors import InvalidRequest, ProtocolMismatch, TlsFailed, Unauthenticated
from fairlead.middleware.stack import Layers
from fairlead.server.resp.door import RespDoor
from fairlead.testing import open_in_memory
from tests.client.clients import PATIENCE_S, Listener, connect
from tests.client.scene import until
from tests.client.two_clients import Site
from tests.doors.resp.test_keys_and_tls import Pki


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("queue.example:6000", Endpoint("queue.example", 6000)),
        ("queue.example", Endpoint("queue.example", 5554)),
        ("127.0.0.1", Endpoint("127.0.0.1", 5554)),
        ("[::1]", Endpoint("::1", 5554)),
        ("fairlead://queue.example:6000", Endpoint("queue.example", 6000)),
        ("fairlead://queue.example", Endpoint("queue.example", 5554)),
        ("fairleads://[::1]:6000", Endpoint("::1", 6000, is_tls=True)),
        ("fairleads://[::1]", Endpoint("::1", 5554, is_tls=True)),
        ("unix:///run/fairlead.sock", Endpoint("", 0, "/run/fairlead.sock")),
    ],
)
def test_an_address_is_read(address: str, endpoint: Endpoint) -> None:
    assert read_endpoint(address) == endpoint


@pytest.mark.parametrize(
    "address",
    [
        "",
        "h:",
        ":5554",
        "::1:5554",
        "me@h:1",
        "h:0",
        "fairlead://",
        "fairlead://h:0",
        "fairlead://me@h:1",
        "unix://relative",
        "fairlead://h/x",
        "grpc://h:1",
        None,
    ],
)
def test_an_address_that_is_none_is_refused(address: str, kind: str) -> None:
    with pytest.raises(InvalidRequest, match="address"):
        connect(kind, address)


def test_a_unix_socket_is_an_address(socket_site: Site, tmp_path: Path, kind: str) -> None:
    client = socket_site.connect(kind, f"unix://{tmp_path / 'door.sock'}")
    assert client.enqueue("q", b"x")


@pytest.mark.parametrize(
    "fields",
    [
        {"address": "fairleads://h", "tls": False},
        {"address": "unix:///x", "tls": True},
        {"api_key": "with a space behind "},
    ],
    ids=str,
)
def test_contradictions_are_refused(fields: dict[str, Any], kind: str) -> None:
    with pytest.raises(InvalidRequest):
        connect(kind, **{"address": "fairlead://127.0.0.1:1", **fields})


@pytest.fixture
def asking() -> Iterator[tuple[RespDoor, str]]:
    """A door that asks for keys, and one."""
    broker = open_in_memory()
    broker.create_queue("q")
    secret = broker.keys.create("me", ["produce:q"]).secret
    door = RespDoor(broker, "127.0.0.1:0", layers=Layers(broker, keys=True), asks_for_keys=True)
    door.start()
    yield door, secret
    door.drain()
    door.stop()
    broker.close()


def test_each_connection_shows_the_key(asking: tuple[RespDoor, str], kind: str) -> None:
    door, secret = asking
    with connect(kind, f"fairlead://{door.address}", api_key=secret) as client:
        assert client.enqueue("q", b"x")
        with pytest.raises(fairlead.errors.Forbidden):
            client.claim("q", wait="1ms")


@pytest.mark.parametrize("key", [None, "nonsense"])
def test_without_a_valid_key_nobody_connects(
    asking: tuple[RespDoor, str], kind: str, key: str | None
) -> None:
    with pytest.raises(Unauthenticated):
        connect(kind, f"fairlead://{asking[0].address}", api_key=key)


def test_another_server_of_the_protocol_is_no_fairlead(kind: str) -> None:
    with (
        Listener(lambda connection: connection.sendall(b"%1\r\n+server\r\n+redis\r\n")) as listener,
        pytest.raises(ProtocolMismatch, match="redis"),
    ):
        connect(kind, listener.address)


@contextmanager
def opened(pki: Pki | None, port: int = 0) -> Iterator[int]:
    broker = open_in_memory()
    broker.create_queue("q")
    door = RespDoor(broker, f"127.0.0.1:{port}", certificates=pki.certificates if pki else None)
    door.start()
    yield int(door.address.rpartition(":")[2])
    door.drain()
    door.stop()
    broker.close()


def test_tls_is_spoken(tmp_path: Path, kind: str) -> None:
    pki = Pki(tmp_path, mutual=False)
    with (
        opened(pki) as port,
        connect(kind, f"fairleads://localhost:{port}", tls=tmp_path / "ca.pem") as client,
    ):
        assert client.enqueue("q", bytes(300_000))
        assert len(client.claim("q", wait="1s")[0].payload) == 300_000


def test_a_client_certificate_is_shown(tmp_path: Path, kind: str) -> None:
    pki = Pki(tmp_path, mutual=True)
    tls = fairlead.Tls(ca=tmp_path / "ca.pem", cert=tmp_path / "client.pem", key=tmp_path / "client.key")
    with opened(pki) as port, connect(kind, f"fairlead://localhost:{port}", tls=tls) as client:
        assert client.enqueue("q", b"x")


def test_what_is_wrong_with_tls_is_said_at_once(tmp_path: Path, kind: str) -> None:
    (tmp_path / "other").mkdir()
    Pki(tmp_path / "other", mutual=False)
    pki = Pki(tmp_path, mutual=True)
    with opened(pki) as port, opened(None) as plain:
        for address, tls, said in [
            (f"fairlead://localhost:{port}", None, "the server speaks TLS"),
            (f"fairleads://localhost:{plain}", tmp_path / "ca.pem", "does not speak TLS"),
            (f"fairleads://localhost:{port}", tmp_path / "other/ca.pem", "not signed by the authority"),
            (f"fairleads://localhost:{port}", tmp_path / "ca.pem", "client certificate"),
        ]:
            with pytest.raises(TlsFailed, match=said):
                connect(kind, address, tls=tls)


def test_a_client_that_was_connected_gives_its_server_time_to_be_mended(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other").mkdir()
    other, pki = Pki(tmp_path / "other", mutual=False), Pki(tmp_path, mutual=False)
    with opened(pki) as port:
        client = connect(kind, f"localhost:{port}", tls=tmp_path / "ca.pem", retry_for="1h")
    with client, ThreadPoolExecutor(1) as pool:
        with opened(other, port):
            called = pool.submit(client.queues)
            until(lambda: "not signed by the authority" in caplog.text, "an attempt")
        with opened(pki, port):
            assert [queue.name for queue in called.result(PATIENCE_S)] == ["q", "q.dlq"]


def test_when_that_time_is_over_it_says_what_is_wrong(tmp_path: Path, kind: str) -> None:
    (tmp_path / "other").mkdir()
    other, pki = Pki(tmp_path / "other", mutual=False), Pki(tmp_path, mutual=False)
    with opened(pki) as port:
        client = connect(kind, f"localhost:{port}", tls=tmp_path / "ca.pem", retry_for="100ms")
    with client, opened(other, port), pytest.raises(TlsFailed, match="not signed by the authority"):
        client.queues()
