"""Which files a server accepts as its certificates, and when it takes new ones up."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from fairlead.config import TlsSettings
from fairlead.errors import SettingInvalid
from fairlead.server.certificates import Certificates, load
from fairlead.testing import ServerDidNotStart, run_server
from tests.security.certificates import EXPIRED, NOT_YET, Files, replace


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(tmp_path / "tls")
    files.server()
    return files


def settings(files: Files, **changed: str) -> TlsSettings:
    return TlsSettings(
        **{"cert": str(files.cert()), "key": str(files.key()), "client_ca": str(files.ca), **changed}
    )


def with_passphrase(files: Files) -> None:
    key = load_pem_private_key(files.key().read_bytes(), None)
    replace(
        files.key(),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open sesame")),
    )


def swapped(files: Files) -> None:
    cert, key = files.cert().read_bytes(), files.key().read_bytes()
    replace(files.cert(), key)
    replace(files.key(), cert)


#: What is done to good files, the setting that is named, and what is said of it.
BAD: dict[str, tuple[Callable[[Files], object], str, str]] = {
    "no certificate": (
        lambda files: files.cert().unlink(),
        "tls.cert",
        "expected a file that this user can read, got .*server.pem: No such file",
    ),
    "no key": (
        lambda files: files.key().unlink(),
        "tls.key",
        "expected a file that this user can read, got .*server.key: No such file",
    ),
    "no authority": (lambda files: files.ca.unlink(), "tls.client_ca", "got .*ca.pem: No such file"),
    "a directory": (
        lambda files: (files.ca.unlink(), files.ca.mkdir()),
        "tls.client_ca",
        "got .*ca.pem: Is a directory",
    ),
    "an empty certificate": (
        lambda files: replace(files.cert(), b""),
        "tls.cert",
        "to have certificates in PEM",
    ),
    "half a certificate": (
        lambda files: replace(files.cert(), files.cert().read_bytes()[:200]),
        "tls.cert",
        "to have certificates in PEM",
    ),
    "an empty authority": (
        lambda files: replace(files.ca, b"# none yet"),
        "tls.client_ca",
        "to have certificates in PEM",
    ),
    "key and certificate swapped": (swapped, "tls.cert", "to have certificates in PEM"),
    "no key in it": (
        lambda files: replace(files.key(), b"-----BEGIN PRIVATE KEY-----\nabcd\n"),
        "tls.key",
        "to have one private key in PEM",
    ),
    "a key with a passphrase": (
        with_passphrase,
        "tls.key",
        "to have no passphrase; write it without: openssl pkey -in .*server.key",
    ),
    "another's key": (
        lambda files: replace(files.key(), files.authority.for_server().key),
        "tls.key",
        "they do not belong together",
    ),
    "an expired certificate": (
        lambda files: files.server(**EXPIRED),
        "tls.cert",
        "to be valid, it ended on .* UTC; have it renewed",
    ),
    "a certificate of tomorrow": (
        lambda files: files.server(**NOT_YET),
        "tls.cert",
        "it begins on .*; is this clock right",
    ),
    "a key its group can read": (
        lambda files: files.key().chmod(0o640),
        "tls.key",
        "to be a secret, but its mode is 0640; run: chmod 600 .*key",
    ),
    "a key all can read": (lambda files: files.key().chmod(0o604), "tls.key", "its mode is 0604"),
    "a pipe": (
        lambda files: (files.cert().unlink(), os.mkfifo(files.cert())),
        "tls.cert",
        "to be a file of at most",
    ),
    "a file that never ends": (
        lambda files: os.truncate(files.cert(), 2 << 20),
        "tls.cert",
        "of at most 1048576 bytes",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_files_that_cannot_be_used_are_named_with_what_to_do(files: Files, bad: str) -> None:
    spoil, setting, said = BAD[bad]
    load(settings(files))
    spoil(files)
    with pytest.raises(SettingInvalid, match=said) as refused:
        load(settings(files))
    assert refused.value.path == setting


def test_a_key_is_never_quoted(files: Files) -> None:
    replace(files.key(), files.key().read_bytes().replace(b"PRIVATE KEY", b"PRIVATE TREE"))
    with pytest.raises(SettingInvalid) as refused:
        load(settings(files))
    assert not any(line in str(refused.value) for line in files.key().read_text().splitlines())


def test_a_key_of_somebody_else_may_be_read_by_its_group(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's, say, which a server that is not root can read through its group."""
    files.key().chmod(0o640)
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    load(settings(files))
    files.key().chmod(0o644)
    with pytest.raises(SettingInvalid, match="chmod 640"):
        load(settings(files))


def test_a_server_with_a_bad_certificate_does_not_start_and_makes_no_data(
    files: Files, tmp_path: Path
) -> None:
    files.server(**EXPIRED)
    with (
        pytest.raises(
            ServerDidNotStart, match=r"tls.cert: expected .*server.pem to be valid, it ended on"
        ) as refused,
        run_server(tmp_path / "data", settings=files.settings()),
    ):
        pass
    assert refused.value.code == 3
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("days", "warnings"), [(13, 1), (15, 0)])
def test_a_certificate_that_ends_soon_is_said_once_a_day(
    files: Files, caplog: pytest.LogCaptureFixture, days: int, warnings: int
) -> None:
    files.server(days=days)
    certificates = Certificates(settings(files))
    for _ in range(3):
        certificates.look()
    assert [record.getMessage() for record in caplog.records] == ["the certificate ends soon"] * warnings


class Watched:
    def __init__(self, files: Files) -> None:
        self.certificates = Certificates(settings(files))
        self.told = 0
        self.certificates.tell_changes(self.tell)

    def tell(self) -> None:
        self.told += 1


def test_files_that_changed_are_taken_up_and_told_of_once(files: Files) -> None:
    watched = Watched(files)
    watched.certificates.look()
    assert watched.told == 0
    issued = files.server()
    for _ in range(2):
        watched.certificates.look()
    assert (watched.told, watched.certificates.current.serial) == (1, issued.serial)
    assert watched.certificates.current.cert == issued.cert


def test_files_written_again_with_the_same_content_are_no_change(files: Files) -> None:
    watched = Watched(files)
    replace(files.cert(), files.cert().read_bytes())
    watched.certificates.look()
    assert watched.told == 0


def test_half_of_a_change_is_waited_out_in_silence(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(files)
    before = watched.certificates.current
    issued = files.authority.for_server()
    replace(files.key(), issued.key)
    watched.certificates.look()
    assert watched.certificates.current is before
    replace(files.cert(), issued.cert)
    watched.certificates.look()
    assert watched.certificates.current.serial == issued.serial
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_files_that_stay_bad_are_said_once(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(files)
    before = watched.certificates.current
    replace(files.cert(), b"nothing")
    for _ in range(4):
        watched.certificates.look()
    assert watched.certificates.current is before
    assert [record.getMessage() for record in caplog.records] == [
        "new certificate files cannot be used, the old ones stay"
    ]
    replace(files.cert(), b"nothing at all")
    for _ in range(3):
        watched.certificates.look()
    assert len(caplog.records) == 2


def test_a_change_behind_a_symbolic_link_is_seen(files: Files) -> None:
    """As a cluster's secrets are changed: the files of a new directory, and a link that is turned to it."""
    one, two, link = files.directory / "one", files.directory / "two", files.directory / "now"
    for directory in (one, two):
        issued = files.authority.for_server()
        directory.mkdir()
        replace(directory / "tls.crt", issued.cert)
        replace(directory / "tls.key", issued.key)
    link.symlink_to(one)
    certificates = Certificates(TlsSettings(str(link / "tls.crt"), str(link / "tls.key")))
    (files.directory / "next").symlink_to(two)
    os.replace(files.directory / "next", link)
    certificates.look()
    assert certificates.current.serial == issued.serial


def test_a_listener_that_fails_does_not_end_the_watching(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(settings(files))
    came: list[int] = []

    def fail() -> None:
        came.append(certificates.current.serial)
        raise RuntimeError("a door that cannot")

    certificates.tell_changes(fail)
    certificates.start()
    try:
        for _ in range(2):
            issued = files.server()
            certificates.look_now()
            wait_until(lambda serial=issued.serial: serial in came)
    finally:
        certificates.stop()
    assert "will be again" in caplog.text


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
