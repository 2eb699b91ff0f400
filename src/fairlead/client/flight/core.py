"""Channels to one server, and one request with all its attempts. Every bulk verb is safe to repeat."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress

import pyarrow as pa

from fairlead.client.flight.channel import Channel, Pool, Watchdog
from fairlead.client.flight.daemon_threads import DaemonThreads
from fairlead.client.flight.transport import ExchangeStream, Transport
from fairlead.client.lifetimes import watch
from fairlead.client.options import Options
from fairlead.client.outage import ConnectionBroken, Outage
from fairlead.client.patience import Patience, Pauses
from fairlead.clock import Clock, SystemClock
from fairlead.errors import (
    BrokerClosed,
    ClientClosed,
    ClientForked,
    InvalidRequest,
    Overloaded,
    ProtocolMismatch,
    ServerStopping,
    ServerUnreachable,
    TlsFailed,
)
from fairlead.wire.calls import Answer, decode
from fairlead.wire.faults import error_of

#: The channels that a client uses.
_CHANNELS = ("write", "read", "browse")
#: How long a close waits for threads whose calls it cancelled. They need no answer from the server.
_LEAVING_S = 1.0
#: Longer than gRPC's own attempt to connect; see transport.py.
_CONNECTING_S = 3.0
_MAX_IDLE_CHANNELS = 16
_MAX_THREADS = 1024
_MAX_CONNECTING_THREADS = 256

#: Failures after which another attempt may succeed.
TROUBLES = (ConnectionBroken, ServerStopping, BrokerClosed, Overloaded)


class FlightCore:
    def __init__(self, options: Options, transport: Transport, clock: Clock | None = None) -> None:
        self.options = options
        self.clock = clock or SystemClock()
        #: For the asyncio client, whose calls run in these threads.
        self.threads = DaemonThreads(_MAX_THREADS)
        #: Separate, because the other threads wait for these.
        self._connecting = DaemonThreads(_MAX_CONNECTING_THREADS)
        self.pauses = Pauses(self.clock)
        self.outage = Outage(options.address, self.clock)
        self._transport = transport
        self._watchdog = Watchdog(self.clock)
        self._pools = {
            verb: Pool(self._opener(verb), self._watchdog, _MAX_IDLE_CHANNELS) for verb in _CHANNELS
        }
        self._unusable: type[ClientClosed | ClientForked] | None = None
        #: Whether the server has ever answered. If so, the cause of a failed connection is new and may pass.
        self._met = False
        self._close_lock = threading.Lock()
        watch(self)

    def check(self) -> None:
        if self._unusable is not None:
            raise self._unusable()

    def take_channel(self, verb: str, within_ms: int) -> Channel:
        """A channel of the verb. Raises `ConnectionBroken`, with nothing sent."""
        try:
            return self._pools[verb].take(within_ms)
        except ConnectionBroken:
            self.let_go()
            raise

    def give_back(self, verb: str, channel: Channel) -> None:
        self._pools[verb].give_back(channel)

    def broke(self, channel: Channel) -> None:
        """After a broken connection, close its other channels too: they are unusable."""
        channel.abandon_if_late()
        self.let_go()

    def patience(self) -> Patience:
        """The time limits of a call, or of one batch of a streamed answer, that begins now."""
        options = self.options
        ends_ms = self.clock.monotonic_ms() + options.timeout_ms + options.retry_for_ms
        return Patience(self.pauses, options.retry_for_ms, ends_ms)

    def ask(self, verb: str, metadata: bytes, batch: pa.RecordBatch | None) -> Answer:
        """Carry out one request. It is sent again after each failure that may pass, until `retry_for` is
        over.

        Raises the engine's own errors, and `ServerUnreachable` or `Overloaded` when the time is over.
        """
        patience = self.patience()
        while True:
            self.check()
            try:
                return self._try(verb, metadata, batch, min(self.options.timeout_ms, patience.left_ms()))
            except TROUBLES as trouble:
                self.wait_after(trouble, patience)

    def wait_after(self, trouble: Exception, patience: Patience) -> None:
        """Wait until the next attempt. If there is none, raise the error with which the call ends."""
        at_least_ms = 0
        if isinstance(trouble, Overloaded):
            at_least_ms = int(trouble.retry_after_ms)
        elif isinstance(trouble, ConnectionBroken):
            if not self._met:
                self._give_up_if_hopeless(patience.left_ms())
        else:
            self.let_go()
        self.check()
        self.outage.met(trouble)
        if not patience.wait(at_least_ms):
            self._give_up(trouble, patience.left_ms())

    def let_go(self) -> None:
        """Close every idle channel: a server that is stopping waits for clients with open channels."""
        for pool in self._pools.values():
            pool.forget()

    def _give_up(self, trouble: Exception, within_ms: int) -> None:
        if isinstance(trouble, Overloaded):
            raise trouble
        self._give_up_if_hopeless(within_ms)
        # The message has the cause; pyarrow's own traceback would only hide it.
        raise ServerUnreachable(self.options.address, str(trouble)) from None

    def _give_up_if_hopeless(self, within_ms: int) -> None:
        found = self._connecting.submit(self._transport.why_hopeless)
        with suppress(TimeoutError):
            if hopeless := found.result(within_ms / 1000):
                raise TlsFailed(self.options.address, hopeless) from None

    def _try(self, verb: str, metadata: bytes, batch: pa.RecordBatch | None, within_ms: int) -> Answer:
        ends_ms = self.clock.monotonic_ms() + within_ms
        channel = self.take_channel(verb, within_ms)
        try:
            raw, _ = channel.call(metadata, batch, within_ms=max(0, ends_ms - self.clock.monotonic_ms()))
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
        return answer

    def _opener(self, verb: str) -> Callable[[int], ExchangeStream]:
        """A function that opens a stream in another thread. gRPC blocks without a limit while it connects, so
        the caller may leave that thread behind.
        """

        def open_within(within_ms: int) -> ExchangeStream:
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

    def close(self) -> None:
        """End every call under way with `ClientClosed`."""
        with self._close_lock:
            if self._unusable is not None:
                return
            self._unusable = ClientClosed
        self.pauses.close()
        self.threads.close()
        self._connecting.close()
        self._watchdog.cancel_all()
        self.let_go()
        # A thread that is still inside pyarrow when the interpreter exits crashes the process.
        self._watchdog.wait_until_unused(_LEAVING_S)
        self._watchdog.close()
        self._transport.close()

    def join(self) -> None:
        """After `close`: wait for threads that gRPC still keeps inside an attempt to connect."""
        self._connecting.join(_CONNECTING_S)

    def disown(self) -> None:
        """Make the core unusable in a forked child: its threads do not exist there, and its locks may never
        be released.
        """
        self._unusable = ClientForked


def _close_late(opening: Future[ExchangeStream]) -> None:
    """Close a stream whose caller has left."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def read_answer(raw: bytes) -> Answer:
    try:
        return decode(raw, Answer)
    except InvalidRequest as wrong:
        raise ProtocolMismatch("an answer of fairlead's Flight protocol", str(wrong.got)) from None
