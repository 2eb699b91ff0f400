"""Connections of the HTTP door: their number, how slow each may be, and TLS.

uvicorn and h11 read and write HTTP. Guarantees: slow, silent and malformed clients keep no other client out,
and no part of a refused request is read as another one. Everything here runs on the event loop of the doors.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import sys
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

import h11
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fairlead.server.http_answers import problem, written_out
from fairlead.server.limits import Limit, Limits

if TYPE_CHECKING:
    from fairlead.server.certificates import Certificates

_log = logging.getLogger("fairlead.http")
#: uvicorn warns of every malformed request, so clients could fill the log.
_uvicorn_log = logging.getLogger("fairlead.http.uvicorn")
_uvicorn_log.setLevel(logging.ERROR)

#: The largest request line with all headers. h11 compares the size of a head with its limit only while the
#: head is incomplete, so it is given what came in pieces.
_MAX_HEAD_BYTES = 64 * 1024
_PIECE_BYTES = 16 * 1024
#: How long a refused client may continue to send before its connection is closed.
_REFUSED_S = 1.0
_ACCEPT_AGAIN_S = 0.1
_BACKLOG = 128
_STOP_S = 5.0
#: The first byte of a TLS client. No HTTP method begins with it.
_HANDSHAKE = b"\x16"


class Connections:
    """At most `most` connections that wait for their clients: one more closes the one whose client has been
    slow for longest.

    While all of them are being served, as many again are accepted, so that a health check need not wait for
    scrapes.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, most: int, timeout_s: float, certificates: Certificates | None
    ) -> None:
        self._config = Config(
            app,
            interface="asgi3",
            ws="none",
            workers=1,
            log_config=None,
            proxy_headers=False,
            timeout_keep_alive=math.ceil(timeout_s),
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES - _PIECE_BYTES,
        )
        self._config.load()
        self._limits = limits
        self._most = most
        self._timeout_s = timeout_s
        self._certificates = certificates
        #: Each with the time when its client has been too slow; None while the server works for it.
        self._open: dict[asyncio.Task[None], asyncio.Timeout] = {}
        self._accepting: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Returns the address with the real port."""
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        both = family == socket.AF_INET6
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listener))
        bound = listener.getsockname()
        return str(bound[0]), int(bound[1])

    async def close(self) -> None:
        """Also closes connections that are being served."""
        assert self._accepting is not None
        tasks = [self._accepting, *self._open]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_STOP_S)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError:
                    # The client left, or no more files may be open.
                    await asyncio.sleep(_ACCEPT_AGAIN_S)
                else:
                    self._admit(connection)
                    # A backlog of clients is accepted without a wait, and would occupy the loop.
                    await asyncio.sleep(0)

    def _admit(self, connection: socket.socket) -> None:
        if len(self) >= self._most:
            self._limits.refused(Limit.HTTP_CONNECTIONS)
            waiting = {
                end_s: task
                for task, patience in self._open.items()
                if (end_s := patience.when()) is not None and not task.cancelling()
            }
            if waiting:
                waiting[min(waiting)].cancel()
            elif len(self) >= 2 * self._most:
                connection.close()
                return
        patience = asyncio.timeout(self._timeout_s)
        task = asyncio.create_task(self._serve(connection, patience))
        self._open[task] = patience
        task.add_done_callback(self._open.pop)

    async def _serve(self, connection: socket.socket, patience: asyncio.Timeout) -> None:
        spoken = HttpConnection(self._config, self._limits, patience, self._timeout_s)
        try:
            async with patience:
                context = await self._context(connection)
                await spoken.loop.connect_accepted_socket(lambda: spoken, connection, ssl=context)
                await spoken.lost.wait()
        except OSError:
            # The client left, or was too slow: this harms no other connection.
            _log.debug("a connection broke")
        except Exception:
            _log.exception("a connection ended by an error that nobody foresaw")
        finally:
            if spoken.transport is not None:
                spoken.transport.abort()
            connection.close()
            if spoken.tasks:
                # Counted until its answer is made, or clients that leave early could request any number of
                # them.
                await asyncio.wait(spoken.tasks)

    async def _context(self, connection: socket.socket) -> ssl.SSLContext | None:
        """Raises `ConnectionError` for a client that does not speak TLS, after telling it to."""
        if self._certificates is None:
            return None
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(connection)
        if connection.recv(1, socket.MSG_PEEK) == _HANDSHAKE:
            return self._certificates.current.context
        advice = PlainTextResponse(
            "expected TLS: this door is https://, not http://\n", HTTPStatus.BAD_REQUEST
        )
        await loop.sock_sendall(connection, written_out(advice))
        connection.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(_REFUSED_S):
            while await loop.sock_recv(connection, 65_536):
                continue
        raise ConnectionError("the client does not speak TLS")


class HttpConnection(H11Protocol):
    """uvicorn's connection has no limit for slow clients, and one answer for everything malformed. This one
    adds both.
    """

    def __init__(self, config: Config, limits: Limits, patience: asyncio.Timeout, timeout_s: float) -> None:
        super().__init__(config, ServerState(), {})
        self.server_state.default_headers = [(b"server", b"fairlead"), (b"cache-control", b"no-store")]
        self.logger = _uvicorn_log
        self.access_log = False
        self.lost = asyncio.Event()
        self._limits = limits
        self._patience = patience
        self._timeout_s = timeout_s
        self._refused = False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE_BYTES):
            if not self._refused:
                super().data_received(data[start : start + _PIECE_BYTES])

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client may close its side before it has the answer. TLS cannot."""
        if self.scheme == "https" or not self._answers:
            return False
        self.cycle.keep_alive = False
        return True

    def handle_events(self) -> None:
        super().handle_events()
        if self._answers and not self.flow.write_paused:
            self._wait_until(None)

    def on_response_complete(self) -> None:
        """Wait from now on for the next request, and for the client to read this answer."""
        self._wait_until(self.loop.time() + self._timeout_s)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Called while h11's error is handled. The rest of the connection is not read."""
        self._refused = True
        if self._answers:
            # The body of a request is malformed, and answers to requests with a body close the connection.
            return
        error = sys.exc_info()[1]
        assert isinstance(error, h11.RemoteProtocolError)
        status = HTTPStatus(error.error_status_hint)
        if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            self._limits.refused(Limit.HTTP_REQUEST)
            if b"\n" not in self.conn.trailing_data[0]:
                status = HTTPStatus.REQUEST_URI_TOO_LONG
        self.transport.write(written_out(problem(status, "bad_request", str(error)[:200])))
        if self.transport.can_write_eof():
            # If it were closed at once, unread bytes would make the system cut the connection off, and the
            # answer with it.
            self.transport.write_eof()
            self.loop.call_later(_REFUSED_S, self.transport.close)
        else:
            self.transport.close()

    @property
    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_until(self, end_s: float | None) -> None:
        # The connection may just have ended.
        with suppress(RuntimeError):
            self._patience.reschedule(end_s)
