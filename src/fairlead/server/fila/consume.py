"""One open consume stream: claim a little ahead, write, and give back what was never written."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from fairlead.clock import Clock
from fairlead.errors import FairleadError, ServerStopping
from fairlead.middleware.stack import AdmittedCaller
from fairlead.model.access import Right
from fairlead.model.delivery import Delivery
from fairlead.model.settle import Extend, LeaseRef, Start
from fairlead.server.fila.starts import Starter
from fairlead.server.fila.v1 import messages_pb2, service_pb2
from fairlead.server.sent_deliveries import SentDeliveries

#: How far a stream reads ahead of its client: so many messages, and about so many bytes.
AHEAD_MESSAGES = 32
AHEAD_BYTES = 1024 * 1024
#: How long an idle stream waits before it looks whether its client is still there.
_WAIT = "1s"

_numbers = itertools.count(1)
_log = logging.getLogger("fairlead.fila")


class FilaConsumption:
    """What waits here to be written is leased but not started, so that losing it costs its message no
    attempt.

    A message is started when it is handed to gRPC, and from then on counts as seen: a broken stream cannot
    know better. gRPC takes the next one only when the client's window has room, so that a client that does
    not read keeps this thread and at most `AHEAD_MESSAGES` leases, and nobody else's.
    """

    def __init__(
        self,
        broker: AdmittedCaller,
        starter: Starter,
        sent: SentDeliveries,
        clock: Clock,
        stopping: Callable[[], bool],
        queue: str,
        context: grpc.ServicerContext,
    ) -> None:
        self._broker = broker
        self._starter = starter
        self._sent = sent
        self._clock = clock
        self._stopping = stopping
        self._queue = queue
        self._context = context
        self._connection = context.peer()
        self._consumer = f"fila:{self._connection}#{next(_numbers)}"[:200]
        self._ahead: deque[Delivery] = deque()
        self._room = AHEAD_MESSAGES
        self._started = False
        self._claimed_at_ms = 0
        self._claimed_monotonic_ms = 0

    def responses(self) -> Iterator[service_pb2.ConsumeResponse]:
        """Until the client leaves (then this is closed or runs out), the queue is deleted or the server
        stops.
        """
        try:
            opened = False
            while self._context.is_active():
                if self._stopping():
                    raise ServerStopping()
                if not self._ahead:
                    self._claim(wait=opened)
                    if not opened:
                        # The queue is there: tell the client so now, not with the first message. Some wait
                        # for it. A client that has left meanwhile is noticed by `is_active`.
                        with suppress(grpc.RpcError):
                            self._context.send_initial_metadata(())
                        opened = True
                    continue
                # What was claimed ahead is not for a key that has been revoked since.
                self._broker.rights.need(Right.CONSUME, self._queue)
                delivery = self._ahead[0]
                if self._make_ready(delivery):
                    lease_end_ms = self._claimed_monotonic_ms + delivery.lease_until - self._claimed_at_ms
                    self._sent.remember(
                        self._connection,
                        delivery,
                        lease_end_ms=lease_end_ms,
                        now_ms=self._clock.monotonic_ms(),
                    )
                    self._ahead.popleft()
                    yield self._response(delivery)
                else:
                    self._ahead.popleft()
        finally:
            self._give_back()

    def _claim(self, *, wait: bool) -> None:
        """What is there now, unstarted; or, when that is nothing, wait for one message, which is written as
        it comes.
        """
        claimed: list[Delivery] = []
        if self._room > 1:
            claimed, self._started = (
                self._broker.claim(self._queue, limit=self._room, consumer=self._consumer, started=False),
                False,
            )
        if not claimed and (wait or self._room == 1):
            claimed, self._started = (
                self._broker.claim(self._queue, wait=_WAIT if wait else None, consumer=self._consumer),
                True,
            )
        self._claimed_at_ms, self._claimed_monotonic_ms = self._broker.now_ms(), self._clock.monotonic_ms()
        self._ahead.extend(claimed)
        if claimed:
            largest = max(delivery.message.size for delivery in claimed)
            self._room = max(1, min(AHEAD_MESSAGES, AHEAD_BYTES // max(1, largest)))

    def _make_ready(self, delivery: Delivery) -> bool:
        """Started, and with most of its lease ahead of it; False when its lease was lost while it waited
        here.
        """
        if self._started:
            return True
        waited_ms = self._clock.monotonic_ms() - self._claimed_monotonic_ms
        if waited_ms * 4 < delivery.lease_until - self._claimed_at_ms:
            self._starter.post(LeaseRef(delivery.raw_id, delivery.claim_id))
            return True
        return all(result.ok for result in self._broker.settle([Start(delivery), Extend(delivery)]))

    def _give_back(self) -> None:
        if not self._ahead:
            return
        try:
            self._broker.put_back(self._ahead)
        except FairleadError as error:
            _log.warning(
                "%d deliveries were not given back and run out by themselves: %s", len(self._ahead), error
            )

    def _response(self, delivery: Delivery) -> service_pb2.ConsumeResponse:
        return service_pb2.ConsumeResponse(
            message=messages_pb2.Message(
                id=delivery.id,
                headers=delivery.headers,
                payload=delivery.payload,
                metadata=messages_pb2.MessageMetadata(
                    fairness_key=delivery.fairness_key,
                    weight=delivery.weight,
                    throttle_keys=delivery.throttle_keys,
                    attempt_count=delivery.attempts,
                    queue_id=delivery.queue,
                ),
                timestamps=messages_pb2.MessageTimestamps(
                    enqueued_at=_timestamp(delivery.enqueued_at), leased_at=_timestamp(self._claimed_at_ms)
                ),
            )
        )


def _timestamp(ms: int) -> Timestamp:
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
