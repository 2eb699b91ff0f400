"""API keys, rights and certificates at the door that speaks Redis."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fairlead import Broker, errors
from fairlead.config import LimitSettings, TlsSettings
from fairlead.middleware.stack import Layers
from fairlead.model.access import NewKey
from fairlead.server.certificates import Certificates
from fairlead.server.resp.door import RespDoor
from fairlead.testing import open_in_memory
from fairlead.testing.authority import Authority
from fairlead.testing.engine import waiting_claims
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue
from tests.doors.resp.conftest import opened
from tests.doors.resp.wire import Wire, code_of, packed, wires
from tests.integration.world import wait_until


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Broker, RespDoor]]:
    broker = open_in_memory()
    broker.create_queue("q")
    with opened(broker, layers=Layers(broker, keys=True), asks_for_keys=True) as door:
        yield broker, door


@pytest.fixture
def key(guarded: tuple[Broker, RespDoor]) -> NewKey:
    return guarded[0].keys.create("worker", ["produce:q", "consume:q"])


def test_without_a_key_nothing_is_answered(guarded: tuple[Broker, RespDoor]) -> None:
    with wires(guarded[1].address, 1) as (wire,):
        for words in (
            ["FL.ENQUEUE", "q", "1"],
            ["FL.HELP"],
            ["INFO"],
            ["HELLO", "3"],
            ["COMMAND"],
            ["MULTI"],
        ):
            assert code_of(wire.ask(*words)) == "UNAUTHENTICATED"
        assert code_of(wire.ask("AUTH", "fl_wrong")) == "UNAUTHENTICATED"
        assert wire.ask("PING") == b"PONG"


def test_strangers_may_send_little(guarded: tuple[Broker, RespDoor]) -> None:
    for raw in (b"*17\r\n", b"*1\r\n$20000\r\n", b"x" * 20_000):
        with wires(guarded[1].address, 1) as (wire,):
            wire.send(raw)
            assert code_of(wire.read()) in ("INVALID_REQUEST", "LIMIT_REACHED")
            assert wire.is_closed()


@pytest.mark.parametrize("form", ["AUTH", "AUTH user", "HELLO"])
def test_a_key_is_shown_once_for_a_connection(
    guarded: tuple[Broker, RespDoor], key: NewKey, form: str
) -> None:
    with wires(guarded[1].address, 1) as (wire,):
        match form:
            case "AUTH":
                assert wire.ask("AUTH", key.secret) == b"OK"
            case "AUTH user":
                assert wire.ask("AUTH", "default", key.secret) == b"OK"
            case "HELLO":
                assert wire.ask("HELLO", "3", "AUTH", "default", key.secret)[b"proto"] == 3
        assert wire.ask("ACL", "WHOAMI") == b"worker"
        assert wire.do(Enqueue("q", b"x" * 100_000))
        assert len(wire.do(Claim("q"))) == 1
        with pytest.raises(errors.Forbidden):
            wire.do(Enqueue("other", b"1"))
        assert wire.ask("RESET") == b"RESET"
        assert code_of(wire.ask("FL.CLAIM", "q")) == "UNAUTHENTICATED"


def test_a_wrong_key_ends_what_a_right_one_began(guarded: tuple[Broker, RespDoor], key: NewKey) -> None:
    with wires(guarded[1].address, 1) as (wire,):
        wire.ask("AUTH", key.secret)
        assert code_of(wire.ask("AUTH", "fl_wrong")) == "UNAUTHENTICATED"
        assert code_of(wire.ask("FL.CLAIM", "q")) == "UNAUTHENTICATED"


def test_a_key_that_is_revoked_counts_no_more(guarded: tuple[Broker, RespDoor], key: NewKey) -> None:
    broker, door = guarded
    with wires(door.address, 2) as (wire, waits):
        for one in (wire, waits):
            one.ask("AUTH", key.secret)
        waits.send(packed(Claim("q", wait="30s", consumer="c")))
        wait_until(lambda: waiting_claims(broker, "q") == 1)
        broker.keys.revoke(key.info.id)
        assert code_of(wire.ask("FL.CLAIM", "q")) == "UNAUTHENTICATED"
        broker.enqueue("q", b"1")
        assert code_of(waits.read()) == "UNAUTHENTICATED"
    assert [one.payload for one in broker.claim("q")] == [b"1"]


class Pki:
    """Certificates in files, which may be replaced."""

    def __init__(self, path: Path, *, mutual: bool) -> None:
        self.path = path
        self.authority = Authority()
        (path / "ca.pem").write_bytes(self.authority.issued.cert)
        self.renew()
        client = self.authority.for_client("me")
        (path / "client.pem").write_bytes(client.cert)
        (path / "client.key").write_bytes(client.key)
        ca = str(path / "ca.pem") if mutual else ""
        self.certificates = Certificates(TlsSettings(str(path / "s.pem"), str(path / "s.key"), ca))

    def renew(self) -> int:
        issued = self.authority.for_server(["127.0.0.1", "localhost"])
        for name, content in (("s.key", issued.key), ("s.pem", issued.cert)):
            file = self.path / name
            file.write_bytes(content)
            file.chmod(0o600)
        return issued.serial

    def context(self, *, shows: bool) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.path / "ca.pem"))
        if shows:
            context.load_cert_chain(self.path / "client.pem", self.path / "client.key")
        return context


def _connect(door: RespDoor, context: ssl.SSLContext) -> Wire:
    plain = Wire(door.address)
    return Wire(connected=context.wrap_socket(plain.socket, server_hostname="localhost"))


def test_tls_is_spoken_and_certificates_are_read_again(tmp_path: Path) -> None:
    pki = Pki(tmp_path, mutual=False)
    broker = open_in_memory()
    broker.create_queue("q")
    with opened(broker, LimitSettings(greeting_ms=2000), certificates=pki.certificates) as door:
        before = _connect(door, pki.context(shows=False))
        assert before.do(Enqueue("q", b"x" * 300_000))
        plain = Wire(door.address)
        plain.send(b"PING\r\n")
        assert plain.is_closed()
        assert b"PONG" not in plain.rest
        serial = pki.renew()
        pki.certificates.look()
        after = _connect(door, pki.context(shows=False))
        [found] = after.do(Claim("q"))
        assert len(found.payload) == 300_000
        shown = after.socket.getpeercert()  # type: ignore[attr-defined]
        assert int(shown["serialNumber"], 16) == serial
        assert before.ask("PING") == b"PONG"
        client = redis.Redis(
            port=int(door.address.rpartition(":")[2]),
            ssl=True,
            ssl_ca_certs=str(tmp_path / "ca.pem"),
            protocol=3,
        )
        assert client.ping()
        client.close()
        for one in (before, after):
            one.close()


def test_with_mutual_tls_a_client_must_show_a_certificate(tmp_path: Path) -> None:
    pki = Pki(tmp_path, mutual=True)
    broker = open_in_memory()
    with opened(broker, certificates=pki.certificates) as door:
        known = _connect(door, pki.context(shows=True))
        assert known.ask("PING") == b"PONG"
        known.close()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _connect(door, pki.context(shows=False)).ask("PING")
