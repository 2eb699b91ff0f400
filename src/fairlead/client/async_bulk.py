"""The asyncio faces of `client.consumers` and `client.staging`: each verb runs in a thread of the client's
core.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from fairlead.client.bulk import ClientConsumers, ClientStaging
from fairlead.client.crew import Crew
from fairlead.errors import ClientClosed
from fairlead.model.delivery import Delivery

Group = TypeVar("Group")
P = ParamSpec("P")
T = TypeVar("T")


class _InThreads:
    def __init__(self, group: object, crew: Crew) -> None:
        self._group = group
        self._crew = crew


def _in_thread(
    verb: Callable[Concatenate[Group, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    async def run(self: _InThreads, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._crew.submit(verb, self._group, *args, **kwargs))  # type: ignore[arg-type]

    functools.update_wrapper(run, verb)
    return run


class AsyncConsumers(_InThreads):
    """`client.consumers`: durable consumers and their numbered claims."""

    register = _in_thread(ClientConsumers.register)
    claim = _in_thread(ClientConsumers.claim)
    record = _in_thread(ClientConsumers.record)
    record_batch = _in_thread(ClientConsumers.record_batch)
    take_up = _in_thread(ClientConsumers.take_up)
    choose = _in_thread(ClientConsumers.choose)
    close = _in_thread(ClientConsumers.close)
    heartbeat = _in_thread(ClientConsumers.heartbeat)
    ceiling = _in_thread(ClientConsumers.ceiling)
    release = _in_thread(ClientConsumers.release)
    drop = _in_thread(ClientConsumers.drop)
    list = _in_thread(ClientConsumers.list)
    show = _in_thread(ClientConsumers.show)

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
        assert isinstance(self._group, ClientConsumers)
        pages = self._group._read_pages(
            name, queue, generation, number, slice=slice, slices=slices, unsettled=unsettled
        )
        async for page in in_threads(self._crew, pages):
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
        assert isinstance(self._group, ClientConsumers)
        batches = self._group.read_batches(
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


class AsyncStaging(_InThreads):
    """`client.staging`: chunks of messages that become visible together."""

    stage = _in_thread(ClientStaging.stage)
    stage_batch = _in_thread(ClientStaging.stage_batch)
    publish = _in_thread(ClientStaging.publish)
    discard = _in_thread(ClientStaging.discard)
    list = _in_thread(ClientStaging.list)


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
