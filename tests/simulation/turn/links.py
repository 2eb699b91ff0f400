"""A connection between a client and the server: bytes under way, buffers that fill, ends that learn late of a break."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import hiredis

from fairlead.client.commands import is_push
from fairlead.wire.subscriptions import read_push

if TYPE_CHECKING:
    from tests.simulation.turn.account import Account, Standing
    from tests.simulation.turn.clients import Asked, Client
    from tests.simulation.turn.machine import Server

_NOT_YET = object()


class Link(asyncio.Transport):
    """The server's end is the transport of a `Connection`. `room`: what the operating system takes of answers that
    nobody has read.
    """

    def __init__(self, server: Server, client: Client, account: Account, room: int) -> None:
        super().__init__()
        self.server = server
        self.client = client
        self._account = account
        self._room = room
        self._to_server = bytearray()
        self._to_client = bytearray()
        self._unsent = bytearray()
        self._reads = True
        self._is_closing = False
        self._is_stuck = False
        #: Whether the client will close its side once all is sent, and whether the server has learned of it.
        self._is_ending = self.has_ended = False
        #: The server's end is gone; the client's end is gone.
        self.is_lost = False
        self.is_left = False
        #: The secret with which its client greeted the server.
        self.key = ""
        #: Whether the server has taken note of its end, and so gives back what was not started.
        self.is_known_lost = False
        #: Whether the server may not have got rid of an answer.
        self.was_stuck = False
        #: What was sent, each with how many bytes were sent until its end; what is answered is gone.
        self._sent: deque[tuple[int, Asked]] = deque()
        #: When each request came, if it came here.
        self.came: dict[Asked, int] = {}
        self.subscriptions: dict[int, Standing] = {}
        self._expected: deque[Asked] = deque()
        self._sent_bytes = self._came_bytes = 0
        self._undelivered: deque[tuple[int, Asked]] = deque()
        self._replies = hiredis.Reader(notEnoughData=_NOT_YET)
        self._client_replies = hiredis.Reader(notEnoughData=_NOT_YET)
        self.connection = server.door._new_connection()
        self.connection.connection_made(self)

    # The client's end

    def send(self, asked: Asked, raw: bytes) -> None:
        self._to_server += raw
        self._sent_bytes += len(raw)
        self._sent.append((self._sent_bytes, asked))
        self._undelivered.append((self._sent_bytes, asked))
        self._expected.append(asked)

    def leave(self) -> None:
        """The client closes it, or believes it broken. What is under way to the server may arrive."""
        self.is_left = True

    def end_sending(self) -> None:
        self._is_ending = True

    def read(self, most: int) -> list[tuple[Asked | None, Any]]:
        """The client reads: the replies and pushes that are whole now; a push answers no request."""
        data = bytes(self._to_client[:most])
        del self._to_client[:most]
        self._fill()
        self._client_replies.feed(data)
        found: list[tuple[Asked | None, Any]] = []
        while (reply := self._client_replies.gets()) is not _NOT_YET:
            found.append((None if is_push(reply) else self._expected.popleft(), reply))
        return found

    @property
    def has_answers(self) -> bool:
        return bool(self._to_client) and not self.is_left

    @property
    def is_closed(self) -> bool:
        """As the client sees it."""
        return self.is_lost and not self._to_client

    # The network

    @property
    def may_deliver(self) -> bool:
        is_open = self._reads and not self._is_closing and not self.is_lost
        return is_open and bool(self._to_server or self._is_ending)

    def deliver(self, most: int) -> None:
        data = bytes(self._to_server[:most])
        del self._to_server[:most]
        self._came_bytes += len(data)
        while self._undelivered and self._undelivered[0][0] <= self._came_bytes:
            self._account.came(self, self._undelivered.popleft()[1])
        if data:
            self.connection.data_received(data)
        if not self._to_server and self._is_ending and not self._is_closing:
            self._is_ending, self.has_ended = False, True
            self._account.lost(self)
            if not self.connection.eof_received():
                self.close()

    def lose(self) -> None:
        """The server learns that the connection is gone."""
        if not self.is_lost:
            self._is_closing = self.is_lost = self.is_known_lost = True
            self._account.lost(self)
            self.connection.connection_lost(None)

    def die(self) -> None:
        """The server is gone, and with it what it had not sent."""
        self.is_lost = True
        self._unsent.clear()

    # The server's end

    def write(self, data: Any) -> None:
        if self._is_closing:
            return
        self._replies.feed(bytes(data))
        while (reply := self._replies.gets()) is not _NOT_YET:
            if is_push(reply):
                self._account.pushed(self, read_push(reply))
            else:
                self._account.answered(self, self._sent.popleft()[1], reply)
        self._unsent += data
        self._fill()
        if self._unsent and not self._is_stuck:
            self._is_stuck = self.was_stuck = True
            self.connection.pause_writing()

    def _fill(self) -> None:
        if self._is_closing and not self._unsent:
            return
        room = max(0, self._room - len(self._to_client))
        self._to_client += self._unsent[:room]
        del self._unsent[:room]
        if not self._unsent and self._is_stuck:
            self._is_stuck = False
            self.connection.resume_writing()
        if not self._unsent and self._is_closing:
            self.server.loop.call_soon(self.lose)

    @property
    def is_stuck(self) -> bool:
        return self._is_stuck

    @property
    def unanswered(self) -> Asked | None:
        """The next command that the server has to answer, if it has come as a whole."""
        if not self._sent or self._sent[0][0] > self._came_bytes:
            return None
        return self._sent[0][1]

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._unsent:
                self.server.loop.call_soon(self.lose)

    def abort(self) -> None:
        self._unsent.clear()
        if not self._is_closing or not self.is_lost:
            self._is_closing = True
            self.server.loop.call_soon(self.lose)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Every byte that is not sent counts."""

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default
