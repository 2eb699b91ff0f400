"""The blocking core that both faces of the client share: connections, retries, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from fairlead.client.channel import Channel, Pool, Watchdog
from fairlead.client.crew import Crew
from fairlead.client.lifetimes import Reaper, watch
from fairlead.client.options import Options
from fairlead.client.outage import ConnectionBroken, Outage
from fairlead.client.patience import Patience, Pauses
from fairlead.client.sessions import Sessions
from fairlead.client.transport import FlightTransport, Stream, Transport
from fairlead.clock import Clock, SystemClock
from fairlead.errors import (
    AnswerLost,
    BrokerClosed,
    ClientClosed,
    ClientForked,
    InvalidRequest,
    Overloaded,
    ProtocolMismatch,
    RequestExpired,
    ServerStopping,
    ServerUnreachable,
    SessionExpired,
    TlsFailed,
)
from fairlead.wire.calls import Answer, decode
from fairlead.wire.faults import error_of
from fairlead.wire.schemas import CHANNELS

if TYPE_CHECKING:
    from fairlead.client.consume import Puller

#: How long a close may wait for the server, so that a dead one does not keep a program from ending.
_CLOSING_MS = 2000
#: How long a close waits for threads whose calls it cancelled; they need no answer of the server.
_LEAVING_S = 1.0
#: Longer than gRPC tries to connect, see transport.py.
_CONNECTING_S = 3.0
_MOST_IDLE_CHANNELS = 16
_MOST_THREADS = 1024
_MOST_CONNECTING_THREADS = 256

Asked = tuple[Answer, pa.RecordBatch | None]

#: What may be done when an answer did not come: a question may be asked again, a request of a session
#: as well, but when it is given up nobody knows what became of it; of any other request that is so at
#: once.
Repeat = Literal["freely", "by number", "never"]


class Core:
    def __init__(
        self, options: Options, *, transport: Transport | None = None, clock: Clock | None = None
    ) -> None:
        self.options = options
        self.clock = clock or SystemClock()
        self.crew = Crew(_MOST_THREADS)
        #: Separate, because the threads of `crew` wait for these.
        self._connecting = Crew(_MOST_CONNECTING_THREADS)
        self.pauses = Pauses(self.clock)
        self.outage = Outage(options.address, self.clock)
        self.reaper = Reaper()
        self.pullers: set[Puller] = set()
        self._transport = transport or FlightTransport(options.address, timeout_ms=options.timeout_ms)
        self._watchdog = Watchdog(self.clock)
        self._pools = {
            verb: Pool(self._opener(verb), self._watchdog, _MOST_IDLE_CHANNELS) for verb in CHANNELS
        }
        self.sessions = Sessions(self)
        self._unusable: type[ClientClosed | ClientForked] | None = None
        #: Set by `close`: no call may take longer than until then.
        self._closing_ends_ms: int | None = None
        #: It has answered, so what keeps a connection from being made now was not so before, and may pass.
        self._met = False
        self._close_lock = threading.Lock()
        watch(self)

    def check(self) -> None:
        if self._unusable is not None:
            raise self._unusable()

    @property
    def closed(self) -> bool:
        return self._unusable is not None

    def take_channel(self, verb: str, within_ms: int) -> Channel:
        """Raises `ConnectionBroken`, with nothing sent."""
        try:
            return self._pools[verb].take(within_ms)
        except ConnectionBroken:
            self.let_go()
            raise

    def give_back(self, verb: str, channel: Channel) -> None:
        self._pools[verb].give_back(channel)

    def broke(self, channel: Channel) -> None:
        """After a connection broke, what else is open on it is no good either."""
        channel.abandon_if_late()
        self.let_go()

    def deadline_ms(self, wait_ms: int = 0) -> int:
        """When a call that begins now is over at the latest, with or without an answer; `wait_ms` is what the
        server may wait.
        """
        if self._closing_ends_ms is not None:
            return self._closing_ends_ms
        return self.clock.monotonic_ms() + wait_ms + self.options.timeout_ms + self.options.retry_for_ms

    def patience(self, wait_ms: int = 0, *, ends_ms: int | None = None) -> Patience:
        retry_for_ms = self.options.retry_for_ms if self._closing_ends_ms is None else 0
        return Patience(self.pauses, retry_for_ms, self.deadline_ms(wait_ms) if ends_ms is None else ends_ms)

    def ask(
        self,
        verb: str,
        metadata: bytes | Callable[[], bytes],
        batch: pa.RecordBatch | None = None,
        *,
        name: str = "",
        wait_ms: Callable[[], int] = lambda: 0,
        ends_ms: int | None = None,
        repeat: Repeat = "freely",
    ) -> Asked:
        """One request, sent again after every trouble that may pass, until `retry_for` is over.

        `wait_ms` is how long the server may wait before it answers. The call is over at `ends_ms`, by default
        `deadline_ms`. Raises the engine's own errors; `ServerUnreachable` or `Overloaded` when the time is
        over and nothing was carried out; `AnswerLost` when that is not known and the request cannot be
        repeated, or could not in time.
        """
        patience = self.patience(wait_ms(), ends_ms=ends_ms)
        sent = False
        while True:
            self.check()
            at_least_ms = 0
            try:
                within_ms = min(wait_ms() + self.options.timeout_ms, patience.left_ms())
                return self._try(
                    verb, metadata if isinstance(metadata, bytes) else metadata(), batch, within_ms
                )
            except ConnectionBroken as broken:
                sent = sent or broken.sent
                trouble: Exception = broken
                if not self._met:
                    self._give_up_if_hopeless(patience.left_ms())
            except (ServerStopping, BrokerClosed) as stopping:
                self.let_go()
                trouble = stopping
            except Overloaded as overloaded:
                trouble = overloaded
                at_least_ms = int(overloaded.retry_after_ms)
            except (SessionExpired, RequestExpired) as expired:
                if sent:
                    raise AnswerLost(name or verb) from expired
                raise
            self.check()
            if sent and repeat == "never":
                raise AnswerLost(name or verb) from trouble
            self.outage.met(trouble)
            if not patience.wait(at_least_ms):
                if sent and repeat == "by number":
                    raise AnswerLost(name or verb) from trouble
                self.give_up(trouble, patience.left_ms())

    def let_go(self) -> None:
        """Close every idle channel. A server that is stopping waits for those who keep one open."""
        for pool in self._pools.values():
            pool.forget()

    def give_up(self, trouble: Exception, within_ms: int) -> None:
        if isinstance(trouble, Overloaded):
            raise trouble
        self._give_up_if_hopeless(within_ms)
        # What broke is in the text; pyarrow's own account of it would only bury that.
        raise ServerUnreachable(self.options.address, str(trouble)) from None

    def unreachable(self, what: str) -> ServerUnreachable:
        return ServerUnreachable(self.options.address, what)

    def _give_up_if_hopeless(self, within_ms: int) -> None:
        found = self._connecting.submit(self._transport.why_hopeless)
        with suppress(TimeoutError):
            if hopeless := found.result(within_ms / 1000):
                raise TlsFailed(self.options.address, hopeless) from None

    def _try(self, verb: str, metadata: bytes, batch: pa.RecordBatch | None, within_ms: int) -> Asked:
        ends_ms = self.clock.monotonic_ms() + within_ms
        channel = self.take_channel(verb, within_ms)
        try:
            raw, body = channel.call(metadata, batch, within_ms=max(0, ends_ms - self.clock.monotonic_ms()))
        except ConnectionBroken:
            self.broke(channel)
            raise
        self._met = True
        try:
            answer = read_answer(raw)
        except ProtocolMismatch:
            channel.close()
            raise
        self.give_back(verb, channel)
        if answer.error is not None:
            raise error_of(answer.error)
        self.outage.over()
        return answer, body

    def _opener(self, verb: str) -> Callable[[int], Stream]:
        """gRPC blocks while it connects, for as long as it likes: so another thread opens the stream, and may
        be left behind.
        """

        def open_within(within_ms: int) -> Stream:
            opening = self._connecting.submit(self._transport.open, verb)
            try:
                wait([opening], within_ms / 1000)
            except BaseException:
                opening.add_done_callback(_close_late)
                raise
            if not opening.done():
                opening.add_done_callback(_close_late)
                raise ConnectionBroken("no connection in time", sent=False)
            return opening.result()

        return open_within

    def close(self, before: Callable[[], None] | None = None) -> None:
        """`before` is what may still be said while it can be. Ends every call under way with `ClientClosed`."""
        with self._close_lock:
            if self.closed or self._closing_ends_ms is not None:
                return
            most_ms = min(_CLOSING_MS, self.options.timeout_ms + self.options.retry_for_ms)
            ends_ms = self._closing_ends_ms = self.clock.monotonic_ms() + most_ms
        try:
            for puller in list(self.pullers):
                puller.stop()
            for puller in list(self.pullers):
                puller.join(max(0, ends_ms - self.clock.monotonic_ms()) / 1000)
            if before is not None:
                before()
        finally:
            self._unusable = ClientClosed
            self.pauses.close()
            self.crew.close()
            self._connecting.close()
            self.reaper.close()
            self._watchdog.cancel_all()
            self.let_go()
            # A thread that is still inside pyarrow when the interpreter goes away takes the process down with
            # it.
            self._watchdog.wait_until_unused(_LEAVING_S)
            self._watchdog.close()
            self._transport.close()

    def join(self) -> None:
        """After `close`: wait for threads that gRPC still keeps inside an attempt to connect."""
        self._connecting.join(_CONNECTING_S)

    def disown(self) -> None:
        """In a forked child: its threads are not here, and its locks may be held by nobody."""
        self._unusable = ClientForked


def _close_late(opening: Future[Stream]) -> None:
    """Nobody waits for this stream any longer."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def read_answer(raw: bytes) -> Answer:
    try:
        return decode(raw, Answer)
    except InvalidRequest as wrong:
        raise ProtocolMismatch("an answer of fairlead's Flight protocol", str(wrong.got)) from None
