"""The blocking core that both faces of the client share: connections, retries, ids, threads."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
import pyarrow as pa

from fairlead.client.channel import Channel, ConnectionBroken, Pool, Watchdog
from fairlead.client.crew import Crew
from fairlead.client.lifetimes import Reaper, watch
from fairlead.client.outage import Outage
from fairlead.client.patience import Patience, Pauses
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
    TlsFailed,
)
from fairlead.model.ids import IdSource, show_id
from fairlead.model.limits import MAX_ANSWERED
from fairlead.wire.calls import Answer, decode
from fairlead.wire.faults import error_of
from fairlead.wire.schemas import CHANNELS

if TYPE_CHECKING:
    from fairlead.client.consume import Puller

#: Looking at ten million messages may take a while, and administration is in no hurry to give up.
ADMIN_TIMEOUT_MS = 300_000
#: What a close may still wait for, so that a dead server does not keep a program from ending.
_CLOSING_MS = 2000
_MOST_IDLE_CHANNELS = 16
_MOST_THREADS = 1024

Asked = tuple[Answer, pa.RecordBatch | None]

#: What may be done when an answer did not come: a question may be asked again, a request with an id of its own as well, but
#: when it is given up nobody knows what became of it; of any other request that is so at once.
Repeat = Literal["freely", "by id", "never"]


class Options(msgspec.Struct, frozen=True):
    address: str
    consumer: str
    retry_for_ms: int = 30_000
    timeout_ms: int = 30_000
    heartbeat_cap_ms: int | None = 600_000


def default_consumer() -> str:
    """Says where to look for it, and differs from every other."""
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(3)}"


class Core:
    def __init__(self, options: Options, *, transport: Transport | None = None, clock: Clock | None = None) -> None:
        self.options = options
        self.clock = clock or SystemClock()
        self.crew = Crew(_MOST_THREADS)
        self.pauses = Pauses(self.clock)
        self.outage = Outage(options.address, self.clock)
        self.reaper = Reaper()
        self.pullers: set[Puller] = set()
        self._transport = transport or FlightTransport(options.address)
        self._watchdog = Watchdog(self.clock)
        self._pools = {verb: Pool(self._opener(verb), self._watchdog, _MOST_IDLE_CHANNELS) for verb in CHANNELS}
        self._ids = IdSource()
        self._ids_lock = threading.Lock()
        #: How far the server's clock is ahead of ours; known only once it matters.
        self._skew_ms = 0
        self._unusable: type[ClientClosed | ClientForked] | None = None
        self._closing = False
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

    def take_channel(self, verb: str) -> Channel:
        """Raises `ConnectionBroken`, with nothing sent."""
        try:
            return self._pools[verb].take()
        except ConnectionBroken:
            self.let_go()
            raise

    def give_back(self, verb: str, channel: Channel) -> None:
        self._pools[verb].give_back(channel)

    def broke(self, channel: Channel) -> None:
        """After a connection broke, what else is open on it is no good either."""
        channel.abandon_if_late()
        self.let_go()

    def patience(self) -> Patience:
        return Patience(self.pauses, 0 if self._closing else self.options.retry_for_ms)

    def new_id(self) -> str:
        with self._ids_lock:
            return show_id(self._ids.next(self.clock.now_ms() + self._skew_ms, 1)[0])

    def learn_skew(self, expired: RequestExpired) -> None:
        """By how much an id that was just made is too old, or too new, for the server."""
        with self._ids_lock:
            self._skew_ms += int(expired.age_ms)
            # A new source, because a source makes no id that is older than its last.
            self._ids = IdSource()

    def ask(
        self,
        verb: str,
        metadata: bytes | Callable[[], bytes],
        batch: pa.RecordBatch | None = None,
        *,
        name: str = "",
        timeout_ms: int | None = None,
        repeat: Repeat = "freely",
    ) -> Asked:
        """One request, sent again after every trouble that may pass, until `retry_for` is over.

        Raises the engine's own errors; `ServerUnreachable` or `Overloaded` when the time is over and nothing was carried out;
        `AnswerLost` when that is not known and the request cannot be repeated, or could not in time.
        """
        patience: Patience | None = None
        sent = False
        while True:
            self.check()
            at_least_ms = 0
            try:
                return self._try(verb, metadata if isinstance(metadata, bytes) else metadata(), batch, timeout_ms)
            except ConnectionBroken as broken:
                sent = sent or broken.sent
                trouble: Exception = broken
                if not self._met:
                    self._give_up_if_hopeless()
            except (ServerStopping, BrokerClosed) as stopping:
                self.let_go()
                trouble = stopping
            except Overloaded as overloaded:
                trouble = overloaded
                at_least_ms = int(overloaded.retry_after_ms)
            except RequestExpired as expired:
                if sent:
                    raise AnswerLost(name or verb) from expired
                raise
            self.check()
            if sent and repeat == "never":
                raise AnswerLost(name or verb) from trouble
            self.outage.met(trouble)
            patience = patience or self.patience()
            if not patience.wait(at_least_ms):
                if sent and repeat == "by id":
                    raise AnswerLost(name or verb) from trouble
                self.give_up(trouble)

    def let_go(self) -> None:
        """Close every idle channel. A server that is stopping waits for those who keep one open."""
        for pool in self._pools.values():
            pool.forget()

    def give_up(self, trouble: Exception) -> None:
        if isinstance(trouble, Overloaded):
            raise trouble
        self._give_up_if_hopeless()
        # What broke is in the text; pyarrow's own account of it would only bury that.
        raise ServerUnreachable(self.options.address, str(trouble)) from None

    def _give_up_if_hopeless(self) -> None:
        hopeless = self._transport.why_hopeless()
        if hopeless:
            raise TlsFailed(self.options.address, hopeless) from None

    def _try(self, verb: str, metadata: bytes, batch: pa.RecordBatch | None, timeout_ms: int | None) -> Asked:
        channel = self.take_channel(verb)
        within_ms = timeout_ms or self.options.timeout_ms
        try:
            raw, body = channel.call(metadata, batch, within_ms=min(within_ms, _CLOSING_MS) if self._closing else within_ms)
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

    def _opener(self, verb: str) -> Callable[[], Stream]:
        return lambda: self._transport.open(verb)

    def close(self, before: Callable[[], None] | None = None) -> None:
        """`before` is what may still be said while it can be. Ends every call under way with `ClientClosed`."""
        with self._close_lock:
            if self.closed or self._closing:
                return
            self._closing = True
        try:
            for puller in list(self.pullers):
                puller.stop()
            for puller in list(self.pullers):
                puller.join(_CLOSING_MS / 1000)
            if before is not None:
                before()
        finally:
            self._unusable = ClientClosed
            self.pauses.close()
            self.crew.close()
            self.reaper.close()
            self._watchdog.cancel_all()
            self.let_go()
            # A thread that is still inside pyarrow when the interpreter goes away takes the process down with it.
            self._watchdog.wait_until_unused(1.0)
            self._watchdog.close()
            self._transport.close()

    def disown(self) -> None:
        """In a forked child: its threads are not here, and its locks may be held by nobody."""
        self._unusable = ClientForked


class Once:
    """Requests of one kind that take effect once, however often they are sent. Thread-safe."""

    def __init__(self, core: Core, verb: str) -> None:
        self._core = core
        self._verb = verb
        self._lock = threading.Lock()
        #: Ids whose answers are here, which the server is told with the next request and may forget.
        self._answered: list[str] = []

    def ask(self, metadata: Callable[[str, Sequence[str]], bytes], batch: pa.RecordBatch | None, *, room: int = MAX_ANSWERED) -> Asked:
        """`metadata` puts the id of this request and those of up to `room` answered ones in."""
        try:
            return self._ask(metadata, batch, room)
        except RequestExpired as expired:
            # A new id that was refused as it came: nothing was carried out, and our clock is far from the server's.
            self._core.learn_skew(expired)
        return self._ask(metadata, batch, room)

    def _ask(self, metadata: Callable[[str, Sequence[str]], bytes], batch: pa.RecordBatch | None, room: int) -> Asked:
        request_id = self._core.new_id()
        with self._lock:
            # Taken out, so that of several requests under way only one tells of each.
            answered, self._answered = self._answered[: max(0, room)], self._answered[max(0, room) :]
        try:
            asked = self._core.ask(self._verb, metadata(request_id, answered), batch, repeat="by id")
        except BaseException:
            with self._lock:
                self._answered[:0] = answered
            raise
        with self._lock:
            self._answered.append(request_id)
        return asked


def read_answer(raw: bytes) -> Answer:
    try:
        return decode(raw, Answer)
    except InvalidRequest as wrong:
        raise ProtocolMismatch("an answer of fairlead's Flight protocol", str(wrong.got)) from None
