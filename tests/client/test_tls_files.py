"""Which files a client accepts, and when it reads them again."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.client.diagnosis import diagnose
from fairlead.client.flight.transport import FlightTransport
from fairlead.client.tls import Tls, chosen_tls, read_files
from fairlead.errors import InvalidRequest
from tests.security.certificates import Files, replace


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(tmp_path / "tls")
    files.client()
    files.client("other")
    return files


def test_tls_may_be_said_in_short() -> None:
    assert [chosen_tls(given) for given in (None, False, True, "ca.pem", Path("ca.pem"))] == [
        None,
        None,
        Tls(),
        Tls("ca.pem"),
        Tls(Path("ca.pem")),
    ]
    assert chosen_tls(Tls(server_name="x")) == fairlead.Tls(server_name="x")


@pytest.mark.parametrize("given", [1, b"ca.pem", {"ca": "ca.pem"}])
def test_what_is_no_tls_is_refused(given: Any) -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"expected tls to be True, the path of an authority's certificate, or a fairlead\.Tls",
    ):
        fairlead.connect("127.0.0.1:1", tls=given)


@pytest.mark.parametrize(
    "fields",
    [{"cert": "c"}, {"key": "k"}, {"ca": ""}, {"ca": 7}, {"server_name": ""}, {"cert": b"c", "key": b"k"}],
)
def test_half_a_tls_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="expected tls"):
        Tls(**fields)


def test_files_that_cannot_be_used_are_named(files: Files) -> None:
    good = Tls(files.ca, files.cert("client"), files.key("client"))
    read_files(good)
    for wrong, said in (
        (
            Tls(files.directory / "none.pem"),
            r"expected tls\.ca to be a file that can be read \(No such file or directory\), got '.*none\.pem'",
        ),
        (Tls(files.key("client")), r"expected tls\.ca to be certificates in PEM .*, got '.*client\.key'"),
        (
            Tls(files.ca, files.cert("client"), files.key("other")),
            r"without a passphrase \(KEY_VALUES_MISMATCH\), got '.*client\.pem'",
        ),
        (
            Tls(files.ca, files.key("client"), files.cert("client")),
            "expected tls.cert to be a certificate in PEM",
        ),
        (
            Tls(files.ca, files.directory / "none.pem", files.key("client")),
            r"expected tls\.cert to be a file that can be read",
        ),
    ):
        with pytest.raises(InvalidRequest, match=said):
            read_files(wrong)


def test_the_authorities_of_the_system_can_be_chosen(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
    assert read_files(Tls()).ca == files.ca.read_bytes()


def test_new_files_are_used_for_the_next_stream_and_bad_ones_are_not(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    transport = FlightTransport("127.0.0.1:1", tls=Tls(files.ca, files.cert("client"), files.key("client")))
    first = transport._client
    transport._renew_files()
    assert transport._client is first
    replace(files.cert("client"), b"half of")
    transport._renew_files()
    assert transport._client is first
    assert "new certificate files cannot be used, the old ones stay" in caplog.text
    issued = files.client()
    transport._renew_files()
    assert transport._client is not first
    assert transport._files is not None
    assert transport._files.cert == issued.cert
    transport.close()


class Listener:
    """Takes connections, and does with each what the test says."""

    def __init__(self, *, says: bytes = b"") -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._says = says
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.sendall(self._says)

    def close(self) -> None:
        # Wakes the accepting thread, which a close alone would not.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(60)


@pytest.mark.parametrize(
    "says", [b"", b"\x00\x00\x18\x04\x00\x00\x00\x00\x00", b"HTTP/1.1 400 Bad Request\r\n\r\n"]
)
def test_a_server_that_closes_or_speaks_plainly_may_be_tried_again_by_who_speaks_plainly(says: bytes) -> None:
    listener = Listener(says=says)
    assert diagnose("127.0.0.1", listener.port, None, None).hopeless == ""
    listener.close()


def test_a_server_that_closes_at_once_may_be_tried_again_by_who_speaks_tls(files: Files) -> None:
    """It may be stopping, or at its limit of connections."""
    listener = Listener()
    tls = Tls(files.ca)
    assert diagnose("127.0.0.1", listener.port, tls, read_files(tls)).hopeless == ""
    listener.close()
    assert diagnose("127.0.0.1", listener.port, tls, read_files(tls)) == ("", False)
