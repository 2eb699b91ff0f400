"""A channel is one open stream of one verb: its requests are answered in order, one at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pyarrow as pa

from fairlead.client.flight.transport import BROKEN, ExchangeStream, describe, refusal_of
from fairlead.client.outage import ConnectionBroken
from fairlead.clock import Clock

Reply = tuple[bytes, pa.RecordBatch | None]

_NEVER = 1 << 62
#: A server holds a request in memory until the next one comes on the same channel, so the channel of a large
#: request is closed.
_LARGE_BYTES = 4 * 1024 * 1024


class Channel:
    """Used by one thread at a time. Any failure makes the channel unusable for ever."""

    def __init__(self, stream: ExchangeStream, watchdog: Watchdog) -> None:
        self._stream = stream
        self._watchdog = watchdog
        self.deadline_ms = _NEVER
        self.late = False
        self.broken = False
        self.sent_bytes = 0
        watchdog.add(self)

    def call(self, metadata: bytes, batch: pa.RecordBatch | None, *, within_ms: int) -> Reply:
        # The deadline covers both steps: the write also waits if the server does not read.
        self.expect(within_ms)
        self.send(metadata, batch)
        return self.receive()

    def send(self, metadata: bytes, batch: pa.RecordBatch | None) -> None:
        self.sent_bytes = len(metadata) + (0 if batch is None else batch.nbytes)
        try:
            self._stream.write(metadata, batch)
        except BaseException as error:
            # A write to a dead stream sends nothing. Only if this client cancelled the stream may the request
            # have been sent.
            self._fail(error, sent=self.broken)
            raise

    def receive(self) -> Reply:
        try:
            reply = self._stream.read()
        except BaseException as error:
            self._fail(error, sent=True)
            raise
        self.deadline_ms = _NEVER
        return reply

    def expect(self, within_ms: int) -> None:
        """Set the deadline of the operation under way; the channel breaks if it is missed. Any thread may
        call it.
        """
        self._watchdog.watch(self, within_ms)

    def rest(self) -> None:
        """No operation is under way."""
        self.deadline_ms = _NEVER

    def cancel(self) -> None:
        """Break the channel: a thread that waits for it gets `ConnectionBroken`. Any thread may call it."""
        self.broken = True
        self._stream.cancel()

    def abandon_if_late(self) -> None:
        """After a missed deadline, open new channels on another connection: this one may be dead without
        knowing.
        """
        if self.late:
            self._stream.abandon()

    def close(self) -> None:
        """Close the channel. Only the thread that uses it may call this."""
        self.broken = True
        self.deadline_ms = _NEVER
        with contextlib.suppress(*BROKEN):
            self._stream.close()
        self._watchdog.remove(self)

    def _fail(self, error: BaseException, *, sent: bool) -> None:
        """Close the channel and raise the error in the client's terms.

        Also after an interrupt: the unread answer would be taken for the answer to the next request.
        """
        self.close()
        if not isinstance(error, BROKEN):
            return
        refusal = refusal_of(error)
        if refusal is not None:
            raise refusal from None
        raise ConnectionBroken("no answer in time" if self.late else describe(error), sent=sent) from error


class Watchdog:
    """Cancels channels whose deadline has passed: a pyarrow read has no timeout.

    One thread serves all channels of a client. It sleeps until the earliest known deadline; a call costs it
    nothing, because its deadline is nearly always later.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._channels: set[Channel] = set()
        self._wakes_ms = _NEVER
        self._closed = False
        self._ended = False
        self._thread: threading.Thread | None = None
        #: The number of calls that had no answer in time.
        self.late = 0

    def add(self, channel: Channel) -> None:
        with self._changed:
            self._channels.add(channel)
            ended = self._ended
            if self._thread is None and not ended:
                self._thread = threading.Thread(target=self._run, name="fairlead-watchdog", daemon=True)
                self._thread.start()
        if ended:
            channel.cancel()

    def remove(self, channel: Channel) -> None:
        with self._changed:
            self._channels.discard(channel)
            if self._ended and not self._channels:
                self._changed.notify_all()

    def watch(self, channel: Channel, within_ms: int) -> None:
        deadline_ms = channel.deadline_ms = self._clock.monotonic_ms() + within_ms
        if deadline_ms < self._wakes_ms:
            with self._changed:
                self._wakes_ms = min(self._wakes_ms, deadline_ms)
                self._changed.notify()

    def cancel_all(self) -> None:
        """End every call under way, and every later one."""
        with self._changed:
            self._ended = True
            channels = list(self._channels)
        for channel in channels:
            channel.cancel()

    def wait_until_unused(self, timeout_s: float) -> None:
        """After `cancel_all`: wait until the threads that used channels have left them."""
        with self._changed:
            self._changed.wait_for(lambda: not self._channels, timeout_s)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now_ms = self._clock.monotonic_ms()
                late = [channel for channel in self._channels if channel.deadline_ms <= now_ms]
                if not late:
                    # Set to never first, so that a deadline that another thread sets after this check is
                    # earlier and notifies.
                    self._wakes_ms = _NEVER
                    self._wakes_ms = wakes_ms = min(
                        [channel.deadline_ms for channel in self._channels], default=_NEVER
                    )
                    self._clock.wait(self._changed, None if wakes_ms == _NEVER else wakes_ms - now_ms)
                    continue
            for channel in late:
                channel.deadline_ms = _NEVER
                channel.late = True
                self.late += 1
                channel.cancel()


class Pool:
    """The channels of one verb: one per concurrent call, of which up to `most_idle` stay open.

    `open_stream` gets its time limit in milliseconds.
    """

    def __init__(
        self, open_stream: Callable[[int], ExchangeStream], watchdog: Watchdog, most_idle: int
    ) -> None:
        self._open_stream = open_stream
        self._watchdog = watchdog
        self._most_idle = most_idle
        self._idle: list[Channel] = []

    def take(self, within_ms: int) -> Channel:
        """An idle or a new channel. Raises `ConnectionBroken`, with nothing sent."""
        while self._idle:
            try:
                channel = self._idle.pop()
            except IndexError:
                break
            if not channel.broken:
                return channel
            channel.close()
        try:
            return Channel(self._open_stream(within_ms), self._watchdog)
        except BROKEN as error:
            raise ConnectionBroken(describe(error), sent=False) from error

    def give_back(self, channel: Channel) -> None:
        if channel.broken or channel.sent_bytes > _LARGE_BYTES or len(self._idle) >= self._most_idle:
            channel.close()
        else:
            self._idle.append(channel)

    def forget(self) -> None:
        """Close the idle channels."""
        idle, self._idle = self._idle, []
        for channel in idle:
            channel.close()
