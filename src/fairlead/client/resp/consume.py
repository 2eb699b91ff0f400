"""`client.consume`: a loop whose next deliveries are claimed ahead, without a thread.

A claim for more goes out on a connection of the loop's own as soon as half of the buffer is free; its answer is read when
the loop needs it, or is asked for the next delivery. Leaving the loop gives the rest back, in order.
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

from fairlead.client.outage import ConnectionBroken
from fairlead.client.resp.attempts import TROUBLES
from fairlead.client.resp.calls import SHORT_POLL_MS
from fairlead.client.resp.commands import answer_of, command_of
from fairlead.client.resp.connection import BlockingConnection
from fairlead.client.resp.prefetch import LOOP_WAIT_MS, LoopClaims, Prefetched
from fairlead.errors import FairleadError
from fairlead.model.delivery import Delivery
from fairlead.model.settle import SettleResult, Start
from fairlead.verbs.claim import Claim
from fairlead.verbs.settle import Settle

if TYPE_CHECKING:
    from fairlead.client.resp.core import RespCore


class RespConsumption:
    """An endless iterator of started deliveries; several threads may take from it. Settle each of them yourself.

    Ends with `close`, with the `with` block, or when nothing refers to it any longer, as after a `break`.
    """

    def __init__(
        self,
        core: RespCore,
        queue: str | Sequence[str],
        *,
        prefetch: int,
        max_per_stream: int,
        consumer: str,
    ) -> None:
        self._core = core
        self._claims = LoopClaims(queue, max_per_stream, consumer, core.tokens)
        self._prefetched = Prefetched(prefetch)
        self._changed = threading.Condition()
        self._is_closed = False
        #: One thread reads for all.
        self._is_reading = False
        self._connection: BlockingConnection | None = None
        #: The claim that is not answered. Sent again under its token it gives the same deliveries.
        self._claim: Claim | None = None
        self._is_sent = False
        self._answer_ends_s = 0.0
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
        """Gives back what was not handed out. What was, stays leased."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            if self._is_reading and self._connection is not None:
                self._connection.wake()
            elif not self._is_reading:
                self._end_claim()
            left = self._prefetched.take_all()
            self._changed.notify_all()
        if left:
            self._core.give_back(left)

    def __enter__(self) -> RespConsumption:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_is_closed", True) or self._core.is_closed or sys.is_finalizing():
            return
        # A destructor may run at any point of any thread, also inside one of our locks.
        _thread.start_new_thread(self.close, ())

    # For settles

    def take_ahead(self) -> Delivery | None:
        with self._changed:
            return None if self._is_closed else self._prefetched.take_ahead()

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
        """What came back after the loop was left."""
        with self._changed:
            left = self._prefetched.take_all() if self._is_closed else []
        if left:
            self._core.give_back(left)

    # What is claimed

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
        """Without waiting: take what has come, and claim more if there is room. Trouble is met again by who waits."""
        if self._is_reading or self._connection is None:
            return
        try:
            if self._is_sent and self._connection.has_replies:
                self._receive()
            if not self._is_sent and self._prefetched.room:
                self._send()
        except (ConnectionBroken, FairleadError):
            self._drop_connection()

    def _fetch(self) -> None:
        """Wait for deliveries, for all threads."""
        request = self._claim or self._claims.make(max(1, self._prefetched.room))
        attempts = self._core.attempts(request, LOOP_WAIT_MS)
        began_s = time.monotonic()
        try:
            while not self._is_closed:
                try:
                    if self._wait_for_answer():
                        break
                except TROUBLES as trouble:
                    self._drop_connection()
                    # First, because a client that is closed has closed its loops before: they end without an error.
                    if self._is_closed:
                        break
                    self._core.check()
                    self._core.pause(attempts, trouble)
        finally:
            with self._changed:
                self._is_reading = False
                if self._is_closed:
                    self._end_claim()
                self._changed.notify_all()
            self._give_back_late()
        if not self._is_closed and time.monotonic() - began_s < SHORT_POLL_MS / 1000:
            with self._changed:
                is_idle = not self._prefetched.has_some
            if is_idle:
                self._core.rest(SHORT_POLL_MS)

    def _wait_for_answer(self) -> bool:
        if self._connection is None:
            connection = self._core.connections.take(self._core.options.timeout_ms / 1000)
            with self._changed:
                self._connection = connection
                if self._is_closed:
                    # Nobody could end a claim that is sent now.
                    return True
        if not self._is_sent:
            self._send()
        return self._receive()

    def _send(self) -> None:
        assert self._connection is not None
        if self._claim is None:
            self._claim = self._claims.make(max(1, self._prefetched.room))
        within_s = self._core.options.timeout_ms / 1000
        self._is_sent = True
        self._answer_ends_s = time.monotonic() + LOOP_WAIT_MS / 1000 + within_s
        self._connection.send(command_of(self._claim), within_s)

    def _receive(self) -> bool:
        """Whether the answer is whole."""
        assert self._connection is not None
        replies = self._connection.receive(self._answer_ends_s - time.monotonic())
        if not replies:
            return False
        claim, self._claim, self._is_sent = self._claim, None, False
        assert claim is not None
        found, now_ms = answer_of(claim, replies[0])
        self._core.outage_is_over()
        self._core.hold(found, now_ms)
        # The reader is alone with the connection, and the buffer is everybody's.
        self._prefetched.add(found)
        return True

    def _drop_connection(self) -> None:
        connection, self._connection, self._is_sent = self._connection, None, False
        if connection is not None:
            self._core.connections.forget(connection)

    def _end_claim(self) -> None:
        """Under the lock, with nobody reading. The server ends a claim whose connection is closed."""
        if self._connection is None:
            return
        with suppress(ConnectionBroken, FairleadError):
            while self._is_sent and self._connection.has_replies and not self._receive():
                pass
        if self._is_sent:
            self._drop_connection()
        else:
            connection, self._connection = self._connection, None
            self._core.connections.give_back(connection)
