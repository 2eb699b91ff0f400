"""The certificates of a server: read, checked, and read again when their files change.

What is in use is always a whole set that fits together. Files that cannot be used keep a server from
starting; later they are said in the log, and those in use stay.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from fairlead.config import TlsSettings
from fairlead.errors import SettingInvalid
from fairlead.server.logs import event

#: How often the files are checked for changes.
POLL_S = 1.0
#: How long before its end a certificate is reported.
_SOON = timedelta(days=14)
#: A certificate has a few kilobytes, and a device file never ends.
_MAX_BYTES = 1024 * 1024

_log = logging.getLogger("fairlead.tls")

_Identity = tuple[tuple[int, ...], ...]


class Material(NamedTuple):
    """What doors need, from files that were read together. `context` is for code that speaks TLS through
    Python.
    """

    cert: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext
    serial: int
    ends: datetime


#: Errors of bytes that are not TLS. OpenSSL sends no alert for them, and their sender waits for an answer.
_NOT_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"}


class _SendsAlerts(ssl.SSLObject):
    """An event loop drops the connection of a failed handshake before it has sent the alert that tells the
    client why. So the first failure with an alert asks for more bytes: the alert is sent, and the client
    hangs up.
    """

    _failed = False

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLSyscallError):
            raise
        except ssl.SSLError as error:
            if self._failed or error.reason in _NOT_TLS:
                raise
            self._failed = True
            raise ssl.SSLWantReadError("the alert must be sent") from error


class Certificates:
    """`current` may be read from any thread, at any time. The constructor reads the files; `start` begins to
    watch them.

    `tell_changes` sets a function to call after `current` was replaced, in the watching thread.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._listeners: list[Callable[[], None]] = []
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._seen = _identity(settings)
        self.current = load(settings)
        #: Unusable files, and whether they were reported: a change that is half done looks like that for a
        #: moment.
        self._bad: _Identity | None = None
        self._said = False
        self._warned: date | None = None

    def tell_changes(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="fairlead-certificates", daemon=True)
        self._thread.start()

    def look_now(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(POLL_S)

    def look(self) -> None:
        """Use the current content of the files, if they changed and are valid."""
        self._warn_of_its_end()
        found = _identity(self._settings)
        if found == self._seen:
            return
        try:
            new = load(self._settings)
        except SettingInvalid as wrong:
            if found == self._bad and not self._said:
                self._said = True
                event(
                    _log,
                    logging.ERROR,
                    "new certificate files cannot be used, the old ones stay",
                    setting=wrong.path,
                    why=wrong.what,
                )
            elif found != self._bad:
                self._bad, self._said = found, False
            return
        if found != _identity(self._settings):
            # Replaced while they were read; the next check finds them complete.
            return
        self._seen, self._bad = found, None
        changed = new[:3] != self.current[:3]
        self.current = new
        if changed:
            event(
                _log,
                logging.INFO,
                "certificates changed",
                serial=f"{new.serial:x}",
                ends=f"{new.ends:%Y-%m-%d}",
            )
            for listener in self._listeners:
                listener()

    def _warn_of_its_end(self) -> None:
        """Once a day, because nobody inspects certificates that work."""
        now = datetime.now(UTC)
        if self.current.ends - now < _SOON and self._warned != now.date():
            self._warned = now.date()
            event(
                _log,
                logging.WARNING,
                "the certificate ends soon",
                file=self._settings.cert,
                ends=f"{self.current.ends:%Y-%m-%d %H:%M}",
            )

    def _watch(self) -> None:
        while not self._stopped:
            self._wake.wait(POLL_S)
            self._wake.clear()
            if not self._stopped:
                try:
                    self.look()
                except Exception:
                    _log.exception(
                        "certificates could not be looked at in a way nobody foresaw, and will be again"
                    )


def load(settings: TlsSettings) -> Material:
    """Raises `SettingInvalid`, which names the file and says what to do."""
    cert, chain = _certificates("tls.cert", settings.cert)
    leaf = chain[0]
    _check_valid("tls.cert", settings.cert, leaf)
    key = _private_key(settings.key, leaf)
    client_ca = None
    if settings.client_ca:
        client_ca, trusted = _certificates("tls.client_ca", settings.client_ca)
        for one in trusted:
            _check_valid("tls.client_ca", settings.client_ca, one)
    return Material(
        cert, key, client_ca, _context(settings, client_ca), leaf.serial_number, leaf.not_valid_after_utc
    )


def _certificates(setting: str, path: str) -> tuple[bytes, list[x509.Certificate]]:
    raw = _read(setting, path)
    try:
        return raw, x509.load_pem_x509_certificates(raw)
    except (ValueError, UnsupportedAlgorithm) as wrong:
        raise _invalid(
            setting,
            f"expected {path} to have certificates in PEM (-----BEGIN CERTIFICATE-----): {_short(wrong)}",
        ) from None


def _check_valid(setting: str, path: str, certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if certificate.not_valid_after_utc <= now:
        raise _invalid(
            setting,
            f"expected {path} to be valid, it ended on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; have it renewed",
        )
    if certificate.not_valid_before_utc > now:
        begins = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        raise _invalid(
            setting,
            f"expected {path} to be valid, it begins on {begins} and here it is {now:%Y-%m-%d %H:%M}; is this clock right?",
        )


def _private_key(path: str, certificate: x509.Certificate) -> bytes:
    raw = _read("tls.key", path, secret=True)
    try:
        key = load_pem_private_key(raw, None)
    except TypeError:
        raise _invalid(
            "tls.key",
            f"expected {path} to have no passphrase; write it without: openssl pkey -in {path} -out NEW",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        # Without the library's message, which may quote what it read.
        raise _invalid(
            "tls.key", f"expected {path} to have one private key in PEM (-----BEGIN PRIVATE KEY-----)"
        ) from None
    ours, theirs = key.public_key(), certificate.public_key()
    if _plain(ours) != _plain(theirs):
        raise _invalid(
            "tls.key",
            f"expected {path} to be the key of tls.cert, but they do not belong together; give the pair that was made together",
        )
    return raw


def _plain(key: object) -> bytes:
    return bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))  # type: ignore[attr-defined]


def _context(settings: TlsSettings, client_ca: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslobject_class = _SendsAlerts
    try:
        context.load_cert_chain(settings.cert, settings.key, password="")
        if client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=client_ca.decode("ascii", "replace"))
    except (OSError, ValueError) as wrong:
        raise _invalid(
            "tls.cert", f"expected {settings.cert} and its key to be accepted by OpenSSL: {_short(wrong)}"
        ) from None
    return context


def _read(setting: str, path: str, *, secret: bool = False) -> bytes:
    try:
        with open(path, "rb", opener=_without_waiting) as opened:
            found = os.fstat(opened.fileno())
            if stat.S_ISREG(found.st_mode):
                if secret:
                    _check_mode(setting, path, found)
                raw = opened.read(_MAX_BYTES + 1)
                if len(raw) <= _MAX_BYTES:
                    return raw
    except OSError as error:
        raise _invalid(
            setting, f"expected a file that this user can read, got {path}: {error.strerror}"
        ) from None
    raise _invalid(setting, f"expected {path} to be a file of at most {_MAX_BYTES} bytes")


def _without_waiting(path: str, flags: int) -> int:
    """Open without waiting: a pipe without a writer would keep a server from starting, or its certificates
    from being checked again.
    """
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_mode(setting: str, path: str, found: os.stat_result) -> None:
    """Our file must be readable only by us. A file of another user, such as root, may be readable by its
    group, because that may be how we can read it.
    """
    if os.name != "posix":
        return
    most = 0o600 if found.st_uid == os.geteuid() else 0o640
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077 & ~most:
        raise _invalid(
            setting, f"expected {path} to be a secret, but its mode is {mode:04o}; run: chmod {most:o} {path}"
        )


def _identity(settings: TlsSettings) -> _Identity:
    found = []
    for path in (settings.cert, settings.key, settings.client_ca):
        try:
            one = os.stat(path) if path else None
        except OSError:
            one = None
        # The mode is part of the identity: a key may be refused for it.
        found.append(
            (one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_mode, one.st_uid)
            if one is not None
            else ()
        )
    return tuple(found)


def _invalid(setting: str, what: str) -> SettingInvalid:
    return SettingInvalid("settings", setting, what)


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
