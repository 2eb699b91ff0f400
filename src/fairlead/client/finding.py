"""Imports the `connect` of either client, or reports which package to install."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.client.async_client import AsyncClient
    from fairlead.client.client import Client


def find_connect() -> Callable[..., Client]:
    return _load("fairlead.client.client")


def find_async_connect() -> Callable[..., Awaitable[AsyncClient]]:
    return _load("fairlead.client.async_client")


def _load(module: str) -> Callable[..., Any]:
    """Import `connect` from the module. Raises `ModuleNotFoundError` that names the package to install."""
    try:
        found: Callable[..., Any] = import_module(module).connect
    except ModuleNotFoundError as missing:
        if missing.name != "hiredis":
            raise
        told = "a client needs hiredis; install it with: pip install 'fairlead[client]'"
        raise ModuleNotFoundError(told, name="hiredis") from None
    return found
