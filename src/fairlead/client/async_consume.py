"""`client.consume` on an event loop: a subscription sends deliveries ahead, and a task maintains its
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fairlead.client.async_connection import AsyncConnection
from fairlead.client.attempts import TROUBLES, Attempts
from fairlead.client.commands import PING, command_of
from fairlead.client.outage import ConnectionBroken
from fairlead.client.prefetch import LOOP_WAIT_MS, LoopSubscription, Prefetched
from fairlead.errors import FairleadError
from fairlead.model.delivery import Delivery
from fairlead.model.settle import SettleResult, Start
from fairlead.request import Request
from fairlead.verbs.settle import Settle

if TYPE_CHECKING:
    from fairlead.client.async_core import AsyncCore


class AsyncConsumption:
    """An endless asynchronous iterator of started deliveries; several tasks may take from it."""

    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        return await self._fetching.next()

    async def aclose(self) -> None:
        """Return the deliveries that were not handed out. The others stay leased."""
        await self._fetching.close()

    async def __aenter__(self) -> AsyncConsumption:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        fetching = getattr(self, "_fetching", None)
        if fetching is not None:
            fetching.abandon()


class Fetching:
    """The deliveries of a loop, and the task that maintains its subscription. Separate from the object that
    users hold, so that a loop without references ends.
    """

    def __init__(
        self,
        core: AsyncCore,
        queue: str | Sequence[str],
        *,
        prefetch: int,
        max_per_stream: int,
        consumer: str,
    ) -> None:
        self._core = core
        self._prefetched = Prefetched(prefetch)
        self._subscription = LoopSubscription(
            queue,
            self._prefetched,
            max_per_stream=max_per_stream,
            consumer=consumer,
            tokens=core.tokens,
        )
        self._loop = asyncio.get_running_loop()
        self._subscribing: asyncio.Task[None] | None = None
        self._connection: AsyncConnection | None = None
        #: Receives the error that ends the subscription.
        self._ended: asyncio.Future[None]
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
            self._go_on()
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
        if self._subscribing is not None:
            self._subscribing.cancel()
            with suppress(asyncio.CancelledError):
                await self._subscribing
        self._wake()
        await self._end_subscription()
        await self._give_back()

    def abandon(self) -> None:
        """Close the loop; called from a destructor, in any thread."""
        if not self._is_closed and not self._core.is_closed:
            # The event loop may already be closed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(lambda: self._core.in_background(self.close()))

    # Called by settles

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

    # The subscription

    def _go_on(self) -> None:
        if self._subscribing is None:
            self._subscribing = self._loop.create_task(self._subscribe())
        elif self._connection is not None and (credit := self._subscription.more()) is not None:
            self._send(self._connection, credit)

    async def _subscribe(self) -> None:
        """Maintain the subscription until the loop is closed or an error lasts."""
        attempts = self._attempts()
        try:
            while True:
                try:
                    await self._begin(attempts)
                    while True:
                        # The server has answered: a later failure is a new one, with attempts of its own.
                        attempts = self._attempts()
                        await self._listen()
                except TROUBLES as trouble:
                    self._drop_connection()
                    self._core.check()
                    await self._core.pause(attempts, trouble)
        except FairleadError as error:
            self._drop_connection()
            # If no call waits now, drop the error: the next call meets it again if it lasts.
            self._error = error if self._waiters else None
        finally:
            self._subscribing = None
            self._wake()

    def _attempts(self) -> Attempts:
        return self._core.attempts(self._subscription.request, LOOP_WAIT_MS)

    async def _begin(self, attempts: Attempts) -> None:
        timeout_ms = self._core.options.timeout_ms
        connection = await self._core.connections.take(attempts.within_ms(timeout_ms) / 1000)
        self._connection = connection
        self._ended = ended = self._loop.create_future()
        ended.add_done_callback(_ignore)
        connection.on_push = self._hear
        connection.on_lost = self._end
        request, stale = self._subscription.begin(), self._prefetched.stale
        if stale:
            self._send(connection, self._core.letting_go(stale))
        self._subscription.begun(await connection.ask(command_of(request), timeout_ms / 1000))
        self._core.outage_is_over()

    async def _listen(self) -> None:
        """Wait for a while, then check the connection. Raises the error that ended the subscription."""
        connection = self._connection
        assert connection is not None
        await asyncio.wait([self._ended], timeout=LOOP_WAIT_MS / 1000)
        if self._ended.done():
            self._ended.result()
        await connection.ask(PING, self._core.options.timeout_ms / 1000)

    def _hear(self, push: Any) -> None:
        try:
            found, now_ms = self._subscription.hear(push)
        except FairleadError as error:
            self._end(error)
            return
        self._core.hold(found, now_ms)
        self._wake()

    def _end(self, error: Exception) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    def _send(self, connection: AsyncConnection, request: Request[Any]) -> None:
        """Send a request whose reply is ignored."""
        reply = connection.ask(command_of(request), self._core.options.timeout_ms / 1000)
        reply.add_done_callback(_ignore)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        self._subscription.lose()
        if connection is not None:
            connection.on_lost = None
            connection.close()

    async def _end_subscription(self) -> None:
        """Cancel the subscription: the server takes back deliveries that were not started. Closing the
        connection has the same effect.
        """
        connection, cancel = self._connection, self._subscription.end()
        if connection is not None and cancel is not None:
            with suppress(ConnectionBroken, TimeoutError):
                async with asyncio.timeout(self._core.closing_s()):
                    await connection.ask(command_of(cancel), self._core.options.timeout_ms / 1000)
                self._connection = None
                self._core.connections.give_back(connection)
        self._drop_connection()

    async def _wait(self) -> None:
        """Wait until there may be a delivery. Raises the error that ended the subscription; the next call
        starts a new one.
        """
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


def _ignore(done: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved; another place reports the error."""
    if not done.cancelled():
        done.exception()
