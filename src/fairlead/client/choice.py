"""Which protocol a client speaks: the one place where an address decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.client.async_client import AsyncClient
    from fairlead.client.client import Client
    from fairlead.client.resp.async_client import AsyncRespClient
    from fairlead.client.resp.client import RespClient

#: Addresses of the Redis protocol. Anything else is `host:port` of Arrow Flight.
_SCHEMES = ("fairlead://", "fairleads://", "unix://")


def find_connect(address: object) -> Callable[..., Client | RespClient]:
    if speaks_resp(address):
        return _load("fairlead.client.resp.client", "hiredis", "client")
    return _load("fairlead.client.client", "pyarrow", "client")


def find_async_connect(address: object) -> Callable[..., Awaitable[AsyncClient | AsyncRespClient]]:
    if speaks_resp(address):
        return _load("fairlead.client.resp.async_client", "hiredis", "client")
    return _load("fairlead.client.async_client", "pyarrow", "client")


def speaks_resp(address: object) -> bool:
    return isinstance(address, str) and address.startswith(_SCHEMES)


def _load(module: str, package: str, extra: str) -> Callable[..., Any]:
    """The `connect` of a module. Raises `ModuleNotFoundError` that says what to install."""
    try:
        found: Callable[..., Any] = import_module(module).connect
    except ModuleNotFoundError as missing:
        if missing.name != package:
            raise
        told = f"a client of this address needs {package}; install it with: pip install 'fairlead[{extra}]'"
        raise ModuleNotFoundError(told, name=package) from None
    return found
