"""Certificates that change while everybody works."""

from __future__ import annotations

import http.client
import re
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import fila
import msgspec
import pytest
from cryptography import x509

import fairlead
from fairlead import Complete
from fairlead.client.flight.transport import FlightTransport
from fairlead.client.tls import files_identity
from fairlead.model.addresses import split_address
from fairlead.testing import ServerProcess, run_server
from fairlead.testing.server import PATIENCE_S
from fairlead.wire.calls import Answer, decode
from tests.doors.flight.raw import claim
from tests.security.certificates import EXPIRED, Files, replace, serial_at
from tests.security.servers import run_unwatched

DOORS = ("resp", "flight", "grpc", "http")
EVERY_DOOR = pytest.mark.parametrize("door", DOORS)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(tmp_path / "tls")
    files.server()
    files.client()
    return files


@pytest.fixture
def server(files: Files, tmp_path: Path) -> Iterator[ServerProcess]:
    with run_server(
        tmp_path / "data", grpc=True, http=True, settings=files.settings() | {"durability": "os"}
    ) as server:
        with fairlead.connect(server.address, tls=files.ca) as client:
            client.create_queue("q")
        yield server


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.02)


def until_shown(
    server: ServerProcess, files: Files, serial: int, doors: tuple[str, ...] = DOORS, client: str = ""
) -> None:
    def shown() -> bool:
        try:
            return {serial_at(server.addresses[door], files, client=client) for door in doors} == {serial}
        except OSError:
            # For some milliseconds nobody listens at the Flight door, or whoever does is leaving.
            return False

    until(shown, f"serial {serial:x}")


def renew(server: ServerProcess, files: Files) -> int:
    serial = files.server().serial
    until_shown(server, files, serial)
    return serial


def test_new_connections_see_the_new_certificate_at_every_door(server: ServerProcess, files: Files) -> None:
    first = serial_at(server.address, files)
    second = renew(server, files)
    assert renew(server, files) not in (first, second)
    assert server.log.count("certificates changed") == 2


def test_the_end_of_the_certificate_in_use_is_a_metric(server: ServerProcess, files: Files) -> None:
    def told() -> float:
        context = ssl.create_default_context(cafile=files.ca)
        with urllib.request.urlopen(
            f"https://{server.addresses['http']}/metrics", context=context, timeout=PATIENCE_S
        ) as answer:
            text = answer.read().decode()
        (line,) = re.findall(r"^fairlead_certificate_expiry_timestamp_seconds (.+)$", text, re.MULTILINE)
        return float(line)

    assert told() == x509.load_pem_x509_certificate(files.cert().read_bytes()).not_valid_after_utc.timestamp()


def test_an_open_channel_of_flight_goes_on(server: ServerProcess, files: Files) -> None:
    """The stream itself, below everything in a client that would make a new one."""
    stream = FlightTransport(server.addresses["flight"], tls=fairlead.Tls(files.ca)).open("claim")

    def claimed() -> list[tuple[str, int]]:
        stream.write(claim("q"), None)
        raw, _ = stream.read()
        answer = decode(raw, Answer)
        assert answer.error is None
        return answer.queues

    with fairlead.connect(server.address, tls=files.ca) as client:
        client.enqueue_many("q", [fairlead.NewMessage(b"x")] * 3)
    assert claimed() == [("q", 1)]
    renew(server, files)
    assert claimed() == [("q", 1)]
    renew(server, files)
    assert claimed() == [("q", 1)]
    stream.close()


def test_a_client_works_on_through_many_changes(server: ServerProcess, files: Files) -> None:
    done = threading.Event()
    got: list[bytes] = []

    def consume() -> None:
        with fairlead.connect(server.address, tls=files.ca) as client, client.consume("q") as deliveries:
            for delivery in deliveries:
                client.settle([Complete(delivery)])
                got.append(delivery.payload)
                if delivery.payload == b"last":
                    return

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    sent: list[bytes] = []

    def produce() -> None:
        with fairlead.connect(server.address, tls=files.ca) as client:
            while not done.is_set():
                sent.append(b"%d" % len(sent))
                client.enqueue("q", sent[-1])
            client.enqueue("q", b"last")

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    for _ in range(3):
        renew(server, files)
        already = len(got)
        until(lambda seen=already: len(got) > seen, "a message through the new certificate")
    done.set()
    for thread in (producer, consumer):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert got == [*sent, b"last"]


def test_an_open_stream_of_the_grpc_door_goes_on(server: ServerProcess, files: Files) -> None:
    ca = files.ca.read_bytes()
    with fila.Client(server.addresses["grpc"], ca_cert=ca) as client:
        client.enqueue("q", None, b"before")
        stream = client.consume("q")
        assert next(stream).payload == b"before"
        renew(server, files)
        client.enqueue("q", None, b"after")
        assert next(stream).payload == b"after"
        with fila.Client(server.addresses["grpc"], ca_cert=ca) as another:
            assert another.enqueue("q", None, b"by a new connection")


def test_an_open_connection_of_the_http_door_goes_on(server: ServerProcess, files: Files) -> None:
    connection = http.client.HTTPSConnection(
        *split_address(server.addresses["http"]), context=ssl.create_default_context(cafile=files.ca)
    )
    connection.connect()
    shown = connection.sock
    for _ in range(2):
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok\n"
        renew(server, files)
    assert connection.sock is shown
    connection.close()


BROKEN: dict[str, Callable[[Files], object]] = {
    "no certificate at all": lambda files: replace(files.cert(), b"not a certificate"),
    "the key of another": lambda files: replace(files.key(), files.authority.for_server().key),
    "an expired one": lambda files: files.server(**EXPIRED),
    "an empty file": lambda files: replace(files.cert(), b""),
    "no file": lambda files: files.cert().unlink(),
    "a key for everybody": lambda files: files.key().chmod(0o644),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_files_that_cannot_be_used_leave_the_old_certificate_until_there_are_good_ones(
    server: ServerProcess, files: Files, broken: str
) -> None:
    before = serial_at(server.address, files)
    BROKEN[broken](files)
    until(
        lambda: "new certificate files cannot be used, the old ones stay" in server.log, "a word in the log"
    )
    assert {serial_at(server.addresses[door], files) for door in DOORS} == {before}
    assert "certificates changed" not in server.log
    renew(server, files)
    assert server.log.count("cannot be used") == 1


def test_a_new_authority_for_clients_is_taken_up_too(files: Files, tmp_path: Path) -> None:
    others = Files(tmp_path / "others")
    others.client()
    settings = files.settings(mutual=True) | {"tls.client_ca": tmp_path / "clients.pem", "durability": "os"}
    replace(tmp_path / "clients.pem", files.ca.read_bytes())
    ours = fairlead.Tls(files.ca, files.cert("client"), files.key("client"))
    theirs = fairlead.Tls(files.ca, others.cert("client"), others.key("client"))
    with run_server(tmp_path / "data", settings=settings) as server:
        with pytest.raises(fairlead.errors.TlsFailed):
            fairlead.connect(server.address, tls=theirs)
        replace(tmp_path / "clients.pem", others.ca.read_bytes())
        until(lambda: "certificates changed" in server.log, "the change")
        fairlead.connect(server.address, tls=theirs).close()
        with pytest.raises(fairlead.errors.TlsFailed, match="does not accept the client certificate"):
            fairlead.connect(server.address, tls=ours)


def test_a_signal_makes_a_server_look_at_once(files: Files, tmp_path: Path) -> None:
    with run_unwatched(tmp_path / "data", files.settings()) as server:
        serial = files.server().serial
        server.look_at_certificates()
        until_shown(server, files, serial)
        assert server.stop() == 0


def test_a_server_without_certificates_takes_no_harm_from_the_signal(tmp_path: Path) -> None:
    with run_server(tmp_path / "data") as server:
        server.look_at_certificates()
        fairlead.connect(server.address).close()
        assert server.stop() == 0


def test_a_client_uses_its_own_renewed_certificate_for_what_comes_next(files: Files, tmp_path: Path) -> None:
    with run_server(tmp_path / "data", settings=files.settings(mutual=True)) as server:
        mine = fairlead.Tls(files.ca, files.cert("client"), files.key("client"))
        with fairlead.connect(server.address, tls=mine) as client:
            # As if it had been running until its certificate was no good any longer, and a new one was put
            # there in time.
            files.client(name="client")
            server.restart()
            assert client.queues() == []
            assert client._core.connections._identity._files == files_identity(mine)


def test_a_client_that_was_connected_gives_a_server_time_to_be_mended_and_then_says_what_is_wrong(
    files: Files, tmp_path: Path
) -> None:
    others = Files(tmp_path / "others")
    others.server()
    with (
        run_server(tmp_path / "data", settings=files.settings()) as server,
        fairlead.connect(server.address, tls=files.ca, retry_for="2s") as client,
    ):
        files.write("server", others.authority.for_server())
        server.restart()
        with pytest.raises(fairlead.errors.TlsFailed, match="not signed by the authority in"):
            client.queues()
        mended = threading.Timer(0.3, files.server)
        client._core.options = msgspec.structs.replace(client._core.options, retry_for_ms=600_000)
        mended.start()
        assert client.queues() == []


def test_a_stop_does_not_wait_for_servers_that_were_replaced(server: ServerProcess, files: Files) -> None:
    with fairlead.connect(server.address, tls=files.ca) as client:
        client.queues()
        for _ in range(3):
            renew(server, files)
        assert server.stop() == 0
