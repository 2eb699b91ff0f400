"""The asyncio face of the client: `async with await fairlead.aio.connect("host:5556") as client`.

The same core as the synchronous client, with its threads; nothing here blocks the event loop. Cancelling a
call does not call back what was already sent: an enqueue may still take effect, a settle too, and a claim's
deliveries are released as soon as they arrive. What was not sent yet is not sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from fairlead.client.async_bulk import AsyncConsumers, AsyncStaging, in_threads
from fairlead.client.client import Client
from fairlead.client.client import connect as connect_blocking
from fairlead.client.consume import Puller, close_puller
from fairlead.client.gather import Gatherer, Work
from fairlead.client.groups import ClientAudit, ClientConfig, ClientKeys, ClientRunbooks
from fairlead.client.requests import Put, Settling
from fairlead.client.tls import TlsChoice
from fairlead.errors import FairleadError
from fairlead.model.access import AuditRecord, Grant, KeyInfo, NewKey
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.message import NewMessage
from fairlead.model.settle import Handle, Release, Settlement, SettleResult, Start
from fairlead.model.views import ExchangeResult

if TYPE_CHECKING:
    import pyarrow as pa  # when it is missing, fairlead.client says so

__all__ = ["AsyncClient", "connect"]

P = ParamSpec("P")
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
) -> AsyncClient:
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
    return AsyncClient(await asyncio.get_running_loop().run_in_executor(None, make))


def _in_thread(
    verb: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """A verb of the client, run by a thread of its core. Cancelled, it releases what it still leases."""

    async def run(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._core.check()
        future = self._core.crew.submit(verb, self._client, *args, **kwargs)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._release_unwanted)
            raise

    functools.update_wrapper(run, verb)
    return run


async def _gathered(gatherer: Gatherer[W, T], work: W) -> T:
    future = gatherer.submit(work)
    try:
        async with asyncio.timeout(gatherer.left_s()):
            return await asyncio.wrap_future(future)
    except TimeoutError:
        raise gatherer.late(sent=not future.cancelled()) from None


class AsyncClient:
    """Made by `connect`. Its verbs are the broker's, each a coroutine."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._core = client._core
        self._requests = client._requests
        self.config = AsyncConfig(client.config, self)
        self.runbooks = AsyncRunbooks(client.runbooks, self)
        self.keys = AsyncKeys(client.keys, self)
        self.audit = AsyncAudit(client.audit, self)
        self.consumers = AsyncConsumers(client.consumers, self._core.crew)
        self.staging = AsyncStaging(client.staging, self._core.crew)

    @property
    def consumer(self) -> str:
        return self._client.consumer

    create_queue = _in_thread(Client.create_queue)
    update_queue = _in_thread(Client.update_queue)
    pause = _in_thread(Client.pause)
    resume = _in_thread(Client.resume)
    purge = _in_thread(Client.purge)
    delete_queue = _in_thread(Client.delete_queue)
    queues = _in_thread(Client.queues)
    stats = _in_thread(Client.stats)
    quarantine = _in_thread(Client.quarantine)
    ack = _in_thread(Client.ack)
    nack = _in_thread(Client.nack)
    goodbye = _in_thread(Client.goodbye)
    claim = _in_thread(Client.claim)
    exchange = _in_thread(Client.exchange)
    retry = _in_thread(Client.retry)
    drop = _in_thread(Client.drop)
    done = _in_thread(Client.done)
    bury = _in_thread(Client.bury)
    hold = _in_thread(Client.hold)
    unhold = _in_thread(Client.unhold)
    fail = _in_thread(Client.fail)
    drain = _in_thread(Client.drain)
    prune = _in_thread(Client.prune)
    release_stream = _in_thread(Client.release_stream)
    redrive = _in_thread(Client.redrive)
    intents = _in_thread(Client.intents)
    cancel_intent = _in_thread(Client.cancel_intent)
    find = _in_thread(Client.find)
    twin = _in_thread(Client.twin)
    peek = _in_thread(Client.peek)
    browse = _in_thread(Client.browse)
    browse_splits = _in_thread(Client.browse_splits)
    failure_metrics = _in_thread(Client.failure_metrics)
    explain = _in_thread(Client.explain)
    explain_queue = _in_thread(Client.explain_queue)
    checkpoint = _in_thread(Client.checkpoint)

    async def enqueue(
        self,
        queue: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        fairness_key: str = DEFAULT_KEY,
        weight: int = 1,
        throttle_keys: Sequence[str] = (),
        stream: str | None = None,
        delay: Duration | None = None,
        dedup_key: str | None = None,
        ttl: Duration | None = None,
    ) -> str:
        """Goes together with what other tasks enqueue meanwhile."""
        message = NewMessage(
            payload, headers, fairness_key, weight, throttle_keys, stream, delay, dedup_key, ttl
        )
        return (await self.enqueue_many(queue, [message]))[0]

    async def enqueue_many(self, queue: str, messages: Sequence[NewMessage]) -> list[str]:
        self._core.check()
        with self._client._traces.enqueuing(queue, messages) as carried:
            return await _gathered(self._requests.enqueues, Put.of(queue, carried))

    async def settle(self, items: Sequence[Settlement]) -> list[SettleResult]:
        self._core.check()
        settling = Settling(self._requests.heartbeat, items)
        if not settling.said.rows:
            return settling.finish(([], 0))
        try:
            return settling.finish(await _gathered(self._requests.settles, settling.said))
        except BaseException:
            settling.undo()
            raise

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

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _release_unwanted(self, future: Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        result = future.result()
        found = (
            result.deliveries
            if isinstance(result, ExchangeResult)
            else result
            if isinstance(result, list)
            else []
        )
        with contextlib.suppress(FairleadError):
            self._client.settle(
                [Release(item, keep_order=True) for item in found if isinstance(item, Delivery)]
            )


class AsyncConfig:
    """`client.config`: the server's runtime configuration."""

    def __init__(self, config: ClientConfig, client: AsyncClient) -> None:
        self._config = config
        self._crew = client._core.crew

    async def get(self, key: str) -> str:
        return await asyncio.wrap_future(self._crew.submit(self._config.get, key))

    async def set(self, key: str, value: str | float) -> None:
        await asyncio.wrap_future(self._crew.submit(self._config.set, key, value))

    async def delete(self, key: str) -> None:
        await asyncio.wrap_future(self._crew.submit(self._config.delete, key))

    async def list(self, prefix: str = "") -> dict[str, str]:
        return await asyncio.wrap_future(self._crew.submit(self._config.list, prefix))


class AsyncKeys:
    """`client.keys`: the API keys of the server."""

    def __init__(self, keys: ClientKeys, client: AsyncClient) -> None:
        self._keys = keys
        self._crew = client._core.crew

    async def create(
        self,
        name: str,
        grants: Iterable[Grant | str] = (),
        *,
        expires_in: Duration | None = None,
        expires_at: int | None = None,
    ) -> NewKey:
        return await asyncio.wrap_future(
            self._crew.submit(self._keys.create, name, grants, expires_in=expires_in, expires_at=expires_at)
        )

    async def list(self) -> list[KeyInfo]:
        return await asyncio.wrap_future(self._crew.submit(self._keys.list))

    async def show(self, key_id: str = "") -> KeyInfo:
        return await asyncio.wrap_future(self._crew.submit(self._keys.show, key_id))

    async def set_grants(self, key_id: str, grants: Iterable[Grant | str]) -> KeyInfo:
        return await asyncio.wrap_future(self._crew.submit(self._keys.set_grants, key_id, grants))

    async def change_grants(
        self, key_id: str, *, add: Iterable[Grant | str] = (), remove: Iterable[Grant | str] = ()
    ) -> KeyInfo:
        return await asyncio.wrap_future(
            self._crew.submit(self._keys.change_grants, key_id, add=add, remove=remove)
        )

    async def revoke(self, key_id: str) -> None:
        await asyncio.wrap_future(self._crew.submit(self._keys.revoke, key_id))

    async def rotate(self, key_id: str, *, keep: Duration | None = None) -> NewKey:
        return await asyncio.wrap_future(self._crew.submit(self._keys.rotate, key_id, keep=keep))


class AsyncAudit:
    """`client.audit`: who did what at the server."""

    def __init__(self, audit: ClientAudit, client: AsyncClient) -> None:
        self._audit = audit
        self._crew = client._core.crew

    async def read(
        self,
        *,
        limit: int = 100,
        before: int | None = None,
        who: str | None = None,
        verb: str | None = None,
        queue: str | None = None,
        since: int | None = None,
    ) -> list[AuditRecord]:
        read = functools.partial(
            self._audit.read, limit=limit, before=before, who=who, verb=verb, queue=queue, since=since
        )
        return await asyncio.wrap_future(self._crew.submit(read))


class AsyncRunbooks:
    """`client.runbooks`: the runbooks in force at the server."""

    def __init__(self, runbooks: ClientRunbooks, client: AsyncClient) -> None:
        self._runbooks = runbooks
        self._crew = client._core.crew

    async def save(self, project: str, text: str) -> None:
        await asyncio.wrap_future(self._crew.submit(self._runbooks.save, project, text))

    async def get(self, project: str) -> str:
        return await asyncio.wrap_future(self._crew.submit(self._runbooks.get, project))

    async def list(self) -> dict[str, str]:
        return await asyncio.wrap_future(self._crew.submit(self._runbooks.list))


class AsyncConsumption:
    """An endless asynchronous iterator of started deliveries; several tasks may take from it."""

    def __init__(self, puller: Puller, client: AsyncClient) -> None:
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
