"""The Redis door: connections on an event loop, turns with one sync each, and a small pool of threads.

All requests that have arrived when a turn begins are carried out in that turn (`server.turn`). Durable
answers are sent after a helper thread has synced; meanwhile the next turn collects requests. Requests that
join no turn run in the pool, which also parses large commands and writes large answers, so that the event
loop never copies large data.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fairlead.engine.broker import Broker
from fairlead.engine.chunk_messages import bytes_of_bodies, read_bodies
from fairlead.errors import FairleadError, Overloaded
from fairlead.middleware.rights import Rights
from fairlead.middleware.stack import Layers
from fairlead.model.addresses import join_address, split_address
from fairlead.server.event_loop import EventLoop
from fairlead.server.limits import RETRY_AFTER_MS, Limit, Limits
from fairlead.server.resp.connection import Asked, Connection
from fairlead.server.resp.parser import LARGE_BYTES
from fairlead.server.resp.streams.session import Shared
from fairlead.server.subscriptions import GivingBack, Standing
from fairlead.server.sync_thread import SyncThread
from fairlead.server.turn import Call, Turned, Turns
from fairlead.verbs.claim import Claim
from fairlead.verbs.exchange import Exchange

if TYPE_CHECKING:
    from fairlead.server.certificates import Certificates

_log = logging.getLogger("fairlead.resp")

_GRACE_S = 2.0
_THREADS = 4
_BACKLOG = 1024
#: Connections with fewer bytes on the way are not counted when all of them together have too many.
_MUCH = 64 * 1024


class RespDoor:
    """`address` has the actual port after `start`. `socket_path`: the door also listens on a Unix socket at
    this path, which only the user of this process can open. `flight_address`: the address for bulk verbs,
    which the reply to HELLO gives to clients.
    """

    name = "resp"

    def __init__(
        self,
        broker: Broker,
        address: str,
        limits: Limits | None = None,
        *,
        certificates: Certificates | None = None,
        layers: Layers | None = None,
        event_loop: EventLoop | None = None,
        socket_path: str = "",
        asks_for_keys: bool = False,
        flight_address: Callable[[], str] = lambda: "",
    ) -> None:
        self.address = address
        self.limits = limits or Limits()
        self.layers = layers or Layers(broker, limits=self.limits)
        self.asks_for_keys = asks_for_keys
        self.flight_address = flight_address
        self.turns = Turns(broker, self.layers, self._wake)
        self.limits.count_waits(lambda: self.waiting_count)
        self.streams = Shared(broker)
        self._broker = broker
        self._certificates = certificates
        self._socket_path = socket_path
        self._own_loop = EventLoop() if event_loop is None else None
        self._event_loop = event_loop or self._own_loop or EventLoop()
        self._loop: asyncio.AbstractEventLoop
        self._listeners: list[socket.socket] = []
        self._servers: list[asyncio.AbstractServer] = []
        self._pool = ThreadPoolExecutor(_THREADS, "fairlead-resp")
        self._syncs = SyncThread(broker.engine.confirm, self._tell_synced)
        self._connections: dict[int, Connection] = {}
        #: Connections that do not read the bytes sent to them.
        self.stuck: set[Connection] = set()
        self._last_number = 0
        self._all_gone: asyncio.Event
        #: Turns whose durable answers wait for a sync.
        self._unsynced: deque[tuple[int, list[Call]]] = deque()
        self._is_syncing = False
        self._is_stopped = False
        self._is_turn_due = False
        #: Inside a turn no send is scheduled, because the end of the turn sends all replies.
        self._is_in_turn = False
        self._is_woken = False
        #: Connections with replies to send, in the order in which they got their replies.
        self._with_replies: dict[Connection, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None

    # Life

    def start(self) -> None:
        self._event_loop.start()
        self._loop = self._event_loop.loop
        host, port = split_address(self.address, may_pick_port=True)
        family, _, _, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(where[:2], family=family, backlog=_BACKLOG)
        self._listeners.append(listener)
        bound = listener.getsockname()
        self.address = join_address(str(bound[0]), int(bound[1]))
        if self._socket_path:
            self._listeners.append(_listen_at(self._socket_path))
        self._event_loop.run(self._open())
        self._syncs.start()
        if self._certificates is not None:
            self._certificates.tell_changes(lambda: self._event_loop.run(self._serve()))

    def drain(self) -> None:
        self.limits.close()

    def stop(self) -> None:
        """Safe to call again."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._event_loop.run(self._close())
        self._pool.shutdown()
        self._syncs.stop()
        for listener in self._listeners:
            listener.close()
        if self._socket_path:
            with contextlib.suppress(OSError):
                os.unlink(self._socket_path)
        if self._own_loop is not None:
            self._own_loop.stop()

    async def _open(self) -> None:
        self._all_gone = asyncio.Event()
        await self._serve()
        self._look_later()

    async def _serve(self) -> None:
        """Start to listen. Called again when the certificates change; open connections keep the certificates
        that they began with.
        """
        context = None if self._certificates is None else self._certificates.current.context
        # A client that does not speak TLS gets an alert. If it does not hang up, its connection is kept until
        # this time is over.
        handshake_s = None if context is None else self.limits.settings.greeting_ms / 1000
        before, self._servers = self._servers, []
        for listener in self._listeners:
            # A server closes its socket when it is closed, and the next server needs the same socket.
            own = listener.dup()
            server: asyncio.AbstractServer
            if listener.family == socket.AF_UNIX:
                # Without TLS: the bytes of a Unix socket do not leave the machine.
                server = await self._loop.create_unix_server(self._new_connection, sock=own, backlog=_BACKLOG)
            else:
                server = await self._loop.create_server(
                    self._new_connection,
                    sock=own,
                    backlog=_BACKLOG,
                    ssl=context,
                    ssl_handshake_timeout=handshake_s,
                )
            self._servers.append(server)
        for server in before:
            server.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for timer in (self._timer, self._looking):
            if timer is not None:
                timer.cancel()
        for connection in list(self._connections.values()):
            connection.end()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), _GRACE_S)
        for connection in list(self._connections.values()):
            connection.abort()
        while self.turns.has_work:
            # Deliveries that subscriptions return.
            self._turn()

    # Connections

    def _new_connection(self) -> Connection:
        self._last_number += 1
        return Connection(self, self._last_number)

    def connected(self, connection: Connection) -> None:
        self._connections[connection.number] = connection
        self._all_gone.clear()
        if len(self._connections) > self.limits.settings.max_connections:
            silent = min(self._connections.values(), key=lambda one: (not one.is_quiet(), one.heard_s))
            self._cut(silent, Limit.CONNECTIONS)

    def disconnected(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)
        self.stuck.discard(connection)
        self._with_replies.pop(connection, None)
        if not self._connections:
            self._all_gone.set()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def waiting_count(self) -> int:
        return self.turns.waiting.count

    def loop_time(self) -> float:
        return self._loop.time()

    def now_ms(self) -> int:
        return self._broker.now_ms()

    def check_arriving(self, connection: Connection) -> None:
        """Close the connection with the most bytes of commands that have not started, when all connections
        together have more than `max_arriving_bytes`.
        """
        if connection.arriving < _MUCH:
            return
        large = [one for one in self._connections.values() if one.arriving >= _MUCH]
        if sum(one.arriving for one in large) > self.limits.settings.max_arriving_bytes:
            self._cut(max(large, key=lambda one: one.arriving), Limit.ARRIVING_BYTES)

    def check_unread(self) -> None:
        """Called before claims and reads. Raises `Overloaded` while connections that do not read have too
        many unsent bytes together.
        """
        most = self.limits.settings.max_inflight_bytes
        if self.stuck and sum([one.unsent for one in self.stuck]) > most:
            self.limits.refused(Limit.UNREAD_BYTES)
            raise Overloaded("bytes of answers that nobody has read", most, RETRY_AFTER_MS)

    def _cut(self, connection: Connection, limit: Limit) -> None:
        self.limits.refused(limit)
        fields = {"door": self.name, "peer": connection.source, "limit": str(limit)}
        _log.info("a connection was closed", extra={"fields": fields})
        connection.abort()

    def _look_later(self) -> None:
        self._looking = self._loop.call_later(self.limits.settings.greeting_ms / 1000, self._look)

    def _look(self) -> None:
        """Close connections that are slow or silent."""
        settings = self.limits.settings
        for connection in list(self._connections.values()):
            limit = connection.find_trouble(
                self._loop.time(), settings.greeting_ms / 1000, settings.idle_ms / 1000
            )
            if limit is not None:
                self._cut(connection, limit)
        self._look_later()

    # Calls

    def ask(self, asked: Asked) -> None:
        if asked.joins:
            self.turns.add(asked)
            self._turn_soon()
        else:
            self._run_alone(asked)

    def drop(self, asked: Asked) -> None:
        self.turns.drop(asked)

    def turn_if_needed(self) -> None:
        """Called after calls of subscriptions were added, or may find messages."""
        if self.turns.has_work:
            self._turn_soon()

    def put_back(self, asked: Asked | Standing) -> None:
        """Return deliveries that were not sent to their places."""
        if deliveries := asked.lost_deliveries:
            self._pool.submit(self._release, asked, deliveries)

    def _release(self, asked: Call, deliveries: list[Any]) -> None:
        # If this fails, the leases expire.
        with contextlib.suppress(FairleadError):
            Rights(self._broker, asked.caller).release(deliveries)

    def soon(self, connection: Connection) -> None:
        """Called when the connection has a reply to send, or must be closed."""
        if not self._with_replies and not self._is_in_turn:
            self._loop.call_soon(self._send)
        self._with_replies[connection] = None

    def _send(self) -> None:
        connections, self._with_replies = self._with_replies, {}
        for connection in connections:
            connection.send_replies()

    def _run_alone(self, asked: Asked) -> None:
        future = self._loop.run_in_executor(self._pool, self._carry_out, asked)
        future.add_done_callback(lambda done: self._ran_alone(asked, is_over=done.result()))

    def _carry_out(self, asked: Asked) -> bool:
        """Runs in a thread of the pool; see `Turns.run_alone`."""
        asked.read_late()
        with self._broker.answering():
            is_over = asked.error is not None or self.turns.run_alone(asked)
            if is_over:
                asked.write()
        return is_over

    def _ran_alone(self, asked: Asked, *, is_over: bool) -> None:
        if asked.connection.is_lost:
            self.turns.drop(asked)
        elif not is_over and self.turns.wait_after(asked):
            self._turn_soon()
            return
        self.turns.drop(asked)
        asked.connection.over(asked)

    # Turns

    def _wake(self) -> None:
        """Called in any thread when a waiting claim is woken."""
        if threading.get_ident() == self._event_loop.thread_id:
            self._turn_soon()
        elif not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        self._is_woken = False
        self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turn_due, self._is_in_turn = False, True
        try:
            done = self.turns.run()
            self._finish(done)
        except Exception:
            # It is unknown which calls the turn had. No client may wait for an answer that never comes.
            _log.exception("a turn failed in a way it should not")
            self._with_replies.clear()
            for connection in list(self._connections.values()):
                connection.abort()
            return
        finally:
            self._is_in_turn = False
        self._go_on(done.over)
        for call in done.again:
            assert isinstance(call, Asked)
            self._run_alone(call)
        if self.turns.has_work:
            self._turn_soon()
        if self._timer is not None or self.turns.waiting.count:
            self._set_timer()

    def _finish(self, done: Turned) -> None:
        held: list[Call] = []
        for call in done.over:
            if done.commit is not None and call.is_durable:
                held.append(call)
            else:
                self._over(call)
        if held:
            assert done.commit is not None
            self._unsynced.append((done.commit, held))
            self._sync()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ms = self.turns.next_ms() if self.turns.waiting.count else None
        if next_ms is not None:
            delay_ms = next_ms - self._broker.clock.monotonic_ms()
            self._timer = self._loop.call_later(max(0, delay_ms) / 1000, self._turn_soon)

    def _sync(self) -> None:
        """Start a sync unless one is under way. A sync covers all turns that have been written."""
        if self._unsynced and not self._is_syncing:
            self._is_syncing = True
            self._syncs.ask(self._unsynced[-1][0])

    def _tell_synced(self, commit: int, failed: FairleadError | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._synced, commit, failed)

    def _synced(self, commit: int, failed: FairleadError | None) -> None:
        self._is_syncing = False
        while self._unsynced and self._unsynced[0][0] <= commit:
            for call in self._unsynced.popleft()[1]:
                if failed is not None:
                    call.answer, call.error = None, failed
                self._over(call)
        self._sync()

    def _over(self, call: Call) -> None:
        """Finish a call that has its answer. A thread of the pool reads and writes a large answer."""
        is_large = isinstance(call.request, (Claim, Exchange)) and bytes_of_bodies(call.answer) > LARGE_BYTES
        if not is_large:
            _tell(call)
            return
        future = self._loop.run_in_executor(self._pool, self._finish_large, call)
        future.add_done_callback(lambda done: self._finished_large(call))

    def _finished_large(self, call: Call) -> None:
        _tell(call)
        self._go_on([call])
        self.turn_if_needed()

    def _go_on(self, over: Sequence[Call]) -> None:
        """Send the replies before subscriptions claim again: only then is it known whether their connections
        are read.
        """
        self._send()
        for call in over:
            if isinstance(call, Standing):
                call.subscription.stand()

    def _finish_large(self, call: Call) -> None:
        """Runs in a thread of the pool."""
        try:
            call.take_read(read_bodies(self._broker.engine, call.answer))
        except FairleadError as failed:
            call.answer, call.error = None, failed
        if isinstance(call, Asked):
            call.write()


def _tell(call: Call) -> None:
    """Hand a finished call to its connection or its subscription."""
    if isinstance(call, Asked):
        call.connection.over(call)
    else:
        assert isinstance(call, (Standing, GivingBack))
        call.subscription.over(call)


def _listen_at(path: str) -> socket.socket:
    """Listen at the path. A socket that a killed server left there is replaced."""
    with contextlib.suppress(FileNotFoundError):
        if not os.path.isfile(path):
            os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(_BACKLOG)
    return listener
