"""A certificate authority for trying TLS out and for tests. It is not meant for production."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: Browsers and phones refuse server certificates with a longer lifetime.
DAYS = 397
#: So that a machine whose clock is slightly behind accepts a new certificate.
_EARLIER = timedelta(hours=1)


class Issued(NamedTuple):
    """A certificate and its private key, in PEM."""

    cert: bytes
    key: bytes

    @property
    def serial(self) -> int:
        return x509.load_pem_x509_certificate(self.cert).serial_number

    @property
    def ends(self) -> datetime:
        return x509.load_pem_x509_certificate(self.cert).not_valid_after_utc


class Authority:
    """Signs certificates. Valid for ten years by default, so that clients need not be given a new one with
    each server certificate.
    """

    def __init__(self, name: str = "fairlead local authority", *, days: int = 3650) -> None:
        self._key = generate_private_key(SECP256R1())
        begin = datetime.now(UTC) - _EARLIER
        builder = _builder(_named(name), _named(name), self._key, begin, begin + timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        self.certificate = builder.sign(self._key, hashes.SHA256())

    @classmethod
    def load(cls, cert: bytes, key: bytes) -> Authority:
        """An authority that was made before. Raises `ValueError` if the bytes are none."""
        found = cls.__new__(cls)
        found.certificate = x509.load_pem_x509_certificate(cert)
        loaded = load_pem_private_key(key, None)
        if (
            not isinstance(loaded, EllipticCurvePrivateKey)
            or loaded.public_key() != found.certificate.public_key()
        ):
            raise ValueError("expected the key of that certificate")
        found._key = loaded
        return found

    @property
    def issued(self) -> Issued:
        """Its own certificate and key. `cert` is what clients trust."""
        return Issued(self.certificate.public_bytes(Encoding.PEM), _pem(self._key))

    def for_server(
        self,
        hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1"),
        *,
        days: int = DAYS,
        begin: datetime | None = None,
    ) -> Issued:
        """A certificate for a server that is reached under one of `hosts`, which are names or addresses."""
        return self._sign(
            hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, days, begin, [_host(host) for host in hosts]
        )

    def for_client(
        self, name: str = "fairlead client", *, days: int = DAYS, begin: datetime | None = None
    ) -> Issued:
        return self._sign(name, ExtendedKeyUsageOID.CLIENT_AUTH, days, begin, [])

    def _sign(
        self,
        name: str,
        use: x509.ObjectIdentifier,
        days: int,
        begin: datetime | None,
        hosts: list[x509.GeneralName],
    ) -> Issued:
        key = generate_private_key(SECP256R1())
        begin = begin or datetime.now(UTC) - _EARLIER
        builder = _builder(_named(name), self.certificate.subject, key, begin, begin + timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        return Issued(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM), _pem(key))


def hosts_of(cert: bytes) -> list[str]:
    """The names and addresses that a certificate is for. Raises `ValueError` if the bytes are no certificate."""
    try:
        names = (
            x509.load_pem_x509_certificate(cert)
            .extensions.get_extension_for_class(x509.SubjectAlternativeName)
            .value
        )
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), begin, end
    )
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
