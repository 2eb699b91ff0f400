"""The asyncio client: `async with await fairlead.aio.connect("host:5554") as client`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.client.finding import find_async_connect
from fairlead.client.tls import TlsChoice
from fairlead.model.durations import Duration

if TYPE_CHECKING:
    from fairlead.client.async_client import AsyncClient

__all__ = ["connect"]


async def connect(
    address: str,
    *,
    consumer: str | None = None,
    retry_for: Duration = "30s",
    timeout: Duration = "30s",
    heartbeat_cap: Duration | None = "10m",
    tracing: bool = False,
    api_key: str | None = None,
    tls: TlsChoice = None,
    flight: str | None = None,
) -> AsyncClient:
    """As `fairlead.connect`, on the event loop alone: it neither blocks the loop nor starts threads."""
    return await find_async_connect()(
        address,
        consumer=consumer,
        retry_for=retry_for,
        timeout=timeout,
        heartbeat_cap=heartbeat_cap,
        tracing=tracing,
        api_key=api_key,
        tls=tls,
        flight=flight,
    )
