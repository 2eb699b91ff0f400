"""Addresses of servers: `host:port`, `fairlead://host:port`, `fairleads://host:port` with TLS, or
`unix:///path`. The port may be left out.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlead.errors import InvalidRequest
from fairlead.model.addresses import join_address, split_address

DEFAULT_PORT = 5554
_SCHEMES = ("fairlead", "fairleads", "unix")


class Endpoint(NamedTuple):
    """A host and a port, or the path of a socket."""

    host: str
    port: int
    path: str = ""
    is_tls: bool = False

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else join_address(self.host, self.port)


def read_endpoint(address: object) -> Endpoint:
    if not isinstance(address, str) or ("://" in address and address.partition("://")[0] not in _SCHEMES):
        raise InvalidRequest(
            "address", "host:port, fairlead://host:port, fairleads://host:port or unix:///path", address
        )
    scheme, rest = address.split("://", 1) if "://" in address else ("fairlead", address)
    if scheme == "unix":
        if not rest.startswith("/"):
            raise InvalidRequest("address", "unix:// and an absolute path", address)
        return Endpoint("", 0, rest)
    if "@" in rest:
        raise InvalidRequest("address", "host:port, without a user: keys are given as api_key", address)
    host, port = split_address(_with_port(rest))
    return Endpoint(host, port, is_tls=scheme == "fairleads")


def _with_port(host: str) -> str:
    has_port = ":" in host and not host.endswith("]")
    return host if has_port else f"{host}:{DEFAULT_PORT}"
