"""The API key and the TLS settings of a client, for each new connection."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fairlead.client.addresses import Endpoint
from fairlead.client.commands import check_api_key
from fairlead.client.tls import Tls, TlsChoice, chosen_tls, files_identity, read_files
from fairlead.errors import InvalidRequest
from fairlead.model.addresses import is_loopback_host

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger("fairlead.client")


class Identity:
    """The API key is not in its repr."""

    def __init__(self, endpoint: Endpoint, tls: TlsChoice, api_key: str | None) -> None:
        self.endpoint = endpoint
        self.api_key = check_api_key(api_key)
        self.tls = _chosen(endpoint, tls)
        self._files: tuple[tuple[int, ...], ...] = ()
        self._context: ssl.SSLContext | None = None
        if self.tls is not None:
            self._files = files_identity(self.tls)
            self._context = read_files(self.tls, protocols=()).context
        elif api_key is not None and not endpoint.path and not is_loopback_host(endpoint.host):
            _log.warning(
                "the API key travels to %s unencrypted: whoever sees the traffic can use it; give tls=",
                endpoint,
            )

    @property
    def server_name(self) -> str | None:
        return None if self.tls is None else self.tls.server_name

    def context(self) -> ssl.SSLContext | None:
        """The TLS context. A renewed certificate is used from the next connection on."""
        if self.tls is not None and (found := files_identity(self.tls)) != self._files:
            self._files = found
            try:
                self._context = read_files(self.tls, protocols=()).context
            except InvalidRequest as wrong:
                _log.warning("new certificate files cannot be used, the old ones stay: %s", wrong)
        return self._context

    def older_context(self) -> ssl.SSLContext:
        """A context for TLS 1.2, in which a server refuses a client's certificate during the handshake."""
        import ssl

        assert self.tls is not None
        context = read_files(self.tls, protocols=()).context
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        return context


def _chosen(endpoint: Endpoint, given: TlsChoice) -> Tls | None:
    chosen = chosen_tls(True if given is None and endpoint.is_tls else given)
    if endpoint.is_tls and chosen is None:
        raise InvalidRequest("tls", "TLS, which fairleads:// means; leave it out or say True", given)
    if endpoint.path and chosen is not None:
        raise InvalidRequest("tls", "left out: a Unix socket has no TLS", given)
    return chosen
