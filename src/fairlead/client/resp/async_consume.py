"""`client.consume` on an event loop: a task claims ahead while there is room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from fairlead.client.resp.calls import SHORT_POLL_MS
from fairlead.client.resp.prefetch import LOOP_WAIT_MS, LoopClaims, Prefetched
from fairlead.errors import FairleadError
from fairlead.model.delivery import Delivery
from fairlead.model.settle import SettleResult, Start
from fairlead.verbs.settle import Settle

if TYPE_CHECKING:
    from fairlead.client.resp.async_core import AsyncRespCore


class AsyncRespConsumption:
    """An endless asynchronous iterator of started deliveries; several tasks may take from it."""

    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        return await self._fetching.next()

    async def aclose(self) -> None:
        """Gives back what was not handed out. What was, stays leased."""
        await self._fetching.close()

    async def __aenter__(self) -> AsyncRespConsumption:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        fetching = getattr(self, "_fetching", None)
        if fetching is not None:
            fetching.abandon()


class Fetching:
    """What a loop has, and the task that claims for it. Apart from what users hold, so that a loop that nobody refers to
    ends.
    """

    def __init__(
        self,
        core: AsyncRespCore,
        queue: str | Sequence[str],
        *,
        prefetch: int,
        max_per_stream: int,
        consumer: str,
    ) -> None:
        self._core = core
        self._claims = LoopClaims(queue, max_per_stream, consumer, core.tokens)
        self._prefetched = Prefetched(prefetch)
        self._loop = asyncio.get_running_loop()
        self._filling: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._error: FairleadError | None = None
        self._is_closed = False
        core.loops.add(self)

    async def next(self) -> Delivery:
        while True:
            if self._is_closed:
                raise StopAsyncIteration
            started = self._prefetched.next_started()
            found = started or self._prefetched.next_to_start()
            self._fill_soon()
            if found is None:
                await self._wait()
                continue
            if started is None and not await self._start(found):
                continue
            self._core.handed_out.add(found, self)
            return found

    async def _start(self, delivery: Delivery) -> bool:
        try:
            (result,) = await self._core.do(Settle([Start(delivery)]))
        except BaseException:
            self.put_back(delivery)
            raise
        return result.ok

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._core.loops.discard(self)
        if self._filling is not None:
            self._filling.cancel()
            with suppress(asyncio.CancelledError):
                await self._filling
        self._wake()
        await self._give_back()

    def abandon(self) -> None:
        """From a destructor, in any thread."""
        if not self._is_closed and not self._core.is_closed:
            # A loop that was closed meanwhile has nobody left to tell.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(lambda: self._core.in_background(self.close()))

    # For settles

    def take_ahead(self) -> Delivery | None:
        return None if self._is_closed else self._prefetched.take_ahead()

    def was_started(self, delivery: Delivery, result: SettleResult) -> None:
        self._prefetched.was_started(delivery, result)
        self._changed()

    def put_back(self, delivery: Delivery) -> None:
        self._prefetched.put_back(delivery)
        self._changed()

    def _changed(self) -> None:
        if self._is_closed:
            self._core.in_background(self._give_back())
        else:
            self._wake()

    async def _give_back(self) -> None:
        left = self._prefetched.take_all()
        if left:
            await self._core.give_back(left)

    # What is claimed

    def _fill_soon(self) -> None:
        if self._filling is None and self._prefetched.room:
            self._filling = self._loop.create_task(self._fill())

    async def _fill(self) -> None:
        try:
            while room := self._prefetched.room:
                began_s = self._loop.time()
                found, now_ms = await self._core.ask(self._claims.make(room), LOOP_WAIT_MS)
                self._core.hold(found, now_ms)
                self._prefetched.add(found)
                self._wake()
                if not found and self._loop.time() - began_s < SHORT_POLL_MS / 1000:
                    await asyncio.sleep(SHORT_POLL_MS / 1000)
        except FairleadError as error:
            self._error = error
            self._wake()
        finally:
            self._filling = None

    async def _wait(self) -> None:
        """Until there may be something. Raises what ended the claiming; the next call begins anew."""
        if self._error is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if self._error is not None and not self._prefetched.has_some:
            error, self._error = self._error, None
            raise error

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
