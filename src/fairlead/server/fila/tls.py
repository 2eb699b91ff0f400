"""TLS of the gRPC door: each new connection uses the current certificates."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from fairlead.server.certificates import Certificates, Material


def credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """gRPC asks for the certificates before every handshake, and accepts nothing older than TLS 1.2."""
    material = certificates.current
    return grpc.dynamic_ssl_server_credentials(
        _configuration(material),
        _News(certificates, material).fetch,  # type: ignore[arg-type]  # None is documented
        require_client_authentication=material.client_ca is not None,
    )


class _News:
    def __init__(self, certificates: Certificates, known: Material) -> None:
        self._certificates = certificates
        self._known = known
        self._lock = threading.Lock()

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """None: nothing has changed since the last call."""
        with self._lock:
            current = self._certificates.current
            if current is self._known:
                return None
            self._known = current
        return _configuration(current)


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.cert)], root_certificates=material.client_ca
    )
