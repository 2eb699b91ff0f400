"""The checks of `fairlead doctor` that report when certificates expire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cli.findings import Finding
from fairlead.cli.server_checks import open_connection
from fairlead.client.addresses import read_endpoint
from fairlead.errors import FairleadError

if TYPE_CHECKING:
    from fairlead.client.tls import Tls, TlsFiles

#: Warn this early: the person who renews certificates may be on leave.
WARN_DAYS = 30
_RENEW = "have it renewed; a running server loads the new files by itself"
_finding = partial(Finding, "certificates")


def certificates(tls: Tls | None, doors: Mapping[str, str]) -> Iterator[Finding]:
    """Check the certificates in the given files, and those that the doors show. `tls` None: plaintext."""
    if tls is None:
        yield _finding("tls", "info", "plaintext", "give --tls-ca FILE to use TLS and to check certificates")
        return
    from cryptography import x509

    from fairlead.client.tls import read_files

    try:
        files = read_files(tls)
    except FairleadError as wrong:
        yield _finding("files", "bad", wrong.message)
        return
    for name, path in (("authority", tls.ca), ("client", tls.cert)):
        if path is not None:
            for one in x509.load_pem_x509_certificates(Path(path).read_bytes()):
                yield ending(name, str(path), one.not_valid_after_utc, datetime.now(UTC))
    for door, address in doors.items():
        yield from shown_by(door, address, tls, files)


def shown_by(door: str, address: str, tls: Tls, files: TlsFiles) -> Iterator[Finding]:
    """Yield nothing when there is no listener or the handshake fails: the check of the door reports that."""
    from cryptography import x509

    at = read_endpoint(address)
    files.context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with (
            open_connection(at) as connection,
            files.context.wrap_socket(connection, server_hostname=tls.server_name or at.host) as secure,
        ):
            shown = secure.getpeercert(binary_form=True)
    except OSError:
        return
    if shown is not None:
        yield ending(
            door, address, x509.load_der_x509_certificate(shown).not_valid_after_utc, datetime.now(UTC)
        )


def ending(name: str, whose: str, ends: datetime, now: datetime) -> Finding:
    left = (ends - now).days
    if ends <= now:
        return _finding(name, "bad", f"{whose} expired on {ends:%Y-%m-%d %H:%M} UTC", _RENEW)
    found = f"{whose} expires on {ends:%Y-%m-%d}, in {left} days"
    if left < WARN_DAYS:
        return _finding(name, "warn", found, _RENEW)
    return _finding(name, "ok", found)
