"""The asyncio core: one request with all its attempts, the held leases, and the close."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fairlead.client.async_bulk import AsyncFlightSide
from fairlead.client.async_connection import AsyncConnections, Late
from fairlead.client.async_heartbeat import AsyncHeartbeat
from fairlead.client.attempts import TROUBLES, Attempts
from fairlead.client.bulk import BULK
from fairlead.client.calls import (
    POLL_MS,
    SHORT_POLL_MS,
    PreparedExchange,
    PreparedSettle,
    check_bulk_once,
    is_empty,
    is_waiting,
    named,
    repeatable,
    traced,
    travels_alone,
    with_wait,
)
from fairlead.client.commands import PING, answer_of, command_of
from fairlead.client.core_state import CoreState
from fairlead.client.identity import Identity
from fairlead.client.options import Options
from fairlead.client.outage import ConnectionBroken
from fairlead.client.prefetch import finish_starts, items_of, undo_starts
from fairlead.client.session import ClientSession
from fairlead.client.traces import Traces
from fairlead.clock import SystemClock
from fairlead.errors import (
    ClientClosed,
    FairleadError,
    RequestExpired,
    ServerUnreachable,
    SessionExpired,
    StoreFull,
)
from fairlead.model.delivery import Delivery
from fairlead.model.settle import Extend, Release, SettleResult
from fairlead.request import Answer, Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.sessions import CloseSession, OpenSession
from fairlead.verbs.settle import Goodbye, Settle
from fairlead.wire.numbered import Numbered

if TYPE_CHECKING:
    from fairlead.client.async_consume import Fetching


class AsyncCore(CoreState):
    """The state that the client and its loops share: connections, the heartbeat, and the requests with all
    their attempts. It belongs to the event loop that it was made on.
    """

    def __init__(self, options: Options, identity: Identity, traces: Traces) -> None:
        super().__init__(options, identity, traces, SystemClock())
        self._opening = asyncio.Lock()
        self.loops: set[Fetching] = set()
        self._loop = asyncio.get_running_loop()
        self.connections = AsyncConnections(self._loop, identity, options.timeout_ms / 1000)
        self.heartbeat = AsyncHeartbeat(self._send_extends, self.clock, options.heartbeat_cap_ms, self._loop)
        self.flight = AsyncFlightSide(options, identity, self.connections, traces)
        self._background: set[asyncio.Task[None]] = set()
        self._senders: dict[type[Request[Any]], Callable[[Any, Numbered | None], Awaitable[Any]]] = {
            Enqueue: self._enqueue,
            EnqueueMany: self._enqueue,
            Settle: self._settle,
            Claim: self._claim,
            Exchange: self._exchange,
        }

    def do(self, request: Request[Answer], place: Numbered | None = None) -> Awaitable[Answer]:
        """Carry out the request. `place`: in a session that the caller manages."""
        self.check()
        send = self._senders.get(type(request))
        if type(request) in BULK:
            if place is not None:
                check_bulk_once(request)
            asking: Awaitable[Any] = self.flight.do(request)
        else:
            asking = self._plain(request, place) if send is None else send(request, place)
        return asking

    async def close(self, *, goodbye: bool = False) -> None:
        if not self.begin_close():
            return
        try:
            for fetching in list(self.loops):
                await fetching.close()
            if goodbye:
                await self.do(Goodbye(self.options.consumer))
            await self._close_sessions()
        finally:
            self._unusable = ClientClosed
            self.heartbeat.close()
            self.connections.close()
            for task in self._background:
                task.cancel()
            await self.flight.close()

    async def _close_sessions(self) -> None:
        """Close the sessions if the server answers. The others expire."""
        commands = [command_of(CloseSession(name)) for name in self._sessions.end()]
        if self.connections.shared is not None and commands:
            closing = [self.connections.call(command, self.closing_s()) for command in commands]
            await asyncio.gather(*closing, return_exceptions=True)

    # Verbs with preparation

    async def _plain(self, request: Request[Any], place: Numbered | None) -> Any:
        asking = self._ask_waiting(request, place) if is_waiting(request) else self.ask(request, place=place)
        return (await asking)[0]

    async def _settle(self, request: Settle, place: Numbered | None) -> list[SettleResult]:
        settling = PreparedSettle(request.items, self.heartbeat)
        # The caller may repeat a numbered settle, and the repeat must be the same request: so no starts
        # travel with it.
        starts = self.handed_out.starts_for(settling.rows) if place is None else []
        settling.take_along(items_of(starts))
        if not settling.rows:
            return settling.finish([], 0)[0]
        try:
            results, now_ms = await self._ask_once(settling.request(), place)
        except BaseException:
            settling.undo()
            undo_starts(starts)
            raise
        settled, started = settling.finish(results, now_ms)
        finish_starts(starts, started)
        return settled

    async def _claim(self, request: Claim, place: Numbered | None) -> list[Delivery]:
        """The claimed deliveries. A repeat after a lost answer returns the same ones, because the claim has a
        token or a number.
        """
        claim = named(request, self.options.consumer, self.tokens, place)
        found, now_ms = await (
            self._ask_waiting(claim, place) if is_waiting(claim) else self.ask(claim, place=place)
        )
        self.hold(found, now_ms)
        return found

    async def _exchange(self, request: Exchange, place: Numbered | None) -> list[Any]:
        exchange = PreparedExchange(request, self.heartbeat, self.traces, self.options.consumer)
        try:
            answers, now_ms = await self._ask_once(exchange.request, place)
        except BaseException:
            exchange.undo()
            raise
        return exchange.finish(answers, now_ms)

    async def _enqueue(self, request: Enqueue | EnqueueMany, place: Numbered | None) -> Any:
        if not self.traces.are_on:
            return (await self._ask_once(request, place))[0]
        messages = [request.message()] if isinstance(request, Enqueue) else request.messages
        with self.traces.enqueuing(request.queue, messages) as carried:
            return (await self._ask_once(traced(request, carried), place))[0]

    def _send_extends(self, extends: Sequence[Extend]) -> Awaitable[tuple[list[SettleResult], int]]:
        """Queue the extensions at once if there is a connection, before any later command of the caller."""
        request = Settle(extends)
        shared = self.connections.shared
        if shared is None:
            return self.ask(request)
        reply = shared.ask(command_of(request), self.options.timeout_ms / 1000)

        async def answer() -> tuple[list[SettleResult], int]:
            try:
                return answer_of(request, await reply)
            except ConnectionBroken as broken:
                raise ServerUnreachable(self._outage.address, str(broken)) from None

        return answer()

    # Background work

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        if self.is_closed:
            work.close()
            return
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def give_back(self, items: Sequence[Release]) -> None:
        """Release deliveries of a loop. If the release fails, their leases expire, which has the same effect
        for deliveries that were never started.
        """
        settling = PreparedSettle(items, self.heartbeat)
        with suppress(FairleadError):
            await self._call(command_of(settling.request()), self.attempts_to_give_back())

    def _late_of(self, request: Request[Any]) -> Late | None:
        """The handler for an answer whose caller was cancelled: it releases the deliveries."""
        if not isinstance(request, (Claim, Exchange)):
            return None

        def release(reply: Any) -> None:
            with suppress(FairleadError):
                found = _deliveries_in(answer_of(request, reply)[0])
                if found:
                    items = [Release(one, keep_order=True) for one in found]
                    self.in_background(self.give_back(items))

        return release

    # One request

    async def greet(self) -> None:
        await self._call(PING, self.attempts_to_greet())

    async def _ask_once(self, request: Request[Any], place: Numbered | None) -> tuple[Any, int]:
        """Ask in a session of this client, unless the caller has one, so that the request may be repeated
        after a lost answer.

        If the disk has no room for a session, the request is sent without a number, so that requests that
        free space still work.
        """
        if place is not None or repeatable(request):
            return await self.ask(request, place=place)
        ends_ms = self._ends_ms()
        own = self._sessions.take() or await self._find_session(ends_ms)
        try:
            try:
                return await self.ask(request, place=own, ends_ms=ends_ms)
            except SessionExpired:
                # The only copy that was sent met the expired session, so nothing was carried out.
                if own is None:
                    raise
                self._sessions.forget(own)
            own = await self._open_session(ends_ms)
            return await self.ask(request, place=own, ends_ms=ends_ms)
        finally:
            self._sessions.give_back(own)

    async def _find_session(self, ends_ms: int) -> Numbered | None:
        """A place in another session. One call at a time opens a session; the others share open ones, or wait
        for the new one.
        """
        if self._opening.locked() and (place := self._sessions.take(is_opening=True)):
            return place
        try:
            async with asyncio.timeout(max(0, ends_ms - self.clock.monotonic_ms()) / 1000):
                await self._opening.acquire()
        except TimeoutError:
            return await self._open_session(ends_ms)
        try:
            return self._sessions.take(is_opening=True) or await self._open_session(ends_ms)
        finally:
            self._opening.release()

    async def _open_session(self, ends_ms: int) -> Numbered | None:
        session = ClientSession()
        try:
            await self.ask(OpenSession(session.name), ends_ms=ends_ms)
        except StoreFull:
            return None
        return self._sessions.add(session)

    async def ask(
        self,
        request: Request[Answer],
        wait_ms: int = 0,
        *,
        place: Numbered | None = None,
        ends_ms: int | None = None,
    ) -> tuple[Answer, int]:
        """The answer, and the server's clock if the answer has leases."""
        command = command_of(request, place)
        attempts = self.attempts(request, wait_ms, is_numbered=place is not None, ends_ms=ends_ms)
        alone = travels_alone(request, command)
        while True:
            reply = await self._call(
                command, attempts, wait_ms=wait_ms, alone=alone, late=self._late_of(request)
            )
            try:
                return answer_of(request, reply)
            except (SessionExpired, RequestExpired) as expired:
                attempts.check_forgotten(expired)
                raise
            except TROUBLES as trouble:
                await self.pause(attempts, trouble)

    async def _ask_waiting(self, request: Request[Any], place: Numbered | None) -> tuple[Any, int]:
        """Split a long wait into several requests. Returns the first answer with deliveries, or the last."""
        until_ms = self.clock.monotonic_ms() + (request.patience_ms() or 0)
        while True:
            began_ms = self.clock.monotonic_ms()
            left_ms = min(max(0, until_ms - began_ms), POLL_MS)
            answer, now_ms = await self.ask(with_wait(request, left_ms), left_ms, place=place)
            ended_ms = self.clock.monotonic_ms()
            if not is_empty(answer) or ended_ms >= until_ms:
                return answer, now_ms
            if ended_ms - began_ms < SHORT_POLL_MS:
                await asyncio.sleep(SHORT_POLL_MS / 1000)

    async def _call(
        self,
        command: bytes,
        attempts: Attempts,
        *,
        wait_ms: int = 0,
        alone: bool = False,
        late: Late | None = None,
    ) -> Any:
        """The reply, after as many attempts as needed."""
        send = self.connections.call_alone if alone else self.connections.call
        most_ms = wait_ms + self.options.timeout_ms
        while True:
            self.check()
            try:
                reply = await send(command, attempts.within_ms(most_ms) / 1000, late)
            except ConnectionBroken as broken:
                self._sessions.has_copies |= broken.sent
                self.check()
                await self.pause(attempts, broken)
            else:
                self._outage.over()
                return reply

    async def pause(self, attempts: Attempts, trouble: Exception) -> None:
        await asyncio.sleep(attempts.pause_ms(trouble) / 1000)


def _deliveries_in(answer: object) -> list[Delivery]:
    """The deliveries in the answer of a claim, alone or in an exchange."""
    if isinstance(answer, Delivery):
        return [answer]
    return [found for part in answer for found in _deliveries_in(part)] if isinstance(answer, list) else []
