"""Authorities and certificates as files, good ones and every kind of bad one."""

from __future__ import annotations

import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fairlead.model.addresses import split_address
from fairlead.testing.authority import Authority, Issued


class Files:
    """An authority of its own in `directory`, and what it signs, each as NAME.pem and NAME.key."""

    def __init__(self, directory: Path, name: str = "the authority of this test") -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.authority = Authority(name)
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(self.authority.issued.cert)

    def server(self, name: str = "server", **how: object) -> Issued:
        return self.write(name, self.authority.for_server(**how))  # type: ignore[arg-type]

    def client(self, name: str = "client", **how: object) -> Issued:
        return self.write(name, self.authority.for_client(**how))  # type: ignore[arg-type]

    def write(self, name: str, issued: Issued) -> Issued:
        """Each file replaced at once, as a careful renewal does it; not both together, which nobody can."""
        replace(self.directory / f"{name}.key", issued.key)
        replace(self.directory / f"{name}.pem", issued.cert)
        return issued

    def cert(self, name: str = "server") -> Path:
        return self.directory / f"{name}.pem"

    def key(self, name: str = "server") -> Path:
        return self.directory / f"{name}.key"

    def settings(self, name: str = "server", *, mutual: bool = False) -> dict[str, object]:
        found: dict[str, object] = {"tls.cert": self.cert(name), "tls.key": self.key(name)}
        return found | {"tls.client_ca": self.ca} if mutual else found


EXPIRED = {"begin": datetime.now(UTC) - timedelta(days=9), "days": 8}
NOT_YET = {"begin": datetime.now(UTC) + timedelta(days=9), "days": 8}


def replace(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.chmod(0o600)
    os.replace(new, path)


def serial_at(address: str, files: Files, *, client: str = "") -> int:
    """The serial number of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=files.ca)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if client:
        context.load_cert_chain(files.cert(client), files.key(client))
    with (
        socket.create_connection(split_address(address), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        shown = secure.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)
