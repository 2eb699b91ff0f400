"""Whether a port can be had. Asked before a library is, which would say vaguely that it cannot, or share it
with a stranger.
"""

from __future__ import annotations

import socket
from contextlib import closing


def try_port(host: str, port: int) -> None:
    """Raises OSError when nobody could listen there now."""
    family, kind, protocol, _, where = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with closing(socket.socket(family, kind, protocol)) as probe:
        # As servers do: connections of a server that has just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)
