"""A Flight server that makes way for another, with servers that do nothing but listen."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.config import TlsSettings
from fairlead.model.addresses import split_address
from fairlead.server import flight_listener
from fairlead.server.certificates import Certificates
from fairlead.server.flight_listener import FlightListener
from tests.security.certificates import Files

PATIENCE_S = 60


class Listening:
    """Leaves its port when it is told to shut down; its open streams end when the test says so."""

    def __init__(self, location: str, **tls: Any) -> None:
        host, port = split_address(location.partition("//")[2], may_pick_port=True)
        self.cert = tls["tls_certificates"][0][0]
        self._socket = socket.create_server((host, port))
        self.port = self._socket.getsockname()[1]
        self.left = threading.Event()
        self.streams_over = threading.Event()

    def shutdown(self) -> None:
        self._socket.close()
        self.left.set()
        self.streams_over.wait(PATIENCE_S)


class Rig:
    def __init__(self, files: Files) -> None:
        self.certificates = Certificates(TlsSettings(str(files.cert()), str(files.key())))
        self.made: list[Listening] = []
        self.refusals = 0
        self.on_refusal = threading.Event()
        self.unusable = b""
        self.listener = FlightListener(self.make, "127.0.0.1:0", self.certificates)

    def make(self, location: str, **tls: Any) -> Listening:
        if self.refusals:
            self.refusals -= 1
            self.on_refusal.set()
            raise RuntimeError("the port went to somebody else")
        if tls["tls_certificates"][0][0] == self.unusable:
            raise RuntimeError("no such kind of key here")
        made = Listening(location, **tls)
        self.made.append(made)
        return made


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(tmp_path / "tls")
    files.server()
    return files


@pytest.fixture
def rig(files: Files) -> Iterator[Rig]:
    rig = Rig(files)
    rig.listener.start()
    yield rig
    for server in rig.made:
        server.streams_over.set()
    rig.listener.stop(PATIENCE_S)


def test_the_next_server_has_the_same_port_and_the_new_certificate(rig: Rig, files: Files) -> None:
    issued = files.server()
    rig.certificates.look()
    old, new = rig.made
    assert old.left.wait(PATIENCE_S)
    assert (new.port, new.cert) == (old.port, issued.cert)
    assert rig.listener.address == f"127.0.0.1:{old.port}"


def test_a_server_with_open_streams_is_not_waited_for(rig: Rig, files: Files) -> None:
    for _ in range(3):
        files.server()
        rig.certificates.look()
    assert len(rig.made) == 4
    assert len([thread for thread in rig.listener._leaving if thread.is_alive()]) == 3
    for server in rig.made:
        server.streams_over.set()
    rig.listener.stop(PATIENCE_S)
    assert not any(thread.is_alive() for thread in rig.listener._leaving)


def test_a_port_that_is_not_free_at_once_is_tried_again(rig: Rig, files: Files) -> None:
    rig.refusals = 5
    files.server()
    rig.certificates.look()
    assert (len(rig.made), rig.refusals) == (2, 0)


def test_certificates_that_flight_cannot_use_leave_it_with_the_old_ones(
    rig: Rig, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_listener, "_PORT_S", 0.0)
    rig.unusable = files.server().cert
    rig.certificates.look()
    first, second = rig.made
    assert second.cert == first.cert
    issued = files.server()
    rig.certificates.look()
    assert rig.made[2].cert == issued.cert


def test_a_stop_ends_the_wait_for_a_port(rig: Rig, files: Files) -> None:
    rig.refusals = 1 << 60
    files.server()
    renewing = threading.Thread(target=rig.certificates.look)
    renewing.start()
    assert rig.on_refusal.wait(PATIENCE_S)
    rig.made[0].streams_over.set()
    rig.listener.stop(PATIENCE_S)
    renewing.join(PATIENCE_S)
    assert not renewing.is_alive()
    assert len(rig.made) == 1


def test_a_change_after_a_stop_opens_nothing(rig: Rig, files: Files) -> None:
    rig.made[0].streams_over.set()
    rig.listener.stop(PATIENCE_S)
    files.server()
    rig.certificates.look()
    assert len(rig.made) == 1
