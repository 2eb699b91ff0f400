"""The asyncio forms of `client.consumers` and `client.staging`: each call runs in a thread of the client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pyarrow as pa

from fairlead.client.crew import Crew
from fairlead.errors import ClientClosed
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.staging import Dead, StageResult
from fairlead.surface import AsyncConsumersGroup, AsyncStagingGroup
from fairlead.verbs.consumers import ConsumersRead

if TYPE_CHECKING:
    from fairlead.client.async_client import AsyncBulkClient

P = ParamSpec("P")
T = TypeVar("T")


class AsyncConsumers(AsyncConsumersGroup):
    """`client.consumers`: durable consumers and their numbered claims, also with columns."""

    def __init__(self, client: AsyncBulkClient) -> None:
        super().__init__(client)
        self._client = client._client
        self._crew = client._core.crew

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
        """By the page: a thread of the client waits for the next batch, not one for every delivery."""
        request = ConsumersRead(name, queue, generation, number, slice, slices, unsettled)
        async for page in in_threads(self._crew, self._client.do(request)):
            for delivery in page:
                yield delivery

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
        """The deliveries of a slice as record batches; see `ClientConsumers.read_batches`."""
        batches = self._client.consumers.read_batches(
            name,
            queue,
            generation,
            number,
            slice=slice,
            slices=slices,
            payloads=payloads,
            unsettled=unsettled,
        )
        return in_threads(self._crew, batches)

    async def record_batch(
        self, name: str, queue: str, generation: int, number: int, batch: pa.RecordBatch, *, part: str = ""
    ) -> None:
        """`record` with the columns of `wire.schemas.SETTLEMENTS`."""
        record = self._client.consumers.record_batch
        await in_thread(self._crew, record, name, queue, generation, number, batch, part=part)


class AsyncStaging(AsyncStagingGroup):
    """`client.staging`: chunks of messages that become visible together, also with columns."""

    def __init__(self, client: AsyncBulkClient) -> None:
        super().__init__(client)
        self._client = client._client
        self._crew = client._core.crew

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
        stage = self._client.staging.stage_batch
        return await in_thread(
            self._crew, stage, token, chunk, queue, batch, ttl=ttl, skip_invalid=skip_invalid, dead=dead
        )


async def in_thread(crew: Crew, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.wrap_future(crew.submit(call, *args, **kwargs))


async def in_threads(crew: Crew, items: Iterator[T]) -> AsyncIterator[T]:
    """Each step of a blocking iterator in a thread. Left early or cancelled, the iterator is closed once its
    step is over.
    """
    step = None
    try:
        while True:
            step = crew.submit(next, items, _END)
            item = await asyncio.wrap_future(step)
            if item is _END:
                return
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None and step is not None:
            # A generator that runs in another thread cannot be closed from this one.
            step.add_done_callback(lambda _: _close(crew, close))


def _close(crew: Crew, close: Callable[[], object]) -> None:
    # A client that is closed has let go of its channels already.
    with contextlib.suppress(ClientClosed):
        crew.submit(close)


_END: Any = object()
