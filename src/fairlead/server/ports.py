"""Whether a port is available. Checked before a library tries, which would report a vague error, or share the
port with another process.
"""

from __future__ import annotations

import socket
from contextlib import closing


def try_port(host: str, port: int) -> None:
    """Raises OSError if no socket could listen there now."""
    family, kind, protocol, _, where = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with closing(socket.socket(family, kind, protocol)) as probe:
        # As servers do: connections of a server that has just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)
