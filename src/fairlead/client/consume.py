"""`for delivery in client.consume("orders")`: a buffer that is filled ahead, and deliveries that start when
they are yours.

A thread per loop asks for messages with credit: as many as the buffer has room for, once it is half empty.
What it holds is unstarted, so if this process dies, nothing in the buffer counts as a failed try. Before a
delivery is handed out its start is confirmed; one whose lease was lost in the buffer is skipped. Leaving the
loop gives the rest back, in order.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import msgspec

from fairlead.client.channel import Channel
from fairlead.client.core import Core, read_answer
from fairlead.client.outage import ConnectionBroken
from fairlead.client.requests import Requests
from fairlead.errors import (
    BrokerClosed,
    ClientClosed,
    FairleadError,
    InvalidRequest,
    Overloaded,
    ServerStopping,
)
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_CLAIM
from fairlead.model.settle import Release, Start
from fairlead.verbs.settle import Settle
from fairlead.wire.calls import ClaimCall, encode
from fairlead.wire.faults import error_of

_POLL_MS = 10_000
#: After the loop was left: when nothing has arrived for so long, nothing is under way, and the open credit is
#: cancelled.
_QUIET_MS = 20
#: How long leaving a loop waits for what it gives back.
_LEAVING_S = 2.0


class Consumption:
    """An endless iterator of started deliveries; several threads may take from it. Settle each of them
    yourself.

    Ends with `close`, with the `with` block, or when nothing refers to it any longer, as after a `break`.
    """

    def __init__(self, puller: Puller) -> None:
        self._puller = puller

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        while True:
            delivery = self._puller.take()
            try:
                (result,) = self._puller.requests.settle(Settle([Start(delivery)]))
            except BaseException:
                self._puller.put_back(delivery)
                raise
            if result.ok:
                return delivery

    def close(self) -> None:
        """Gives back what was not handed out. What was, stays leased."""
        close_puller(self._puller)

    def __enter__(self) -> Consumption:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        puller = getattr(self, "_puller", None)
        if puller is not None and not puller.stopped and not puller.core.closed:
            puller.core.reaper.put(puller)
            puller.join(_LEAVING_S)


def close_puller(puller: Puller) -> None:
    puller.stop()
    puller.join(_LEAVING_S)


class Puller:
    """Fills a buffer of up to `prefetch` deliveries in a thread of its own."""

    def __init__(
        self,
        requests: Requests,
        queue: str | Sequence[str],
        *,
        prefetch: int,
        max_per_stream: int,
        consumer: str,
    ) -> None:
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 1 <= prefetch <= MAX_CLAIM:
            raise InvalidRequest("prefetch", f"a whole number from 1 to {MAX_CLAIM}", prefetch)
        self.requests = requests
        self.core: Core = requests.core
        self._call = ClaimCall(
            queue if isinstance(queue, str) else list(queue),
            wait_ms=_POLL_MS,
            consumer=consumer or self.core.options.consumer,
            max_per_stream=max_per_stream,
            started=False,
            in_rows=True,
        )
        self._prefetch = prefetch
        self._changed = threading.Condition()
        self._buffer: deque[Delivery] = deque()
        self._listeners: list[Callable[[], None]] = []
        self._channel: Channel | None = None
        self._error: FairleadError | None = None
        self._pulling = True
        self.stopped = False
        #: Set when what was in the buffer has been given back.
        self.released = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fairlead-consume", daemon=True)

    def start(self) -> None:
        self.core.check()
        self.core.reaper.start()
        self.core.pullers.add(self)
        self._thread.start()

    def take(self) -> Delivery:
        """Waits for one. Raises what ended the pulling, or StopIteration after `stop`."""
        with self._changed:
            while True:
                found = self._find()
                if found is not None:
                    return found
                self._changed.wait()

    def find(self) -> Delivery | None:
        """The next one if it is there; `call_when_changed` says when to look again."""
        with self._changed:
            return self._find()

    def call_when_changed(self, listener: Callable[[], None]) -> None:
        """Once, from another thread; at once if there is something to find."""
        with self._changed:
            if not self._buffer and not self.stopped and self._error is None:
                self._listeners.append(listener)
                return
        listener()

    def put_back(self, delivery: Delivery) -> None:
        """It was not handed out after all, and is the next again."""
        with self._changed:
            self._buffer.appendleft(delivery)
            too_late = self.released.is_set()
        if too_late:
            self._give_back()

    def stop(self) -> None:
        """Ends the pulling, and then gives back what is in the buffer; `released` says when that is done.

        The order matters: credit that is still open at the server would be used on what was given back.
        """
        with self._changed:
            if self.stopped:
                return
            self.stopped = True
            if self._channel is not None:
                self._channel.expect(_QUIET_MS)
            self._announce()
            pulling = self._pulling
        if not pulling:
            self._give_back()

    def join(self, timeout_s: float) -> None:
        self.released.wait(timeout_s)

    def _find(self) -> Delivery | None:
        if self.stopped:
            raise StopIteration
        if not self._buffer:
            if self._error is not None:
                raise self._error
            return None
        delivery = self._buffer.popleft()
        if len(self._buffer) <= self._prefetch // 2:
            self._changed.notify_all()
        return delivery

    def _announce(self) -> None:
        """Under the lock. Listeners only pass the word on to their own loops."""
        self._changed.notify_all()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def _give_back(self) -> None:
        with self._changed:
            left = list(self._buffer)
            self._buffer.clear()
        # Those that cannot be given back run out by themselves, which for what was never started is the same.
        with contextlib.suppress(FairleadError):
            self.requests.settle(Settle([Release(delivery, keep_order=True) for delivery in left]))
        self.released.set()
        self.core.pullers.discard(self)

    def _run(self) -> None:
        try:
            while self._wait_for_room():
                self._pull_patiently()
        except FairleadError as error:
            with self._changed:
                self._error = error
                self._announce()
        finally:
            with self._changed:
                self._pulling = False
                stopped = self.stopped
            if stopped:
                self._give_back()

    def _wait_for_room(self) -> bool:
        """False when there is nothing to wait for any longer."""
        with self._changed:
            while not self.stopped and len(self._buffer) > self._prefetch // 2:
                self._changed.wait()
            return not self.stopped

    def _pull_patiently(self) -> None:
        patience = self.core.patience(_POLL_MS)
        while not self.stopped:
            at_least_ms = 0
            try:
                self._pull(
                    self._prefetch - len(self._buffer),
                    min(_POLL_MS + self.core.options.timeout_ms, patience.left_ms()),
                )
                return
            except ConnectionBroken as broken:
                trouble: Exception = broken
            except (ServerStopping, BrokerClosed) as stopping:
                self.core.let_go()
                trouble = stopping
            except Overloaded as overloaded:
                trouble = overloaded
                at_least_ms = int(overloaded.retry_after_ms)
            self.core.check()
            self.core.outage.met(trouble)
            if not self.stopped and not patience.wait(at_least_ms):
                self.core.give_up(trouble, patience.left_ms())

    def _pull(self, credit: int, within_ms: int) -> None:
        """One credit, until it is used up or the wait is over. Each answer must come within `within_ms`."""
        channel = self.core.take_channel("claim", within_ms)
        more = True
        try:
            self._expect(channel, within_ms)
            channel.send(self._metadata(credit), None)
            while more:
                raw, body = channel.receive()
                answer = read_answer(raw)
                if answer.error is not None:
                    more = False
                    raise error_of(answer.error)
                self.core.outage.over()
                self._take_in(self.requests.deliveries((answer, body)))
                more = not answer.done
                if more:
                    self._expect(channel, _POLL_MS + self.core.options.timeout_ms)
        except (ConnectionBroken, ClientClosed):
            if not self.stopped:
                self.core.broke(channel)
                raise
        finally:
            with self._changed:
                self._channel = None
                # It may have been given little time from outside, for what is now over.
                channel.rest()
            if more and not channel.broken:
                channel.close()
            else:
                self.core.give_back("claim", channel)

    def _metadata(self, credit: int) -> bytes:
        return encode(msgspec.structs.replace(self._call, credit=credit))

    def _expect(self, channel: Channel, within_ms: int) -> None:
        with self._changed:
            self._channel = channel
            channel.expect(_QUIET_MS if self.stopped else within_ms)

    def _take_in(self, deliveries: list[Delivery]) -> None:
        with self._changed:
            self._buffer.extend(deliveries)
            if deliveries:
                self._announce()
