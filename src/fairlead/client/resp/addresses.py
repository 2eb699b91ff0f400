"""Where a client of the Redis protocol connects: `fairlead://host:port`, `fairleads://host:port` with TLS, or
`unix:///path`.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlead.errors import InvalidRequest
from fairlead.model.addresses import join_address, split_address

DEFAULT_PORT = 5554


class Endpoint(NamedTuple):
    """A host and a port, or the path of a socket."""

    host: str
    port: int
    path: str = ""
    is_tls: bool = False

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else join_address(self.host, self.port)


def read_endpoint(address: str) -> Endpoint:
    scheme, _, rest = address.partition("://")
    if scheme == "unix":
        if not rest.startswith("/"):
            raise InvalidRequest("address", "unix:// and an absolute path", address)
        return Endpoint("", 0, rest)
    if "@" in rest:
        raise InvalidRequest(
            "address", f"{scheme}://host:port, without a user: keys are given as api_key", address
        )
    host, port = split_address(_with_port(rest))
    return Endpoint(host, port, is_tls=scheme == "fairleads")


def _with_port(host: str) -> str:
    has_port = host.endswith("]") is False and ":" in host
    return host if has_port else f"{host}:{DEFAULT_PORT}"
