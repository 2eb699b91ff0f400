"""Addresses of servers: `host:port`, with an IPv6 address in brackets."""

from __future__ import annotations

import ipaddress
import re

from fairlead.errors import InvalidRequest

_ADDRESS = re.compile(
    r"(?:\[([0-9a-fA-F:.]+(?:%[\w.-]+)?)\]|([^\s:\[\]/\x00-\x1f\ud800-\udfff]+)):([0-9]{1,5})"
)


def split_address(address: object, *, may_pick_port: bool = False) -> tuple[str, int]:
    """The host without brackets, and the port. Port 0 is valid only for a server that may listen on any free
    port.
    """
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    port = int(found[3]) if found is not None else -1
    if found is None or not (0 if may_pick_port else 1) <= port <= 65535:
        more = " (port 0: any free one)" if may_pick_port else ""
        raise InvalidRequest("address", f"host:port, such as 127.0.0.1:5554{more}", address)
    return found[1] or found[2], port


def is_loopback_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
