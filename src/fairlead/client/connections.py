"""All connections of a blocking client: the one that threads share, and those of calls that wait or take
long.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from fairlead.client.connection import HOPELESS, BlockingConnection, open_connection
from fairlead.client.identity import Identity
from fairlead.client.outage import ConnectionBroken, MayBeMended
from fairlead.client.shared import SharedConnection
from fairlead.errors import ClientClosed

_MAX_IDLE = 16


class BlockingConnections:
    """Thread-safe."""

    def __init__(self, identity: Identity, timeout_s: float) -> None:
        self._identity = identity
        self._lock = threading.Lock()
        self._open: set[BlockingConnection] = set()
        self._idle: list[BlockingConnection] = []
        self._is_closed = False
        #: Whether the server has ever greeted this client.
        self._has_met = False
        self.shared = SharedConnection(self.connect, self.forget, timeout_s)
        #: The Flight address from the most recent greeting.
        self.flight_address = ""

    def connect(self, within_s: float) -> BlockingConnection:
        try:
            connection = open_connection(self._identity, max(0.001, within_s))
        except HOPELESS as hopeless:
            if self._has_met:
                raise MayBeMended(hopeless) from None
            raise
        self._has_met = True
        self.flight_address = connection.greeting.flight_address
        with self._lock:
            if not self._is_closed:
                self._open.add(connection)
                return connection
        connection.close()
        raise ClientClosed()

    def forget(self, connection: BlockingConnection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def take(self, within_s: float) -> BlockingConnection:
        """A connection for this caller alone. The caller must `give_back` the connection when all replies
        have come, else `forget` it.
        """
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if not connection.is_stale():
                return connection
            self.forget(connection)
        return self.connect(within_s)

    def give_back(self, connection: BlockingConnection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
                return
        self.forget(connection)

    def call_alone(self, command: bytes, within_s: float) -> Any:
        ends_s = time.monotonic() + within_s
        connection = self.take(within_s)
        try:
            reply = connection.exchange(command, ends_s - time.monotonic())
        except BaseException:
            self.forget(connection)
            raise
        self.give_back(connection)
        return reply

    def check(self, broken: ConnectionBroken) -> None:
        """Raise `ClientClosed` if the client is closed: a connection that `close` ended is no network
        failure.
        """
        if self._is_closed:
            raise ClientClosed() from broken

    def close(self) -> None:
        """End all operations under way. A thread that is reading closes its connection itself."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            left = list(self._open)
        for connection in idle:
            self.forget(connection)
        for connection in left:
            connection.wake()
        self.shared.close()
