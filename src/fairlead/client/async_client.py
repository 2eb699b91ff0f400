"""The asyncio client of the Redis protocol, on the event loop only, without threads.

Cancelling a call does not revoke a request that was sent: an enqueue or a settle may still take effect, and
the deliveries of a claim are released when they arrive. A request that was not sent yet is not sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from fairlead.client.addresses import read_endpoint
from fairlead.client.async_bulk import AsyncBulkConsumers, AsyncBulkStaging
from fairlead.client.async_consume import AsyncConsumption, Fetching
from fairlead.client.async_core import AsyncCore
from fairlead.client.identity import Identity
from fairlead.client.options import read_options
from fairlead.client.session import place_of
from fairlead.client.tls import TlsChoice
from fairlead.client.traces import make_traces
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.handles import read_handle
from fairlead.model.settle import Handle
from fairlead.request import Answer, Request
from fairlead.surface import AsyncSurface
from fairlead.verbs.browse import Browse

if TYPE_CHECKING:
    import pyarrow as pa


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
    """See `fairlead.aio.connect`."""
    options = read_options(
        address,
        consumer=consumer,
        retry_for=retry_for,
        timeout=timeout,
        heartbeat_cap=heartbeat_cap,
        flight=flight,
    )
    identity = Identity(read_endpoint(address), tls, api_key)
    core = AsyncCore(options, identity, make_traces(tracing))
    try:
        await core.greet()
    except BaseException:
        await core.close()
        raise
    return AsyncClient(core)


class AsyncClient(AsyncSurface):
    """The client that `connect` returns. Its verbs are the broker's, each as a coroutine. It belongs to the
    event loop that it was made on.
    """

    def __init__(self, core: AsyncCore) -> None:
        self._core = core

    @cached_property
    def consumers(self) -> AsyncBulkConsumers:
        return AsyncBulkConsumers(self, self._core.flight)

    @cached_property
    def staging(self) -> AsyncBulkStaging:
        return AsyncBulkStaging(self, self._core.flight)

    @property
    def consumer(self) -> str:
        return self._core.options.consumer

    def do(self, request: Request[Answer]) -> Awaitable[Answer]:
        """Send the request; requests of several tasks travel together. A cancelled call releases the messages
        that it leased meanwhile.
        """
        return self._core.do(request)

    async def once(self, request: Request[Answer], *, session: str, number: int, arrived: int = 0) -> Answer:
        return await self._core.do(request, place_of(session, number, arrived))

    def consume(
        self, queue: str | Sequence[str], *, prefetch: int = 100, max_per_stream: int = 1, consumer: str = ""
    ) -> AsyncConsumption:
        """`async for delivery in client.consume("orders")`; settle each delivery yourself."""
        self._core.check()
        return AsyncConsumption(
            Fetching(
                self._core,
                queue,
                prefetch=prefetch,
                max_per_stream=max_per_stream,
                consumer=consumer or self.consumer,
            )
        )

    def browse_batches(
        self, queue: str, *, view: str = "messages", low: str = "", high: str = "", payloads: bool = True
    ) -> AsyncIterator[pa.RecordBatch]:
        """All pages of `browse` as record batches, over Arrow Flight."""
        request = Browse(queue, view, low, high)  # type: ignore[arg-type]  # the engine says which views there are
        return self._core.flight.browse_batches(request, payloads=payloads)

    def process_span(self, delivery: Delivery) -> AbstractContextManager[None]:
        """A span around the work on a delivery, for a plain `with`: it belongs to the surrounding task."""
        return self._core.traces.processing(delivery)

    def is_lost(self, delivery: Handle) -> bool:
        """Whether a heartbeat or a settle found that the lease has ended. Then another consumer may be
        processing the message.
        """
        return self._core.heartbeat.is_lost(*read_handle(delivery))

    async def close(self, *, goodbye: bool = False) -> None:
        """Return the deliveries that loops have fetched ahead. `goodbye` also releases everything else that
        `consumer` holds.
        """
        await self._core.close(goodbye=goodbye)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
