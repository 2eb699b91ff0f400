"""FilaService: enqueue, consume, ack, nack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast
from uuid import UUID

import grpc
import msgspec

from fairlead import verbs
from fairlead.clock import Clock
from fairlead.errors import BrokenInvariant, FairleadError, InvalidRequest, LostLease, MessageNotFound
from fairlead.middleware.stack import AdmittedCaller, Layers
from fairlead.model.ids import find_id, show_id
from fairlead.model.message import NewMessage
from fairlead.model.names import check_queue_name
from fairlead.model.settle import Complete, Fail, Settlement, SettleResult
from fairlead.request import Answer, Caller, Request
from fairlead.server.fila.calls import caller
from fairlead.server.fila.consume import FilaConsumption
from fairlead.server.fila.consumers import Consumers
from fairlead.server.fila.gather import Gather
from fairlead.server.fila.starts import Starter
from fairlead.server.fila.v1 import service_pb2 as pb
from fairlead.server.fila.v1 import service_pb2_grpc
from fairlead.server.sent_deliveries import SentDeliveries

_MAX_BATCH_BYTES = 32 * 1024 * 1024
_TRACE_HEADERS = ("traceparent", "tracestate")


class FilaService(service_pb2_grpc.FilaServiceServicer):
    """Combines single calls of many callers into a few batches for the broker, queue by queue.

    Each call passes the layers as the request of its own caller. Behind the layers, its batch takes the place
    of the engine. Calls wait for each other in `enqueues` and `settles`. Nothing else waits here, except
    consumers for messages.
    """

    def __init__(
        self,
        layers: Layers,
        consumers: Consumers,
        starter: Starter,
        *,
        clock: Clock,
        stopping: Callable[[], bool],
        trace_headers: bool,
    ) -> None:
        self._broker = layers.broker
        self._gathered = layers.around(self._gather)
        self._consumers = consumers
        self._starter = starter
        self._clock = clock
        self._stopping = stopping
        self._trace_headers = trace_headers
        self._sent = SentDeliveries()
        self.enqueues = Gather(
            self._enqueue, most_bytes=_MAX_BATCH_BYTES, size_of=lambda message: len(message.payload)
        )
        self.settles = Gather(self._settle)

    def Enqueue(self, request: pb.EnqueueRequest, context: grpc.ServicerContext) -> pb.EnqueueResponse:
        headers = dict(request.headers)
        if self._trace_headers:
            _add_trace(headers, context)
        wanted = verbs.enqueue.Enqueue(check_queue_name(request.queue), request.payload, headers)
        return pb.EnqueueResponse(message_id=self._gathered.handle(wanted, caller().caller))

    def Consume(
        self, request: pb.ConsumeRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ConsumeResponse]:
        return self._consume(caller(), check_queue_name(request.queue), context)

    def _consume(
        self, admitted: AdmittedCaller, queue: str, context: grpc.ServicerContext
    ) -> Iterator[pb.ConsumeResponse]:
        leave = self._consumers.enter(queue)
        try:
            # Called as soon as the stream breaks. The thread notices this only when its wait is over.
            context.add_callback(leave)
            yield from FilaConsumption(
                admitted, self._starter, self._sent, self._clock, self._stopping, queue, context
            ).responses()
        finally:
            leave()

    def Ack(self, request: pb.AckRequest, context: grpc.ServicerContext) -> pb.AckResponse:
        self._settle_one(verbs.settle.Ack(check_queue_name(request.queue), request.message_id))
        return pb.AckResponse()

    def Nack(self, request: pb.NackRequest, context: grpc.ServicerContext) -> pb.NackResponse:
        self._settle_one(
            verbs.settle.Nack(check_queue_name(request.queue), request.message_id, request.error)
        )
        return pb.NackResponse()

    def _settle_one(self, request: verbs.settle.Ack | verbs.settle.Nack) -> None:
        result = self._gathered.handle(request, caller().caller)
        if result.outcome == "lost_lease":
            raise LostLease(result.id)
        if result.outcome == "not_found":
            raise MessageNotFound(result.id, result.error)
        if not result.ok:
            raise InvalidRequest(
                "message_id", result.error or "a message that can be settled", request.message_id
            )

    # The handler behind the layers, in the place of the engine

    def _gather(self, request: Request[Answer], caller: Caller) -> Answer:
        if isinstance(request, verbs.enqueue.Enqueue):
            return cast(Answer, self.enqueues.do(request.queue, request.message()))
        assert isinstance(request, (verbs.settle.Ack, verbs.settle.Nack))
        return cast(Answer, self._settle_sent(request, caller.source))

    def _settle_sent(self, request: verbs.settle.Ack | verbs.settle.Nack, connection: str) -> SettleResult:
        """Settle under the lease of the last delivery of the message to this connection. Without a delivery,
        settle by id alone.
        """
        raw_id = _read_id(request.message_id)
        delivery = self._sent.find(connection, request.queue, raw_id)
        if delivery is None:
            return self._broker.do(msgspec.structs.replace(request, message_id=show_id(raw_id)))
        fenced: Settlement = Complete(delivery)
        if isinstance(request, verbs.settle.Nack):
            fenced = Fail(delivery, request.error)
        result = self.settles.do(request.queue, fenced)
        if result.outcome in ("completed", "dead", "not_found"):
            # After any other outcome the message is still in this queue, and the lease must continue to fence
            # this connection off.
            self._sent.forget(connection, raw_id)
        return result

    # Batches

    def _enqueue(self, queue: str, messages: list[NewMessage]) -> list[str | Exception]:
        """Enqueue all messages in one commit. If the broker refuses them, nothing was stored, and each
        message is tried alone, so that only the invalid ones fail.
        """
        try:
            return [*self._broker.enqueue_many(queue, messages)]
        except BrokenInvariant:
            # The messages may have been stored, so nothing is tried again.
            raise
        except FairleadError as error:
            if len(messages) == 1:
                return [error]
        return [answer for message in messages for answer in self._enqueue(queue, [message])]

    def _settle(self, queue: str, items: list[Settlement]) -> list[SettleResult | Exception]:
        """The broker answers each item on its own, so an invalid item does not affect the others. An error of
        the whole batch applies to every item.
        """
        return [*self._broker.settle(items)]


def _read_id(text: str) -> bytes:
    """Accepts any spelling of a UUID, as Fila does."""
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
    """Add the caller's W3C trace context, unless the message has its own."""
    if "traceparent" not in headers:
        given = dict(context.invocation_metadata())
        headers.update({name: str(given[name]) for name in _TRACE_HEADERS if name in given})
