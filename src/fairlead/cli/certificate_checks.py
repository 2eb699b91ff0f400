"""The check of `fairlead doctor` that says when certificates end."""

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

#: Time enough for somebody to be away.
SOON_DAYS = 30
_finding = partial(Finding, "certificates")


def certificates(tls: Tls | None, doors: Mapping[str, str]) -> Iterator[Finding]:
    """Those in the files that were named, and those that the doors show. None: nothing was said of TLS."""
    if tls is None:
        yield _finding(
            "tls", "info", "plaintext", "say --tls-ca FILE to speak TLS, and to have certificates looked at"
        )
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
    """Nothing when nobody listens there, or the handshake fails: what is wrong then is said of the door."""
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
        return _finding(
            name,
            "bad",
            f"{whose} ended on {ends:%Y-%m-%d %H:%M} UTC",
            "have it renewed; a server takes new files up by itself",
        )
    if left < SOON_DAYS:
        return _finding(
            name,
            "warn",
            f"{whose} ends on {ends:%Y-%m-%d}, in {left} days",
            "have it renewed; a server takes new files up by itself",
        )
    return _finding(name, "ok", f"{whose} ends on {ends:%Y-%m-%d}, in {left} days")
