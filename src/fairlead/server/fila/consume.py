"""One open consume stream: claims a few messages ahead, writes them, and returns messages that were not
written.
"""

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

#: How far a stream claims ahead of its client: a number of messages, and an approximate number of bytes.
AHEAD_MESSAGES = 32
AHEAD_BYTES = 1024 * 1024
#: How long an idle stream waits before it checks whether its client is still connected.
_WAIT = "1s"

_numbers = itertools.count(1)
_log = logging.getLogger("fairlead.fila")


class FilaConsumption:
    """Deliveries that wait to be written are leased but not started, so losing them costs no attempt.

    A message is started when it is handed to gRPC, and counts as received from then on, because a broken
    stream cannot tell whether it was. gRPC takes the next message only when the client's window has room. A
    client that does not read therefore keeps this thread and at most `AHEAD_MESSAGES` leases, and affects no
    other client.
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
        """Ends when the client leaves (the generator is closed, or ends by itself), when the queue is
        deleted, or when the server stops.
        """
        try:
            opened = False
            while self._context.is_active():
                if self._stopping():
                    raise ServerStopping()
                if not self._ahead:
                    self._claim(wait=opened)
                    if not opened:
                        # Tell the client now that the queue exists, and not only with the first message: some
                        # clients wait for this. `is_active` detects a client that has left meanwhile.
                        with suppress(grpc.RpcError):
                            self._context.send_initial_metadata(())
                        opened = True
                    continue
                # A key that was revoked after the claim must not get the messages that were claimed ahead.
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
        """Claim ready messages as unstarted. If there are none, wait for one message, which is claimed as
        started and written at once.
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
        """Start the delivery, and extend its lease if much of the lease is over. Returns False if the lease
        was lost while the delivery waited to be written.
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
