"""`client.consume`: a loop whose next deliveries are sent ahead, without a thread.

A subscription on a connection of the loop's own sends deliveries as they become ready. The loop reads them
when it needs one or is asked for the next delivery, and sends credit for more as soon as half of the buffer
is free. Leaving the loop returns the rest, in order.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from fairlead.client.attempts import TROUBLES, Attempts
from fairlead.client.commands import PING, command_of, is_push
from fairlead.client.connection import BlockingConnection, NoAnswerInTime
from fairlead.client.outage import ConnectionBroken
from fairlead.client.prefetch import LOOP_WAIT_MS, LoopSubscription, Prefetched
from fairlead.errors import FairleadError
from fairlead.model.delivery import Delivery
from fairlead.model.settle import SettleResult, Start
from fairlead.verbs.settle import Settle

if TYPE_CHECKING:
    from fairlead.client.core import Core


class Consumption:
    """An endless iterator of started deliveries. Several threads may take from it. The caller settles each
    delivery.

    It ends with `close`, with the `with` block, or when no reference to it remains, as after a `break`.
    """

    def __init__(
        self,
        core: Core,
        queue: str | Sequence[str],
        *,
        prefetch: int,
        max_per_stream: int,
        consumer: str,
    ) -> None:
        self._core = core
        self._prefetched = Prefetched(prefetch)
        self._subscription = LoopSubscription(
            queue,
            self._prefetched,
            max_per_stream=max_per_stream,
            consumer=consumer,
            tokens=core.tokens,
        )
        self._changed = threading.Condition()
        self._is_closed = False
        #: One thread reads for all.
        self._is_reading = False
        self._connection: BlockingConnection | None = None
        #: The number of replies due on the connection. Only the reply that begins the subscription matters.
        self._due = 0
        self._is_beginning = False
        self._due_ends_s = 0.0
        core.loops.add(self)

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        while True:
            delivery, is_started = self._take()
            if not is_started:
                try:
                    (result,) = self._core.do(Settle([Start(delivery)]))
                except BaseException:
                    self.put_back(delivery)
                    raise
                if not result.ok:
                    continue
            self._core.handed_out.add(delivery, self)
            return delivery

    def close(self) -> None:
        """Return the deliveries that were not handed out. The others stay leased."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            if self._is_reading and self._connection is not None:
                self._connection.wake()
            elif not self._is_reading:
                self._end_subscription()
            left = self._prefetched.take_all()
            self._changed.notify_all()
        if left:
            self._core.give_back(left)

    def __enter__(self) -> Consumption:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_is_closed", True) or self._core.is_closed or sys.is_finalizing():
            return
        # A destructor may run at any point of any thread, also while that thread holds one of our locks.
        _thread.start_new_thread(self.close, ())

    # Called by settles

    def take_ahead(self) -> Delivery | None:
        with self._changed:
            if self._is_closed:
                return None
            if not self._prefetched.has_some:
                self._look_ahead()
            return self._prefetched.take_ahead()

    def was_started(self, delivery: Delivery, result: SettleResult) -> None:
        with self._changed:
            self._prefetched.was_started(delivery, result)
            self._changed.notify()
        self._give_back_late()

    def put_back(self, delivery: Delivery) -> None:
        with self._changed:
            self._prefetched.put_back(delivery)
            self._changed.notify()
        self._give_back_late()

    def _give_back_late(self) -> None:
        """Return deliveries that came back after the loop was closed."""
        with self._changed:
            left = self._prefetched.take_all() if self._is_closed else []
        if left:
            self._core.give_back(left)

    # The subscription

    def _take(self) -> tuple[Delivery, bool]:
        """The next delivery, and whether its start is confirmed."""
        while True:
            with self._changed:
                while True:
                    if self._is_closed:
                        raise StopIteration
                    self._core.check()
                    started = self._prefetched.next_started()
                    found = started or self._prefetched.next_to_start()
                    if found is not None:
                        self._look_ahead()
                        return found, started is not None
                    if not self._is_reading:
                        self._is_reading = True
                        break
                    self._changed.wait()
            self._fetch()

    def _look_ahead(self) -> None:
        """Take the deliveries that have arrived, and send credit if there is room, without waiting. The next
        waiting call meets a failure again.
        """
        if self._is_reading or self._connection is None:
            return
        try:
            # Checking for replies is a system call, and this code runs for each message.
            if (self._prefetched.expects_some or self._due) and self._connection.has_replies:
                self._receive(0)
            self._ask_for_more()
        except (ConnectionBroken, FairleadError):
            self._drop_connection()

    def _fetch(self) -> None:
        """Wait for deliveries, for all threads."""
        attempts = self._attempts()
        try:
            while not self._is_closed:
                try:
                    if self._listen():
                        # The server has answered: a later failure is a new one, with attempts of its own.
                        attempts = self._attempts()
                        if self._prefetched.has_some:
                            break
                except TROUBLES as trouble:
                    self._drop_connection()
                    # Checked first: closing a client closes its loops before, and they end without an error.
                    if self._is_closed:
                        break
                    self._core.check()
                    self._core.pause(attempts, trouble)
        except BaseException:
            # Interrupted or refused. The server takes back the deliveries under way.
            self._drop_connection()
            raise
        finally:
            with self._changed:
                self._is_reading = False
                if self._is_closed:
                    self._end_subscription()
                self._changed.notify_all()
            self._give_back_late()

    def _attempts(self) -> Attempts:
        return self._core.attempts(self._subscription.request, LOOP_WAIT_MS)

    def _listen(self) -> bool:
        """Wait for a while. Returns whether the server sent anything."""
        if self._connection is None and not self._begin():
            return False
        self._ask_for_more()
        if self._due:
            within_s = self._due_ends_s - time.monotonic()
        else:
            within_s = LOOP_WAIT_MS / 1000
        try:
            self._receive(within_s)
        except NoAnswerInTime:
            if self._due:
                raise
            self._send(PING)
            return False
        return True

    def _begin(self) -> bool:
        connection = self._core.connections.take(self._core.options.timeout_ms / 1000)
        with self._changed:
            self._connection = connection
            if self._is_closed:
                # After a close, nothing would end a subscription that begins now.
                return False
            request, stale = self._subscription.begin(), self._prefetched.stale
        self._is_beginning = True
        letting_go = [command_of(self._core.letting_go(stale))] if stale else []
        self._send(*letting_go, command_of(request))
        return True

    def _ask_for_more(self) -> None:
        credit = self._subscription.more()
        if credit is not None:
            self._send(command_of(credit))

    def _send(self, *commands: bytes) -> None:
        assert self._connection is not None
        within_s = self._core.options.timeout_ms / 1000
        if not self._due:
            self._due_ends_s = time.monotonic() + within_s
        self._due += len(commands)
        self._connection.send(b"".join(commands), within_s)

    def _receive(self, within_s: float) -> None:
        assert self._connection is not None
        for reply in self._connection.receive(within_s):
            if is_push(reply):
                # Only one thread reads the connection, but all threads use the buffer.
                self._core.hold(*self._subscription.hear(reply))
                continue
            self._due -= 1
            self._due_ends_s = self._connection.heard_s + self._core.options.timeout_ms / 1000
            if self._is_beginning and not self._due:
                self._is_beginning = False
                self._subscription.begun(reply)
                self._core.outage_is_over()

    def _drop_connection(self) -> None:
        with self._changed:
            connection, self._connection = self._connection, None
            self._due, self._is_beginning = 0, False
            self._subscription.lose()
        if connection is not None:
            self._core.connections.forget(connection)

    def _end_subscription(self) -> None:
        """Cancel the subscription. Called under the lock, while no thread reads.

        All pushes that were sent are read, and the server takes back deliveries that were not started.
        Closing the connection also ends the subscription.
        """
        if self._connection is None:
            return
        cancel = self._subscription.end()
        with suppress(ConnectionBroken, FairleadError):
            if cancel is not None:
                ends_s = time.monotonic() + self._core.closing_s()
                self._send(command_of(cancel))
                while self._due:
                    self._receive(ends_s - time.monotonic())
                connection, self._connection = self._connection, None
                self._core.connections.give_back(connection)
        self._drop_connection()
