"""Bulk verbs of the asyncio client, over Arrow Flight; see `bulk`. Each call waits in a thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fairlead.client.bulk import make_bulk
from fairlead.client.identity import Identity
from fairlead.client.options import Options
from fairlead.client.traces import Traces
from fairlead.errors import ClientClosed
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.staging import Dead, StageResult
from fairlead.request import Answer, Request
from fairlead.surface import AsyncConsumersGroup, AsyncDoer, AsyncStagingGroup
from fairlead.verbs.browse import Browse
from fairlead.verbs.consumers import ConsumersRead, ConsumersRecord
from fairlead.verbs.staging import StagingStage

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.client.async_connection import AsyncConnections
    from fairlead.client.flight.bulk import Bulk
    from fairlead.client.flight.daemon_threads import DaemonThreads

P = ParamSpec("P")
T = TypeVar("T")


class AsyncFlightSide:
    """The Flight part of an asyncio client. The first bulk verb connects it."""

    def __init__(
        self, options: Options, identity: Identity, connections: AsyncConnections, traces: Traces
    ) -> None:
        self._options = options
        self._identity = identity
        self._connections = connections
        self._traces = traces
        self._bulk: Bulk | None = None

    async def do(self, request: Request[Answer]) -> Answer:
        bulk = self._open(request.verb_name)
        return await _in_thread(bulk.core.threads, bulk.do, request)

    async def read(self, request: ConsumersRead) -> AsyncIterator[Delivery]:
        """Read by page: a thread waits for the next batch, not for each delivery."""
        bulk = self._open(request.verb_name)
        async for page in _in_threads(bulk.core.threads, bulk.read(request)):
            for delivery in page:
                yield delivery

    def read_batches(self, request: ConsumersRead, *, payloads: bool) -> AsyncIterator[pa.RecordBatch]:
        bulk = self._open(request.verb_name)
        return _in_threads(bulk.core.threads, bulk.read_batches(request, payloads=payloads))

    def browse_batches(self, request: Browse, *, payloads: bool) -> AsyncIterator[pa.RecordBatch]:
        bulk = self._open(request.verb_name)
        return _in_threads(bulk.core.threads, bulk.browse_batches(request, payloads=payloads))

    async def record_batch(self, request: ConsumersRecord, batch: pa.RecordBatch) -> None:
        bulk = self._open(request.verb_name)
        await _in_thread(bulk.core.threads, bulk.record_batch, request, batch)

    async def stage_batch(self, request: StagingStage, batch: pa.RecordBatch) -> StageResult:
        bulk = self._open(request.verb_name)
        return await _in_thread(bulk.core.threads, bulk.stage_batch, request, batch)

    async def close(self) -> None:
        if self._bulk is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._bulk.close)

    def _open(self, verb: str) -> Bulk:
        """The bulk client. Raises `InvalidRequest` if the server has no Flight address or this program no
        pyarrow. Does not wait.
        """
        if self._bulk is None:
            told = self._connections.flight_address
            self._bulk = make_bulk(verb, told, self._options, self._identity, self._traces)
        return self._bulk


class AsyncBulkConsumers(AsyncConsumersGroup):
    """`client.consumers` with record batches, over Arrow Flight."""

    def __init__(self, doer: AsyncDoer, flight: AsyncFlightSide) -> None:
        super().__init__(doer)
        self._flight = flight

    def read(
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
        return self._flight.read(ConsumersRead(name, queue, generation, number, slice, slices, unsettled))

    def read_batches(
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
        """The deliveries of a slice as record batches; see `BulkConsumers.read_batches`."""
        request = ConsumersRead(name, queue, generation, number, slice, slices, unsettled)
        return self._flight.read_batches(request, payloads=payloads)

    async def record_batch(
        self, name: str, queue: str, generation: int, number: int, batch: pa.RecordBatch, *, part: str = ""
    ) -> None:
        """`record` with the columns of `wire.schemas.SETTLEMENTS`."""
        await self._flight.record_batch(ConsumersRecord(name, queue, generation, number, (), part), batch)


class AsyncBulkStaging(AsyncStagingGroup):
    """`client.staging` with record batches, over Arrow Flight."""

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
        """`stage` with the columns of `wire.schemas.MESSAGES`."""
        return await self._flight.stage_batch(
            StagingStage(token, chunk, queue, (), ttl, skip_invalid, dead), batch
        )


async def _in_thread(threads: DaemonThreads, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.wrap_future(threads.submit(call, *args, **kwargs))


async def _in_threads(threads: DaemonThreads, items: Iterator[T]) -> AsyncIterator[T]:
    """Run each step of a blocking iterator in a thread. If the caller leaves early or is cancelled, the
    iterator is closed after its current step.
    """
    step = None
    try:
        while True:
            step = threads.submit(next, items, _END)
            item = await asyncio.wrap_future(step)
            if item is _END:
                return
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None and step is not None:
            # A generator that runs in another thread cannot be closed from this one.
            step.add_done_callback(lambda _: _close(threads, close))


def _close(threads: DaemonThreads, close: Callable[[], object]) -> None:
    # A closed client has already closed its channels.
    with contextlib.suppress(ClientClosed):
        threads.submit(close)


_END: Any = object()
