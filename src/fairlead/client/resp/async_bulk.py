"""Bulk verbs of the asyncio client, by Arrow Flight; see `bulk`. That client has threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from fairlead.client.options import Options
from fairlead.client.resp.bulk import make_bulk_client
from fairlead.client.resp.identity import Identity
from fairlead.client.traces import Traces
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.staging import Dead, StageResult
from fairlead.request import Answer, Request
from fairlead.surface import AsyncConsumersGroup, AsyncDoer, AsyncStagingGroup

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.client.async_client import AsyncBulkClient
    from fairlead.client.resp.async_connection import AsyncConnections


class AsyncFlightSide:
    """The Flight client that bulk verbs use, made with the first of them."""

    def __init__(
        self, options: Options, identity: Identity, connections: AsyncConnections, traces: Traces
    ) -> None:
        self._options = options
        self._identity = identity
        self._connections = connections
        self._traces = traces
        self._client: AsyncBulkClient | None = None

    def do(self, request: Request[Answer]) -> Awaitable[Answer]:
        return self.client(request.verb_name).do(request)

    def client(self, verb: str) -> AsyncBulkClient:
        """Raises `InvalidRequest` when the server has no Flight address or this program no pyarrow. Waits for nothing."""
        if self._client is None:
            told = self._connections.flight_address
            made = make_bulk_client(verb, told, self._options, self._identity, self._traces)
            from fairlead.client.async_client import AsyncBulkClient

            self._client = AsyncBulkClient(made)
        return self._client

    async def browse_batches(self, queue: str, **options: Any) -> AsyncIterator[pa.RecordBatch]:
        client = self.client("browse")
        async for batch in client.browse_batches(queue, **options):
            yield batch

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


class AsyncBulkConsumers(AsyncConsumersGroup):
    """`client.consumers`: also with columns, by Arrow Flight."""

    def __init__(self, doer: AsyncDoer, flight: AsyncFlightSide) -> None:
        super().__init__(doer)
        self._flight = flight

    async def read(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        slice: int = 0,
        slices: int = 1,
        unsettled: bool = False,
    ) -> AsyncIterator[Delivery]:
        """See the Flight client."""
        consumers = self._flight.client("consumers.read").consumers
        async for delivery in consumers.read(
            name, queue, generation, number, slice=slice, slices=slices, unsettled=unsettled
        ):
            yield delivery

    async def read_batches(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        slice: int = 0,
        slices: int = 1,
        payloads: bool = True,
        unsettled: bool = False,
    ) -> AsyncIterator[pa.RecordBatch]:
        """See the Flight client."""
        consumers = self._flight.client("consumers.read").consumers
        batches = consumers.read_batches(
            name,
            queue,
            generation,
            number,
            slice=slice,
            slices=slices,
            payloads=payloads,
            unsettled=unsettled,
        )
        async for batch in batches:
            yield batch

    async def record_batch(
        self, name: str, queue: str, generation: int, number: int, batch: pa.RecordBatch, *, part: str = ""
    ) -> None:
        """See the Flight client."""
        consumers = self._flight.client("consumers.record").consumers
        await consumers.record_batch(name, queue, generation, number, batch, part=part)


class AsyncBulkStaging(AsyncStagingGroup):
    """`client.staging`: also with columns, by Arrow Flight."""

    def __init__(self, doer: AsyncDoer, flight: AsyncFlightSide) -> None:
        super().__init__(doer)
        self._flight = flight

    async def stage_batch(
        self,
        token: str,
        chunk: str,
        queue: str,
        batch: pa.RecordBatch,
        *,
        ttl: Duration = "1d",
        skip_invalid: bool = False,
        dead: Dead | Sequence[Dead] | None = None,
    ) -> StageResult:
        """See the Flight client."""
        staging = self._flight.client("staging.stage").staging
        return await staging.stage_batch(
            token, chunk, queue, batch, ttl=ttl, skip_invalid=skip_invalid, dead=dead
        )
