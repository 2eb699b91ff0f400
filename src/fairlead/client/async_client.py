"""The asyncio client of Arrow Flight. The same core as the synchronous client, with its threads; nothing here blocks the event loop. Cancelling a
call does not call back what was already sent: an enqueue may still take effect, a settle too, and a claim's
deliveries are released as soon as they arrive. What was not sent yet is not sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from fairlead.client.async_bulk import AsyncConsumers, AsyncStaging, in_threads
from fairlead.client.client import BulkClient
from fairlead.client.client import connect as connect_blocking
from fairlead.client.consume import Puller, close_puller
from fairlead.client.gather import Gatherer, Work
from fairlead.client.requests import Put
from fairlead.client.settling import Settling
from fairlead.client.tls import TlsChoice
from fairlead.errors import FairleadError
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.settle import Handle, Release, SettleResult, Start
from fairlead.request import Answer, Request
from fairlead.surface import AsyncSurface
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.settle import Settle

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AsyncBulkClient", "connect"]

T = TypeVar("T")
W = TypeVar("W", bound=Work)


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
) -> AsyncBulkClient:
    """As `fairlead.connect`, without blocking the event loop."""
    make = functools.partial(
        connect_blocking,
        address,
        consumer=consumer,
        retry_for=retry_for,
        timeout=timeout,
        heartbeat_cap=heartbeat_cap,
        tracing=tracing,
        api_key=api_key,
        tls=tls,
    )
    return AsyncBulkClient(await asyncio.get_running_loop().run_in_executor(None, make))


async def _gathered(gatherer: Gatherer[W, T], work: W) -> T:
    future = gatherer.submit(work)
    try:
        async with asyncio.timeout(gatherer.left_s()):
            return await asyncio.wrap_future(future)
    except TimeoutError:
        raise gatherer.late(sent=not future.cancelled()) from None


class AsyncBulkClient(AsyncSurface):
    """Made by `connect`. Its verbs are the broker's, each a coroutine."""

    def __init__(self, client: BulkClient) -> None:
        self._client = client
        self._core = client._core
        self._requests = client._requests
        self.consumers = AsyncConsumers(self)
        self.staging = AsyncStaging(self)

    @property
    def consumer(self) -> str:
        return self._client.consumer

    async def do(self, request: Request[Answer]) -> Answer:
        """Enqueues and settles of several tasks travel together; every other request takes a thread of the
        client. Cancelled, it releases what it has leased meanwhile.
        """
        self._core.check()
        send = self._senders.get(type(request))
        if send is not None:
            return cast(Answer, await send(self, request))
        return await self._in_thread(self._core.crew.submit(self._client.do, request))

    async def once(self, request: Request[Answer], *, session: str, number: int, arrived: int = 0) -> Answer:
        self._core.check()
        call = functools.partial(self._client.once, request, session=session, number=number, arrived=arrived)
        return await self._in_thread(self._core.crew.submit(call))

    async def _in_thread(self, future: Future[T]) -> T:
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._release_unwanted)
            raise

    async def _enqueue(self, request: Enqueue) -> str:
        return (await self._enqueue_many(EnqueueMany(request.queue, [request.message()])))[0]

    async def _enqueue_many(self, request: EnqueueMany) -> list[str]:
        with self._requests.traces.enqueuing(request.queue, request.messages) as carried:
            return await _gathered(self._requests.enqueues, Put.of(request.queue, carried))

    async def _settle(self, request: Settle) -> list[SettleResult]:
        settling = Settling(self._requests.heartbeat, request.items)
        if not settling.said.rows:
            return settling.finish(([], 0))
        try:
            return settling.finish(await _gathered(self._requests.settles, settling.said))
        except BaseException:
            settling.undo()
            raise

    _senders: ClassVar[dict[type[Request[Any]], Callable[[Any, Any], Awaitable[Any]]]] = {
        Enqueue: _enqueue,
        EnqueueMany: _enqueue_many,
        Settle: _settle,
    }

    def consume(
        self, queue: str | Sequence[str], *, prefetch: int = 100, max_per_stream: int = 1, consumer: str = ""
    ) -> AsyncConsumption:
        """`async for delivery in client.consume("orders")`; settle each delivery yourself."""
        puller = Puller(
            self._requests, queue, prefetch=prefetch, max_per_stream=max_per_stream, consumer=consumer
        )
        puller.start()
        return AsyncConsumption(puller, self)

    def browse_batches(
        self, queue: str, *, view: str = "messages", low: str = "", high: str = "", payloads: bool = True
    ) -> AsyncIterator[pa.RecordBatch]:
        return in_threads(
            self._core.crew,
            self._client.browse_batches(queue, view=view, low=low, high=high, payloads=payloads),
        )

    def process_span(self, delivery: Delivery) -> AbstractContextManager[None]:
        """A plain `with`: the span is that of the task around it."""
        return self._client.process_span(delivery)

    def is_lost(self, delivery: Handle) -> bool:
        return self._client.is_lost(delivery)

    async def close(self, *, goodbye: bool = False) -> None:
        await asyncio.get_running_loop().run_in_executor(
            None, functools.partial(self._client.close, goodbye=goodbye)
        )

    async def __aenter__(self) -> AsyncBulkClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _release_unwanted(self, future: Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        with contextlib.suppress(FairleadError):
            found = _deliveries_in(future.result())
            self._client.settle([Release(item, keep_order=True) for item in found])


def _deliveries_in(answer: object) -> list[Delivery]:
    """Those of a claim, alone or in an exchange."""
    if isinstance(answer, Delivery):
        return [answer]
    return [found for part in answer for found in _deliveries_in(part)] if isinstance(answer, list) else []


class AsyncConsumption:
    """An endless asynchronous iterator of started deliveries; several tasks may take from it."""

    def __init__(self, puller: Puller, client: AsyncBulkClient) -> None:
        self._puller = puller
        self._client = client

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        while True:
            delivery = await self._take()
            try:
                (result,) = await self._client.settle([Start(delivery)])
            except BaseException:
                # In a thread: a cancelled task must not wait for the network.
                self._client._core.crew.submit(self._puller.put_back, delivery)
                raise
            if result.ok:
                return delivery

    async def aclose(self) -> None:
        """Gives back what was not handed out. What was, stays leased."""
        await asyncio.wrap_future(self._client._core.crew.submit(close_puller, self._puller))

    async def __aenter__(self) -> AsyncConsumption:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        puller = getattr(self, "_puller", None)
        if puller is not None and not puller.stopped:
            puller.core.reaper.put(puller)

    async def _take(self) -> Delivery:
        while True:
            try:
                found = self._puller.find()
            except StopIteration:
                raise StopAsyncIteration from None
            if found is not None:
                return found
            await self._change()

    async def _change(self) -> None:
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not changed.done():
                changed.set_result(None)

        def tell() -> None:
            # A loop that was closed meanwhile has nobody left to tell.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(wake)

        self._puller.call_when_changed(tell)
        await changed
