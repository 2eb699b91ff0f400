"""Connections on an event loop. Commands that tasks send in one turn of the loop are one write."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from fairlead.client.commands import (
    NOT_REDIS,
    NOTHING,
    PING,
    Greeting,
    another_protocol,
    greeting_command,
    is_push,
    make_reader,
    read_greeting,
)
from fairlead.client.connection import HOPELESS, NoAnswerInTime
from fairlead.client.diagnosis import SPEAKS_TLS, explain, say_refused, trusting_context
from fairlead.client.identity import Identity
from fairlead.client.outage import ConnectionBroken, MayBeMended
from fairlead.errors import ClientClosed, TlsFailed

_MAX_IDLE = 16

#: Called with the reply to a command whose caller was cancelled.
Late = Callable[[Any], None]


class _Asked:
    """A command and the future of its reply."""

    __slots__ = ("command", "dead_after_s", "future", "late", "sent_s")

    def __init__(
        self, command: bytes, future: asyncio.Future[Any], dead_after_s: float, late: Late | None
    ) -> None:
        self.command = command
        self.future = future
        self.dead_after_s = dead_after_s
        self.late = late
        self.sent_s = 0.0


class AsyncConnection(asyncio.Protocol):
    """One connection. Replies come in the order of the commands.

    A connection that received nothing for as long as its oldest command may take counts as dead; one timer
    checks this.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._reader = make_reader()
        self._queued: list[_Asked] = []
        self._sent: deque[_Asked] = deque()
        self._heard_s = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self.is_lost = False
        self.lost_by: Exception | None = None
        #: Set by a consume loop: called with each push of the server. `on_lost` is called when the connection
        #: is lost.
        self.on_push: Callable[[Any], None] | None = None
        self.on_lost: Callable[[ConnectionBroken], None] | None = None
        self.greeting = Greeting("")

    def ask(self, command: bytes, dead_after_s: float, late: Late | None = None) -> asyncio.Future[Any]:
        """The reply, or `ConnectionBroken`. A command that is cancelled before it was sent is not sent; if it
        is cancelled later, its reply goes to `late`.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.is_lost:
            future.set_exception(ConnectionBroken("the server closed the connection", sent=False))
            return future
        if not self._queued:
            self._loop.call_soon(self._flush)
        self._queued.append(_Asked(command, future, dead_after_s, late))
        return future

    def close(self) -> None:
        self._lose("the client closed the connection")

    @property
    def is_quiet(self) -> bool:
        return not self._sent and not self._queued

    def _flush(self) -> None:
        queued, self._queued = [one for one in self._queued if not one.future.done()], []
        if not queued or self._transport is None or self.is_lost:
            return
        now_s = self._loop.time()
        for asked in queued:
            asked.sent_s = now_s
        self._sent.extend(queued)
        self._transport.write(
            queued[0].command if len(queued) == 1 else b"".join([one.command for one in queued])
        )
        if self._watch is None:
            self._watch = self._loop.call_later(queued[0].dead_after_s, self._look)

    def _look(self) -> None:
        """Check whether the connection is dead. The timer is set again only while replies are due, so a call
        costs no timer.
        """
        self._watch = None
        if not self._sent:
            return
        oldest = self._sent[0]
        dead_s = max(oldest.sent_s, self._heard_s) + oldest.dead_after_s
        if self._loop.time() >= dead_s:
            self._lose("no answer in time")
        else:
            self._watch = self._loop.call_at(dead_s, self._look)

    def _lose(self, what: str) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        if self._watch is not None:
            self._watch.cancel()
        if self._transport is not None:
            self._transport.abort()
        queued, self._queued = self._queued, []
        for asked in (*self._sent, *queued):
            if not asked.future.done():
                asked.future.set_exception(ConnectionBroken(what, sent=asked.sent_s > 0))
        self._sent.clear()
        if self.on_lost is not None:
            self.on_lost(ConnectionBroken(what, sent=True))

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        reader, sent = self._reader, self._sent
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not NOTHING:
                if self.on_push is not None and is_push(reply):
                    self.on_push(reply)
                    continue
                if not sent:
                    self._lose("the server answered what nobody asked")
                    return
                asked = sent.popleft()
                if not asked.future.done():
                    asked.future.set_result(reply)
                elif asked.late is not None:
                    asked.late(reply)
        except NOT_REDIS as wrong:
            self.lost_by = wrong
            self._lose(f"the server does not speak the Redis protocol: {wrong}")

    def connection_lost(self, error: Exception | None) -> None:
        self.lost_by = self.lost_by or error
        self._lose("the server closed the connection" if error is None else str(error))


class AsyncConnections:
    """The connections of one client: one that all tasks share, and those of calls that wait or take long."""

    def __init__(self, loop: asyncio.AbstractEventLoop, identity: Identity, timeout_s: float) -> None:
        self._loop = loop
        self._identity = identity
        self._timeout_s = timeout_s
        self._shared: AsyncConnection | None = None
        self._connecting: asyncio.Task[AsyncConnection] | None = None
        self._idle: list[AsyncConnection] = []
        self._open: set[AsyncConnection] = set()
        self._is_closed = False
        #: Whether the server has ever greeted this client.
        self._has_met = False
        #: The Flight address from the most recent greeting.
        self.flight_address = ""

    @property
    def shared(self) -> AsyncConnection | None:
        """The shared connection, if it is open."""
        return None if self._shared is None or self._shared.is_lost else self._shared

    async def call(self, command: bytes, within_s: float, late: Late | None = None) -> Any:
        """Send the command on the shared connection. Raises `ConnectionBroken`."""
        ends_s = self._loop.time() + within_s
        shared = self.shared or await self._in_time(self._connect_shared(), within_s)
        return await self._reply(shared.ask(command, self._timeout_s, late), ends_s, self._timeout_s)

    async def call_alone(self, command: bytes, within_s: float, late: Late | None = None) -> Any:
        """Send the command on a connection of its own, which later calls reuse.

        If the caller is cancelled, the reply goes to `late`. Without `late` the connection is closed, which
        ends a claim that waits.
        """
        ends_s = self._loop.time() + within_s
        connection = await self.take(within_s)
        future = connection.ask(command, within_s, late)
        try:
            return await self._reply(future, ends_s, within_s)
        finally:
            if connection.is_quiet:
                self.give_back(connection)
            elif late is None:
                connection.close()
            else:
                # The connection stays in use until the reply has come or the time is over.
                connection.ask(PING, within_s).add_done_callback(
                    lambda done: self._after_late(done, connection)
                )

    def close(self) -> None:
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._open):
            connection.close()

    def _after_late(self, done: asyncio.Future[Any], connection: AsyncConnection) -> None:
        if not done.cancelled() and done.exception() is None:
            self.give_back(connection)

    async def _reply(self, future: asyncio.Future[Any], ends_s: float, usual_s: float) -> Any:
        left_s = ends_s - self._loop.time()
        if left_s > usual_s - 0.1:
            # The connection watches this limit by itself.
            return await future
        try:
            async with asyncio.timeout(max(0, left_s)):
                return await future
        except TimeoutError:
            raise NoAnswerInTime() from None

    async def _connect_shared(self) -> AsyncConnection:
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._connect())
            # By then all callers that wait for the connection may have given up.
            self._connecting.add_done_callback(lambda done: done.cancelled() or done.exception())
        connecting = self._connecting
        try:
            # Shielded: other callers may wait for this connection too.
            self._shared = await asyncio.shield(connecting)
        finally:
            if connecting.done() and self._connecting is connecting:
                self._connecting = None
        return self._shared

    async def _in_time(self, connecting: Any, within_s: float) -> AsyncConnection:
        try:
            async with asyncio.timeout(max(0, within_s)):
                connection: AsyncConnection = await connecting
        except TimeoutError:
            raise NoAnswerInTime(sent=False) from None
        return connection

    async def take(self, within_s: float) -> AsyncConnection:
        """A connection for this caller alone. The caller must `give_back` the connection when all replies
        have come, else close it.
        """
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_lost:
                return connection
        return await self._in_time(self._connect(), within_s)

    def give_back(self, connection: AsyncConnection) -> None:
        connection.on_push = connection.on_lost = None
        if connection.is_lost or self._is_closed or len(self._idle) >= _MAX_IDLE:
            connection.close()
            self._open.discard(connection)
        else:
            self._idle.append(connection)

    async def _connect(self) -> AsyncConnection:
        """A connected and greeted connection."""
        try:
            connection = await self._connect_once()
        except HOPELESS as hopeless:
            if self._has_met:
                raise MayBeMended(hopeless) from None
            raise
        self._has_met = True
        self.flight_address = connection.greeting.flight_address
        return connection

    async def _connect_once(self) -> AsyncConnection:
        self._open = {one for one in self._open if not one.is_lost}
        connection: AsyncConnection | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._open_one()
                self._open.add(connection)
                reply = await connection.ask(greeting_command(self._identity.api_key), self._timeout_s)
            if self._is_closed:
                raise ClientClosed()
            connection.greeting = read_greeting(reply)
        except BaseException as trouble:
            if connection is not None:
                connection.close()
            if isinstance(trouble, TimeoutError):
                raise NoAnswerInTime(sent=False) from None
            if not isinstance(trouble, ConnectionBroken):
                raise
            if connection is not None and (hopeless := await self._why_hopeless(connection)):
                raise TlsFailed(str(self._identity.endpoint), hopeless) from None
            if connection is not None and isinstance(connection.lost_by, NOT_REDIS):
                raise another_protocol() from None
            raise ConnectionBroken(str(trouble), sent=False) from None
        return connection

    async def _why_hopeless(self, connection: AsyncConnection) -> str:
        """Why the greeting failed, if TLS explains the failure; "" if another attempt may help."""
        endpoint, tls = self._identity.endpoint, self._identity.tls
        if endpoint.path:
            return ""
        if tls is not None:
            name, cause = self._identity.server_name or endpoint.host, connection.lost_by
            if isinstance(cause, ssl.SSLError):
                return explain(cause, name, tls)
            # The blocking client's `_why_refused` has the reason.
            error = await self._shake_hands(self._identity.older_context(), name)
            return say_refused(tls) if isinstance(error, (ssl.SSLError, ConnectionResetError)) else ""
        error = await self._shake_hands(trusting_context(), "")
        # A server that refuses the handshake with a TLS alert does speak TLS.
        speaks = error is None or (isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""))
        return SPEAKS_TLS if speaks else ""

    async def _shake_hands(self, context: ssl.SSLContext, name: str) -> Exception | None:
        """Try a TLS handshake on a separate connection. Returns the error; None if the handshake succeeded."""
        endpoint = self._identity.endpoint
        try:
            async with asyncio.timeout(self._timeout_s):
                transport, _ = await self._loop.create_connection(
                    asyncio.Protocol, endpoint.host, endpoint.port, ssl=context, server_hostname=name
                )
        except OSError as error:
            return error
        transport.abort()
        return None

    async def _open_one(self) -> AsyncConnection:
        endpoint, context = self._identity.endpoint, self._identity.context()
        name = self._identity.server_name or endpoint.host
        loop = self._loop
        try:
            if endpoint.path:
                _, connection = await loop.create_unix_connection(
                    lambda: AsyncConnection(loop), endpoint.path
                )
            else:
                transport, connection = await loop.create_connection(
                    lambda: AsyncConnection(loop),
                    endpoint.host,
                    endpoint.port,
                    ssl=context,
                    server_hostname=None if context is None else name,
                )
                transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except ssl.SSLError as error:
            assert self._identity.tls is not None
            if hopeless := explain(error, name, self._identity.tls):
                raise TlsFailed(str(endpoint), hopeless) from None
            raise ConnectionBroken(str(error), sent=False) from None
        except (OSError, UnicodeError) as error:
            raise ConnectionBroken(getattr(error, "strerror", None) or str(error), sent=False) from None
        return connection
