"""The TLS settings of a client: trusted authorities, its own certificate, and their files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fairlead.errors import InvalidRequest

if TYPE_CHECKING:
    import ssl

#: The most bytes of a file. A certificate has a few kilobytes, and a device file never ends.
_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files. They are read when a client connects, and again when they have changed and the
    client connects anew.

    `ca` has the authorities whose servers are trusted; the default is those that the system trusts. `cert`
    and `key` are this client's own, for a server that asks for a certificate; the key has no passphrase.
    `server_name` is the name that the server's certificate must have, if it is not the host of the address.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InvalidRequest(
                "tls", "given both cert and key, or neither", "cert" if self.key is None else "key"
            )
        for name in ("ca", "cert", "key"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (str, Path)) and str(value)):
                raise InvalidRequest(f"tls.{name}", "the path of a file", value)
        if self.server_name is not None and not (isinstance(self.server_name, str) and self.server_name):
            raise InvalidRequest("tls.server_name", "a host name", self.server_name)


#: True: the authorities that the system trusts. A path: an authority's certificate.
TlsChoice: TypeAlias = "Tls | str | Path | bool | None"


class TlsFiles(NamedTuple):
    """The contents of the files. Not in its repr: one of them is a secret."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None
    context: ssl.SSLContext

    def __repr__(self) -> str:
        return "TlsFiles(...)"


def chosen_tls(given: TlsChoice) -> Tls | None:
    if given is None or given is False:
        return None
    if given is True:
        return Tls()
    if isinstance(given, (str, Path)):
        return Tls(ca=given)
    if isinstance(given, Tls):
        return given
    raise InvalidRequest("tls", "True, the path of an authority's certificate, or a fairlead.Tls", given)


def read_files(tls: Tls, *, protocols: Sequence[str] = ("h2",)) -> TlsFiles:
    """The contents and the TLS context. Raises `InvalidRequest` for errors that gRPC would only write to
    stderr.

    gRPC servers refuse clients that do not offer h2.
    """
    # Imported here: without TLS this import would be a large part of a client's start time.
    import ssl

    ca = _read("tls.ca", tls.ca) if tls.ca is not None else _system_roots()
    cert = _read("tls.cert", tls.cert) if tls.cert is not None else None
    key = _read("tls.key", tls.key) if tls.key is not None else None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocols:
        context.set_alpn_protocols(list(protocols))
    try:
        if ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=ca.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError):
        raise InvalidRequest(
            "tls.ca", "certificates in PEM (-----BEGIN CERTIFICATE-----)", str(tls.ca)
        ) from None
    if tls.cert is not None and tls.key is not None:
        try:
            # An empty passphrase, so that OpenSSL does not ask for one at the terminal.
            context.load_cert_chain(tls.cert, tls.key, password="")
        except (OSError, ValueError) as wrong:
            expected = f"a certificate in PEM and, in {tls.key}, its own private key without a passphrase"
            raise InvalidRequest(
                "tls.cert", f"{expected} ({getattr(wrong, 'reason', None) or wrong})", str(tls.cert)
            ) from None
    return TlsFiles(ca, cert, key, context)


def files_identity(tls: Tls) -> tuple[tuple[int, ...], ...]:
    """A value that differs after one of the files was replaced."""
    found: list[tuple[int, ...]] = []
    for path in (tls.ca, tls.cert, tls.key):
        if path is not None:
            with contextlib.suppress(OSError):
                one = os.stat(path)
                found.append((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns))
    return tuple(found)


def _read(field: str, path: str | Path) -> bytes:
    try:
        with Path(path).open("rb") as opened:
            raw = opened.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            field, f"a file that can be read ({getattr(error, 'strerror', None) or error})", str(path)
        ) from None
    if len(raw) > _MAX_BYTES:
        raise InvalidRequest(field, f"a file of at most {_MAX_BYTES} bytes", str(path))
    return raw


def _system_roots() -> bytes | None:
    """The authorities that Python trusts, `SSL_CERT_FILE` included; None leaves the choice to gRPC, which has
    its own.
    """
    import ssl

    path = ssl.get_default_verify_paths().cafile
    return _read("tls", path) if path else None
