"""The asyncio face of the client: `async with await fairlead.aio.connect("fairlead://host:5554") as client`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.client.choice import find_async_connect
from fairlead.client.tls import TlsChoice
from fairlead.model.durations import Duration

if TYPE_CHECKING:
    from fairlead.client.async_client import AsyncClient
    from fairlead.client.resp.async_client import AsyncRespClient

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
) -> AsyncClient | AsyncRespClient:
    """As `fairlead.connect`, without blocking the event loop.

    At `fairlead://`, `fairleads://` and `unix://` the client works on the loop alone; at `host:port` it has threads.
    """
    return await find_async_connect(address)(
        address,
        consumer=consumer,
        retry_for=retry_for,
        timeout=timeout,
        heartbeat_cap=heartbeat_cap,
        tracing=tracing,
        api_key=api_key,
        tls=tls,
    )
