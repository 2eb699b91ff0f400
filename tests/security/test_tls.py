"""Who gets in, at every door and by every client; and what those hear who do not."""

from __future__ import annotations

import re
import socket
import ssl
import urllib.error
import warnings
from collections.abc import Callable

import fila
import grpc
import pytest

from fairlead.errors import TlsFailed
from fairlead.model.addresses import split_address
from tests.security.callers import CALLERS, CommandFailed, Known
from tests.security.conftest import Park

EVERY_CALLER = pytest.mark.parametrize("caller", CALLERS)


def plaintext(park: Park) -> Known:
    return Known()


def trusting_us(park: Park) -> Known:
    return Known(park.ours.ca)


def trusting_others(park: Park) -> Known:
    return Known(park.theirs.ca)


def with_certificate(park: Park) -> Known:
    return Known(park.ours.ca, park.ours.cert("client"), park.ours.key("client"))


def with_certificate_of_others(park: Park) -> Known:
    return Known(park.ours.ca, park.theirs.cert("client"), park.theirs.key("client"))


def with_old_certificate(park: Park) -> Known:
    return Known(park.ours.ca, park.ours.cert("old"), park.ours.key("old"))


def with_certificate_of_a_server(park: Park) -> Known:
    return Known(park.ours.ca, park.ours.cert("server"), park.ours.key("server"))


Knows = Callable[[Park], Known]


@EVERY_CALLER
@pytest.mark.parametrize(
    ("server", "knows"),
    [("plain", plaintext), ("tls", trusting_us), ("tls", with_certificate), ("mutual", with_certificate)],
)
def test_clients_and_servers_that_fit_talk(park: Park, caller: str, server: str, knows: Knows) -> None:
    CALLERS[caller](getattr(park, server), knows(park))


#: What does not fit; what our own clients say of it; what gRPC says of it; what Python says of it.
REFUSED = [
    (
        "tls",
        trusting_others,
        "not signed by the authority in .*ca.pem.*; give (tls=|--tls-ca)",
        "certificate.verify.failed",
        "certificate.verify.failed",
    ),
    (
        "expired",
        trusting_us,
        "certificate of the server, or of its authority, has expired; have it renewed",
        "has expired",
        "has expired",
    ),
    (
        "tls",
        plaintext,
        "speaks TLS and this client does not; give (tls=|--tls-ca)",
        "",
        "400: .*expected TLS: this door is https://",
    ),
    (
        "plain",
        trusting_us,
        "does not speak TLS and this client does; leave (tls=|--tls-ca)",
        "wrong.version.number",
        "wrong.version.number|record layer",
    ),
    ("mutual", plaintext, "speaks TLS and this client does not", "", "400: .*expected TLS"),
    (
        "mutual",
        trusting_us,
        r"asks for a client certificate; give (fairlead.Tls\(ca=, cert=, key=\)|--tls-cert and --tls-key)",
        "",
        "certificate.required|handshake.failure",
    ),
    (
        "mutual",
        with_certificate_of_others,
        "does not accept the client certificate .*client.pem; is it expired, or",
        "",
        "unknown.ca",
    ),
    (
        "mutual",
        with_old_certificate,
        "does not accept the client certificate .*old.pem; is it expired",
        "",
        "certificate.expired",
    ),
    (
        "mutual",
        with_certificate_of_a_server,
        "does not accept the client certificate .*server.pem",
        "",
        "unsupported.certificate",
    ),
]


@EVERY_CALLER
@pytest.mark.parametrize(
    ("server", "knows", "ours", "grpcs", "pythons"),
    REFUSED,
    ids=[f"{one[1].__name__}-{one[0]}" for one in REFUSED],
)
def test_those_that_do_not_fit_are_refused_and_told_why(
    park: Park, caller: str, server: str, knows: Knows, ours: str, grpcs: str, pythons: str
) -> None:
    expected = {
        "command": CommandFailed,
        "fila": fila.RPCError,
        "fila_aio": fila.RPCError,
        "http": OSError,
    }.get(caller, TlsFailed)
    with pytest.raises(expected) as refused:
        CALLERS[caller](getattr(park, server), knows(park))
    said = str(refused.value)
    if caller in ("client", "aio"):
        assert re.search(ours, said), said
    elif caller == "command":
        assert refused.value.code == 7
        assert re.search(ours, said), said
        # No line of gRPC's own, and nothing of Python's.
        assert said.startswith("error: expected a connection with the server at ")
        assert len(said.splitlines()) == 1
    elif caller.startswith("fila"):
        assert refused.value.code == grpc.StatusCode.UNAVAILABLE
        assert re.search(grpcs, said, re.IGNORECASE), said
    else:
        if isinstance(refused.value, urllib.error.HTTPError):
            said = f"{refused.value.code}: {refused.value.read().decode()}"
        assert re.search(pythons, said, re.IGNORECASE), said


@pytest.mark.parametrize("door", ["resp", "flight", "grpc", "http"])
def test_nothing_older_than_tls_1_2_is_spoken(park: Park, door: str) -> None:
    assert [speaks(park, door, version) for version in ("TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3")] == [
        False,
        False,
        True,
        True,
    ]


def speaks(park: Park, door: str, version: str) -> bool:
    context = ssl.create_default_context(cafile=park.ours.ca)
    context.set_alpn_protocols(["h2", "http/1.1"])
    # Or our own side would refuse the old ones, whatever the server does.
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    try:
        with (
            socket.create_connection(split_address(park.tls.addresses[door]), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="localhost"),
        ):
            return True
    except (ssl.SSLError, ConnectionResetError):
        return False


def test_our_own_side_could_have_spoken_older_tls(park: Park) -> None:
    """Else the test above would say nothing."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(park.ours.cert(), park.ours.key())
    server.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        server.minimum_version = ssl.TLSVersion.TLSv1
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    client.load_verify_locations(park.ours.ca)
    client.set_ciphers("ALL:@SECLEVEL=0")
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(5):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert [side.version() for side in sides] == ["TLSv1.1", "TLSv1.1"]


def test_a_handshake_that_failed_leaves_no_line_of_a_stranger_in_the_log(park: Park) -> None:
    context = ssl.create_default_context(cafile=park.ours.ca)
    context.set_alpn_protocols(["h2"])
    for door in ("resp", "flight", "grpc", "http"):
        with (
            pytest.raises(ssl.SSLError),
            socket.create_connection(split_address(park.tls.addresses[door]), timeout=60) as plain,
        ):
            context.wrap_socket(plain, server_hostname="words-of-a-stranger.example")
        CALLERS["http"](park.tls, trusting_us(park))
    assert "stranger" not in park.tls.log
    assert "ssl_transport_security" not in park.tls.log
