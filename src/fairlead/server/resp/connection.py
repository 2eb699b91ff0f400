"""One connection: commands in, replies out in the order of the commands, and back-pressure in both
directions.

A command starts when the commands before it on the connection allow that: later commands wait for a claim
that may wait, and for a request that runs alone in a thread. While the replies of a connection are not read,
the door starts none of its commands and does not read from it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from fairlead.errors import FairleadError, Unauthenticated
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_REQUEST_BYTES
from fairlead.request import Caller, Request
from fairlead.server.limits import Limit
from fairlead.server.resp.arguments import read_words
from fairlead.server.resp.commands import (
    NO_PLACE,
    ONCE,
    PREFIX,
    REQUESTS,
    Place,
    count_heads,
    read_once,
    run_command,
)
from fairlead.server.resp.parser import (
    MAX_ARGUMENTS,
    MAX_ARGUMENTS_OF_STRANGERS,
    MAX_BYTES_OF_STRANGERS,
    Command,
    CommandReader,
    LargeCommand,
    LargeWord,
    join_words,
    size_of,
)
from fairlead.server.resp.replies import Written, bulk_reply, error_reply, reply_of
from fairlead.server.resp.streams.commands import Running, find_command
from fairlead.server.resp.streams.session import StreamsSession
from fairlead.server.resp.streams.steps import StreamCommand
from fairlead.server.resp.subscriptions import PushedSubscription
from fairlead.server.resp.subscriptions import run_command as run_subscription_command
from fairlead.server.subscriptions import Standing
from fairlead.server.turn import Call
from fairlead.verbs.inspect import Peek
from fairlead.wire.packed import decode_request, encode_answer, tells_time
from fairlead.wire.subscriptions import COMMANDS as SUBSCRIPTION_COMMANDS
from fairlead.wire.subscriptions import Consume

if TYPE_CHECKING:
    from fairlead.server.resp.door import RespDoor

_log = logging.getLogger("fairlead.resp")

#: The largest number of commands of one connection that have started and are not answered.
MAX_UNANSWERED = 1000
#: With more unstarted commands, or more bytes of them, the connection is not read.
MAX_QUEUED = 100
MAX_QUEUED_BYTES = 64 * 1024
#: While a command is incomplete, at least this many bytes must arrive in each greeting period.
MIN_BYTES = 1024
_TLS_BUFFER_BYTES = 64 * 1024
#: The first words of HTTP requests and headers. A web page could make the browser of its visitor send
#: requests to this port.
_OF_HTTP = (b"POST", b"HOST:")
_UNREADABLE = "a command could not be read, for a reason that nobody foresaw"


class Asked(Call):
    """A call of a connection, with its reply once the reply is made."""

    __slots__ = (
        "connection",
        "is_packed",
        "late",
        "protocol",
        "reply",
        "running",
        "step",
        "whole_reply",
        "written",
    )

    def __init__(
        self, connection: Connection, request: Request[Any], caller: Caller, *, is_packed: bool
    ) -> None:
        super().__init__(request, caller)
        self.connection = connection
        self.is_packed = is_packed
        self.protocol = connection.protocol
        self.reply: Written | None = None
        #: The reply, if a thread of the pool made it.
        self.written: Written | None = None
        #: The kind and the words of a large request, until a thread of the pool has parsed it.
        self.late: tuple[type[Request[Any]], Command] | None = None
        #: The Redis Streams command that makes the requests of this call one after the other, if there is
        #: one. Its reply becomes `whole_reply`.
        self.running: Running | None = None
        #: The next step of this command, once it is known: a request, or the reply.
        self.step: Request[Any] | bytes | None = None
        self.whole_reply: bytes | None = None

    def read_late(self) -> None:
        """Parse the request, or set the error. Runs in a thread of the pool."""
        if self.late is None:
            return
        (kind, words), self.late = self.late, None
        try:
            words = join_words(words)
            self.request = decode_request(kind, words[1]) if self.is_packed else read_words(kind, words[1:])
        except FairleadError as refused:
            self.error = refused
        except Exception as unexpected:
            _log.exception(_UNREADABLE)
            self.error = unexpected

    def write(self) -> None:
        """Make the reply, or give the answer to the command, which continues. Runs in a thread of the pool."""
        if self.running is None:
            self.written = self.connection.reply_of(self)
        else:
            self.go_on(self.running)

    def go_on(self, running: Running) -> None:
        """Find the next step of the command. Runs in any thread."""
        try:
            self.step, self.error = running.advance(self.answer, self.error), None
        except FairleadError as refused:
            self.step, self.error = b"", refused
        except Exception as unexpected:
            _log.exception("a command failed in a way it should not")
            self.step, self.error = b"", unexpected

    @property
    def is_audited(self) -> bool:
        """False for the peeks of Redis Streams commands. Programs poll with `XPENDING` and `XAUTOCLAIM`,
        which show no bodies except of messages that were delivered to the program.
        """
        return self.running is None or type(self.request) is not Peek

    @property
    def lost_deliveries(self) -> list[Delivery]:
        """The deliveries of the answer, which must return to their places if the answer is not sent.

        Empty if the claim can be sent again under its session number or token: the repeat gets the same
        deliveries, and may already have arrived on another connection.
        """
        if self.caller.session is not None or getattr(self.request, "token", None):
            return []
        parts = self.answer if isinstance(self.answer, list) else []
        flat = [one for part in parts for one in (part if isinstance(part, list) else [part])]
        return [one for one in flat if isinstance(one, Delivery)]


class Reply:
    """A reply that waits for the replies before it, or that is not made yet."""

    __slots__ = ("reply",)

    def __init__(self, reply: bytes | None = None) -> None:
        self.reply = reply


class Connection(asyncio.Protocol):
    def __init__(self, door: RespDoor, number: int) -> None:
        self.door = door
        self.number = number
        self.protocol = 2
        self.client_name = b""
        self.caller: Caller | None = None
        self._session: StreamsSession | None = None
        self.source = ""
        self._transport: asyncio.Transport
        self._reader = CommandReader(MAX_BYTES_OF_STRANGERS, MAX_ARGUMENTS_OF_STRANGERS)
        self._commands: deque[Command] = deque()
        self._replies: deque[Asked | Reply] = deque()
        #: The number of calls under way, and the call for which later commands must wait.
        self._open = 0
        self._holder: Call | None = None
        #: By number. Includes subscriptions that are still being opened.
        self.subscriptions: dict[int, PushedSubscription] = {}
        self.last_subscription = 0
        #: Pushes for the next write, and the calls that they come from.
        self._pushes: list[bytes] = []
        self._pushed: list[Standing] = []
        self.is_stuck = False
        self._is_paused = False
        #: Nothing more is read, and the connection is closed once all commands that have arrived are answered.
        self._is_ending = False
        self.is_lost = False
        #: Calls with deliveries that may still be in the write buffer.
        self._unsent: list[Asked | Standing] = []
        # For the check of slow and silent connections, see `find_trouble`.
        self._has_spoken = False
        self.heard_s = self._began_s = door.loop_time()
        self._came = self._came_at_look = 0
        self._unsent_at_look = 0

    # Events of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transport of uvloop is not a subclass of `asyncio.Transport`.
        self._transport = transport = cast(asyncio.Transport, transport)
        # With TLS and a limit of 0, the last bytes of the handshake would count as unsent, and no callback
        # would report when they were sent.
        transport.set_write_buffer_limits(high=_TLS_BUFFER_BYTES if self.is_tls else 0)
        self.source = _source_of(transport)
        self.reset()
        self.door.connected(self)

    def data_received(self, data: bytes) -> None:
        self.heard_s = self.door.loop_time()
        self._came += len(data)
        if self._is_ending:
            return
        commands = self._reader.feed(data)
        if commands:
            self._has_spoken = True
            self._commands += commands
        self.start_commands()
        if self._commands or self._reader.is_in_a_command:
            self.door.check_arriving(self)

    def eof_received(self) -> bool:
        """A client may send its last commands and close its side. Its claims no longer wait for messages
        then, because the client may be gone.
        """
        self.end()
        for one in list(self._replies):
            if not isinstance(one, Asked):
                continue
            one.may_wait = False
            if one.waits is not None and not one.waits.is_running:
                self.door.drop(one)
                self.over(one)
        self.send_replies()
        return not self.is_tls

    def pause_writing(self) -> None:
        self.is_stuck = True
        self.door.stuck.add(self)
        self._unsent_at_look = 0
        for subscription in self.subscriptions.values():
            subscription.pause()
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self.is_stuck = False
        self.door.stuck.discard(self)
        self._unsent.clear()
        for subscription in self.subscriptions.values():
            subscription.resume()
        self.door.turn_if_needed()
        self.start_commands()
        self.door.soon(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._is_ending = True
        self._commands.clear()
        for one in self._replies:
            if isinstance(one, Asked):
                self.door.drop(one)
        for asked in self._unsent:
            self.door.put_back(asked)
        self._unsent.clear()
        self._replies.clear()
        self.end_subscriptions()
        self.door.disconnected(self)

    @property
    def is_tls(self) -> bool:
        return self._transport.get_extra_info("sslcontext") is not None

    @property
    def arriving(self) -> int:
        """The number of bytes of commands that have not started."""
        return self._reader.buffered + sum(map(size_of, self._commands))

    @property
    def unsent(self) -> int:
        return 0 if self.is_lost else self._transport.get_write_buffer_size()

    # Commands

    def start_commands(self) -> None:
        while self._commands and self._may_start():
            command = self._commands.popleft()
            if not self._start(command):
                self._commands.appendleft(command)
                break
        if not self._commands and self._reader.error is not None and not self._is_ending:
            self.reply(error_reply(self._reader.error))
            self.door.limits.count_error(self._reader.error)
            self.end()
        if self._commands or self._is_paused or self.is_stuck:
            self._pause_or_resume()

    def _may_start(self) -> bool:
        if self._holder is not None or self.is_stuck or self.is_lost:
            return False
        return len(self._replies) < MAX_UNANSWERED

    def _start(self, words: Command) -> bool:
        """Returns False if the command must wait for earlier calls of the connection."""
        name = words[0].upper()
        place = NO_PLACE
        is_late = type(words) is LargeCommand
        if is_late and any(type(word) is LargeWord for word in words[: count_heads(words)]):
            words, is_late = join_words(words), False
        try:
            if name == ONCE:
                place, words = read_once(words)
                name = words[0].upper()
            kind = REQUESTS.get(name)
            if kind is None:
                if not name.startswith(PREFIX) and name in _OF_HTTP:
                    self._refuse_http()
                    return True
                if self._open and name in (b"AUTH", b"HELLO", b"RESET", b"QUIT"):
                    return False
                words = join_words(words) if is_late else words
                if name in SUBSCRIPTION_COMMANDS:
                    return self._start_about_subscription(name, words)
                if name.startswith(b"X") and (command := find_command(name)) is not None:
                    return self._start_steps(command, words)
                self.reply(run_command(self, name, words[1:]))
                return True
            if self.caller is None:
                raise Unauthenticated("send AUTH <key> or HELLO 3 AUTH default <key> first")
        except FairleadError as refused:
            self._refuse(refused)
            return True
        is_packed = len(words) == 2 and words[1][:1] in _MAPS
        if is_late:
            return self._start_late(kind, words, place, is_packed=is_packed)
        try:
            request = decode_request(kind, words[1]) if is_packed else read_words(kind, words[1:])
            joins = self.door.turns.joins(request)
            if not joins and self._open:
                return False
            if not request.durable:
                self.door.check_unread()
        except FairleadError as refused:
            self._refuse(refused, is_packed=is_packed)
            return True
        except Exception as unexpected:
            _log.exception(_UNREADABLE)
            self.reply(error_reply(unexpected, packed=is_packed))
            return True
        caller = Caller(*self.caller[:3], *place, sum(map(len, words)))
        asked = Asked(self, request, caller, is_packed=is_packed)
        self._begin(asked, joins=joins, holds=not joins or kind.waits)
        return True

    def _start_late(self, kind: type[Request[Any]], words: Command, place: Place, *, is_packed: bool) -> bool:
        """Start a large command, which a thread of the pool parses and carries out. Returns False if it must
        wait for earlier calls.
        """
        if self._open:
            return False
        assert self.caller is not None
        caller = Caller(*self.caller[:3], *place, size_of(words))
        asked = Asked(self, cast("Request[Any]", None), caller, is_packed=is_packed)
        asked.late = kind, words
        self._begin(asked, joins=False, holds=True)
        return True

    def _begin(self, asked: Asked, *, joins: bool, holds: bool) -> None:
        asked.joins, asked.may_wait = joins, not self._is_ending
        if holds:
            self._holder = asked
        self._open += 1
        self._replies.append(asked)
        self.door.ask(asked)

    def _start_about_subscription(self, name: bytes, words: Command) -> bool:
        """Returns False if the command must wait for earlier calls."""
        if self.caller is None:
            raise Unauthenticated("send AUTH <key> or HELLO 3 AUTH default <key> first")
        kind = SUBSCRIPTION_COMMANDS[name]
        if kind is Consume and self._open:
            return False
        is_packed = len(words) == 2 and words[1][:1] in _MAPS
        try:
            request = decode_request(kind, words[1]) if is_packed else read_words(kind, words[1:])
            run_subscription_command(self, request, is_packed=is_packed)
        except FairleadError as refused:
            self._refuse(refused, is_packed=is_packed)
        return True

    def _start_steps(self, command: StreamCommand, words: Command) -> bool:
        """Start a command that makes requests one after the other. Returns False if it must wait for earlier
        calls.
        """
        if self.caller is None:
            raise Unauthenticated("send AUTH <key> or HELLO 3 AUTH default <key> first")
        if self._session is None:
            self._session = StreamsSession(self.door.streams, self.caller)
        self._session.protocol = self.protocol
        running = Running(command, self._session, words[1:])
        try:
            first = running.advance(None, None)
        except FairleadError:
            raise
        except Exception as unexpected:
            _log.exception(_UNREADABLE)
            self.reply(error_reply(unexpected))
            return True
        if isinstance(first, bytes):
            self.reply(first)
            return True
        joins = self.door.turns.joins(first)
        if not joins and self._open:
            running.close()
            return False
        if not first.durable:
            self.door.check_unread()
        asked = Asked(self, first, self.caller._replace(size=sum(map(len, words))), is_packed=False)
        asked.running = running
        # A read is followed by other requests of the command, which later commands must not overtake. Most
        # XADD and XACK make only one request.
        self._begin(asked, joins=joins, holds=not joins or not first.durable)
        return True

    def _goes_on(self, asked: Asked, running: Running) -> bool:
        """Returns whether the command makes another request."""
        if self.is_lost:
            running.close()
            return False
        if asked.step is None:
            asked.go_on(running)
        step, asked.step = asked.step, None
        if step is None or isinstance(step, bytes):
            asked.whole_reply = step
            return False
        asked.request, asked.answer = step, None
        asked.joins = self.door.turns.joins(step)
        # Later commands must not be carried out before the last request of this command.
        self._holder = asked
        self.door.ask(asked)
        return True

    def _refuse(self, error: FairleadError, *, is_packed: bool = False) -> None:
        self.door.limits.count_error(error)
        self.reply(error_reply(error, packed=is_packed))

    def _refuse_http(self) -> None:
        _log.warning(
            "HTTP was sent to the port of the Redis protocol", extra={"fields": {"peer": self.source}}
        )
        self._commands.clear()
        self._transport.abort()

    def reply(self, reply: bytes) -> None:
        self._replies.append(Reply(reply))
        self.door.soon(self)

    def later(self) -> Reply:
        """Add a reply that is not made yet. The caller sets it later and then calls `door.soon`."""
        reply = Reply()
        self._replies.append(reply)
        return reply

    def opens(self, subscription: PushedSubscription, first: Standing) -> None:
        """Register a subscription. Later commands wait, so that nothing comes between the reply and the
        pushes of the subscription.
        """
        self.subscriptions[subscription.number] = subscription
        self._holder = first
        self._open += 1

    def is_open(self) -> None:
        self._holder = None
        self._open -= 1

    def push(self, frame: bytes, call: Standing) -> None:
        """Send the push with the next write."""
        self._pushes.append(frame)
        self._pushed.append(call)
        self.door.soon(self)

    def end_subscriptions(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.end()
        self.subscriptions.clear()
        self.door.turn_if_needed()

    def over(self, asked: Asked) -> None:
        """The call has its answer or its error; continue its command, or make its reply."""
        if asked.running is not None and self._goes_on(asked, asked.running):
            return
        self._open -= 1
        if self._holder is asked:
            self._holder = None
        if self.is_lost:
            self.door.put_back(asked)
            return
        asked.reply = self.reply_of(asked) if asked.written is None else asked.written
        self.door.soon(self)

    def reply_of(self, asked: Asked) -> Written:
        """Runs in any thread."""
        try:
            if asked.error is not None:
                if isinstance(asked.error, FairleadError):
                    self.door.limits.count_error(asked.error)
                return error_reply(asked.error, packed=asked.is_packed)
            if asked.whole_reply is not None:
                return asked.whole_reply
            if asked.is_packed:
                now_ms = self.door.now_ms() if tells_time(type(asked.request)) else 0
                return bulk_reply(encode_answer(asked.request, asked.answer, now_ms))
            return reply_of(asked.answer, asked.protocol)
        except Exception as unexpected:
            _log.exception(
                "an answer could not be written", extra={"fields": {"verb": asked.request.verb_name}}
            )
            return error_reply(unexpected, packed=asked.is_packed)

    def send_replies(self) -> None:
        """Send the pushes and the replies that are next in order as one write, then start commands that had
        to wait.
        """
        if self.is_lost:
            return
        ready: list[bytes] = [*self._pushes]
        self._pushes.clear()
        sent: list[Asked | Standing] = [*self._pushed]
        self._pushed.clear()
        is_large = False
        while self._replies and (reply := self._replies[0].reply) is not None:
            one = self._replies.popleft()
            if isinstance(reply, list):
                ready += reply
                is_large = True
            else:
                ready.append(reply)
            if isinstance(one, Asked):
                sent.append(one)
        if ready:
            if is_large:
                self._transport.writelines(ready)
            else:
                self._transport.write(b"".join(ready))
            if self.is_stuck:
                self._unsent += [one for one in sent if one.lost_deliveries]
        if self._is_ending and not self._replies and not self._commands:
            self._transport.close()
        elif self._commands:
            self.start_commands()

    def _pause_or_resume(self) -> None:
        must_pause = self.is_stuck or self._has_many_commands()
        if must_pause == self._is_paused or self.is_lost or self._transport.is_closing():
            return
        self._is_paused = must_pause
        if must_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _has_many_commands(self) -> bool:
        """A connection with few waiting commands is still read, because otherwise the door would not notice
        that the client has left.
        """
        return len(self._commands) > MAX_QUEUED or (bool(self._commands) and self.arriving > MAX_QUEUED_BYTES)

    # For commands

    def authenticate(self, key: bytes) -> None:
        """Raises `Unauthenticated` if the key is not valid. The connection then has no key, even if it had a
        valid one before.
        """
        self.end_subscriptions()
        self.caller = None
        self._admit(f"Bearer {key.decode(errors='replace')}")

    def reset(self) -> None:
        """Return the connection to its first state. Where keys are required, it has none."""
        self.end_subscriptions()
        self.caller, self.protocol, self.client_name = None, 2, b""
        self._reader.max_bytes, self._reader.max_arguments = (
            MAX_BYTES_OF_STRANGERS,
            MAX_ARGUMENTS_OF_STRANGERS,
        )
        if not self.door.asks_for_keys:
            self._admit(None)

    def _admit(self, authorization: str | None) -> None:
        self._session = None
        self.caller = self.door.layers.admit(authorization, self.source).caller
        self._reader.max_bytes, self._reader.max_arguments = MAX_REQUEST_BYTES, MAX_ARGUMENTS

    def quit(self) -> None:
        self._commands.clear()
        self.end()

    def end(self) -> None:
        """Close the connection once all commands that have arrived are answered."""
        self._is_ending = True
        self.end_subscriptions()
        self.door.soon(self)

    def info(self) -> str:
        return f"id={self.number} addr={self.source} name={self.client_name.decode(errors='replace')} resp={self.protocol}"

    # For the door

    def find_trouble(self, now_s: float, greeting_s: float, idle_s: float) -> Limit | None:
        """The limit for which the connection must be closed, or None. Called once in each greeting period."""
        came, self._came_at_look = self._came - self._came_at_look, self._came
        unsent_before, self._unsent_at_look = self._unsent_at_look, self.unsent
        if self.is_stuck and unsent_before and self._unsent_at_look >= unsent_before:
            return Limit.UNREAD_BYTES
        is_late = now_s - self._began_s > greeting_s
        if is_late and not self._has_spoken:
            return Limit.GREETING
        if is_late and self._reader.buffered and came < MIN_BYTES and not self._is_paused:
            return Limit.GREETING
        if not self._replies and now_s - self.heard_s > idle_s:
            return Limit.IDLE
        return None

    def abort(self) -> None:
        self.end_subscriptions()
        self._transport.abort()

    def is_quiet(self) -> bool:
        return not self._replies and not self.unsent and not self.subscriptions


#: The first bytes of MessagePack maps. Text in UTF-8 begins with none of these bytes, except that letters of
#: a few scripts begin with the last two.
_MAPS = frozenset([bytes([first]) for first in (*range(0x80, 0x90), 0xDE, 0xDF)])


def _source_of(transport: asyncio.BaseTransport) -> str:
    """The peer, in the form that other doors use."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "unix:"
    connected = transport.get_extra_info("socket")
    if connected is not None and connected.family == socket.AF_INET6:
        return f"ipv6:%5B{peer[0]}%5D:{peer[1]}"
    return f"ipv4:{peer[0]}:{peer[1]}"
