"""FilaService: enqueue, consume, ack, nack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

import grpc

from fairlead.broker.broker import Broker
from fairlead.clock import Clock
from fairlead.errors import BrokenInvariant, FairleadError, InvalidRequest, LostLease, MessageNotFound
from fairlead.middleware.stack import AdmittedCaller
from fairlead.model.access import Right
from fairlead.model.ids import find_id, show_id
from fairlead.model.message import NewMessage
from fairlead.model.names import check_queue_name
from fairlead.model.settle import Complete, Fail, LeaseRef, Settlement, SettleResult
from fairlead.server.fila.calls import caller
from fairlead.server.fila.consume import Consumption
from fairlead.server.fila.consumers import Consumers
from fairlead.server.fila.gather import Gather
from fairlead.server.fila.starts import Starter
from fairlead.server.fila.tokens import SentDeliveries
from fairlead.server.fila.v1 import service_pb2 as pb
from fairlead.server.fila.v1 import service_pb2_grpc

_MOST_BATCH_BYTES = 32 * 1024 * 1024
_TRACE_HEADERS = ("traceparent", "tracestate")


class FilaService(service_pb2_grpc.FilaServiceServicer):
    """A single call from each of many callers becomes a few batches of the broker, queue by queue.

    `enqueues` and `settles` are where calls wait for each other; nothing else in here waits but a consumer
    for messages.
    """

    def __init__(
        self,
        broker: Broker,
        consumers: Consumers,
        starter: Starter,
        *,
        clock: Clock,
        stopping: Callable[[], bool],
        trace_headers: bool,
    ) -> None:
        self._broker = broker
        self._consumers = consumers
        self._starter = starter
        self._clock = clock
        self._stopping = stopping
        self._trace_headers = trace_headers
        self._sent = SentDeliveries()
        self.enqueues = Gather(
            self._enqueue, most_bytes=_MOST_BATCH_BYTES, size_of=lambda message: len(message.payload)
        )
        self.settles = Gather(self._settle)

    def Enqueue(self, request: pb.EnqueueRequest, context: grpc.ServicerContext) -> pb.EnqueueResponse:
        headers = dict(request.headers)
        if self._trace_headers:
            _add_trace(headers, context)
        # Here and not in the batch, which has messages of several callers.
        caller().rights.need(Right.PRODUCE, request.queue)
        return pb.EnqueueResponse(
            message_id=self.enqueues.do(request.queue, NewMessage(request.payload, headers))
        )

    def Consume(
        self, request: pb.ConsumeRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ConsumeResponse]:
        admitted, queue = caller(), check_queue_name(request.queue)
        admitted.rights.need(Right.CONSUME, queue)
        return self._consume(admitted, queue, context)

    def _consume(
        self, admitted: AdmittedCaller, queue: str, context: grpc.ServicerContext
    ) -> Iterator[pb.ConsumeResponse]:
        leave = self._consumers.enter(queue)
        try:
            # At once when the stream breaks: the thread itself notices only when its wait is over.
            context.add_callback(leave)
            yield from Consumption(
                admitted, self._starter, self._sent, self._clock, self._stopping, queue, context
            ).responses()
        finally:
            leave()

    def Ack(self, request: pb.AckRequest, context: grpc.ServicerContext) -> pb.AckResponse:
        self._settle_one(request.queue, request.message_id, context, Complete, self._broker.ack)
        return pb.AckResponse()

    def Nack(self, request: pb.NackRequest, context: grpc.ServicerContext) -> pb.NackResponse:
        self._settle_one(
            request.queue,
            request.message_id,
            context,
            lambda delivery: Fail(delivery, request.error),
            lambda queue, message_id: self._broker.nack(queue, message_id, request.error),
        )
        return pb.NackResponse()

    def _settle_one(
        self,
        queue: str,
        message_id: str,
        context: grpc.ServicerContext,
        fenced: Callable[[LeaseRef], Settlement],
        unfenced: Callable[[str, str], SettleResult],
    ) -> None:
        """With the token of what this connection was sent last, or by id alone when it was sent nothing of
        that message.
        """
        caller().rights.need(Right.CONSUME, queue)
        raw_id = _read_id(message_id)
        connection = context.peer()
        delivery = self._sent.find(connection, queue, raw_id)
        if delivery is None:
            result = unfenced(queue, show_id(raw_id))
        else:
            result = self.settles.do(queue, fenced(delivery))
            if result.outcome in ("completed", "dead", "not_found"):
                # Of anything else the message lives on in this queue, and this connection must stay fenced
                # off from it.
                self._sent.forget(connection, raw_id)
        if result.outcome == "lost_lease":
            raise LostLease(result.id)
        if result.outcome == "not_found":
            raise MessageNotFound(result.id, result.error)
        if not result.ok:
            raise InvalidRequest("message_id", result.error or "a message that can be settled", message_id)

    # What a batch is

    def _enqueue(self, queue: str, messages: list[NewMessage]) -> list[str | Exception]:
        """All in one commit; if that is refused, nothing was stored, and each goes alone, so that only the
        guilty fail.
        """
        try:
            return [*self._broker.enqueue_many(queue, messages)]
        except BrokenInvariant:
            # It may have been stored, so nothing is tried again.
            raise
        except FairleadError as error:
            if len(messages) == 1:
                return [error]
        return [answer for message in messages for answer in self._enqueue(queue, [message])]

    def _settle(self, queue: str, items: list[Settlement]) -> list[SettleResult | Exception]:
        """The broker answers item by item, so that a bad one spoils nothing. What it refuses as a whole, it
        refuses each.
        """
        return [*self._broker.settle(items)]


def _read_id(text: str) -> bytes:
    """Any spelling of a UUID, as Fila takes it."""
    if not text:
        raise InvalidRequest("message_id", "a message id", text)
    raw_id = find_id(text)
    if raw_id is None:
        try:
            return UUID(text).bytes
        except ValueError:
            raise InvalidRequest("message_id", "a UUID", text) from None
    return raw_id


def _add_trace(headers: dict[str, str], context: grpc.ServicerContext) -> None:
    """The caller's W3C trace context, unless the message brings its own."""
    if "traceparent" not in headers:
        given = dict(context.invocation_metadata())
        headers.update({name: str(given[name]) for name in _TRACE_HEADERS if name in given})
