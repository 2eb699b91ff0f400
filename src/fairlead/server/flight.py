"""The Arrow Flight door: channels of requests and answers, each a persistent DoExchange stream.

A channel has one thread, which reads a request, lets the engine answer it, writes the answer. So a slow client blocks
nobody but itself, and what the engine gave out for a client that is gone comes back at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from fairlead.broker.broker import Broker
from fairlead.errors import FairleadError, InvalidRequest, ProtocolMismatch
from fairlead.model.delivery import Delivery
from fairlead.model.settle import Release
from fairlead.server import answers
from fairlead.server.flight_listener import FlightListener
from fairlead.server.limits import Limits
from fairlead.wire.calls import Answer, ClaimCall, Open, decode, encode
from fairlead.wire.deliveries import encode_deliveries, runs_of
from fairlead.wire.faults import fault_of
from fairlead.wire.rows import are_few, delivery_rows
from fairlead.wire.schemas import CHANNELS, VERSION

if TYPE_CHECKING:
    from fairlead.server.certificates import Certificates

_log = logging.getLogger("fairlead.flight")

_GRACE_S = 2.0


class FlightDoor:
    name = "flight"

    def __init__(self, broker: Broker, address: str, limits: Limits | None = None, *, certificates: Certificates | None = None) -> None:
        self.address = address
        self._limits = limits = limits or Limits()
        self._listener = FlightListener(lambda where, **tls: _FlightServer(where, broker, limits, **tls), address, certificates)

    def start(self) -> None:
        self._listener.start()
        self.address = self._listener.address

    def drain(self) -> None:
        self._limits.close()

    def stop(self) -> None:
        self._listener.stop(_GRACE_S)


class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, location: str, broker: Broker, limits: Limits, **tls: Any) -> None:
        super().__init__(location, **tls)
        self._broker = broker
        self._limits = limits

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        try:
            verb = _read_verb(descriptor.command or b"")
            with self._limits.channel():
                writer.begin(CHANNELS[verb][1])
                _Channel(self._broker, self._limits, verb, writer, context.is_cancelled).serve(reader)
        except FairleadError as refused:
            raise _in_flight_words(refused) from None
        except flight.FlightError:
            # The client left while its channel was being opened.
            return
        except Exception as unexpected:
            # Flight would send a stranger our stack.
            _log.exception("a channel failed in a way it should not")
            raise _in_flight_words(unexpected) from None

    def _refuse(self, *_: object) -> NoReturn:
        raise _in_flight_words(ProtocolMismatch("the fairlead protocol, all of which is DoExchange", "another method of Flight")) from None

    list_flights = get_flight_info = get_schema = do_put = do_get = list_actions = do_action = _refuse


def _in_flight_words(error: Exception) -> flight.FlightServerError:
    """The text is what any Flight client shows; the fault is what ours turns back into the error."""
    fault = fault_of(error)
    return flight.FlightServerError(fault.message, encode(Answer(fault)))


def _read_verb(command: bytes) -> str:
    opened = decode(command, Open)
    if opened.fairlead != VERSION:
        raise ProtocolMismatch(f"version {VERSION} of the Flight protocol", f"version {opened.fairlead}")
    if opened.verb not in CHANNELS:
        # Errors of a whole call travel in headers, which have little room.
        raise ProtocolMismatch("one of the verbs " + ", ".join(CHANNELS), repr(opened.verb[:40]))
    return opened.verb


class _Channel:
    def __init__(
        self, broker: Broker, limits: Limits, verb: str, writer: flight.MetadataRecordBatchWriter, is_cancelled: Callable[[], bool]
    ) -> None:
        self._broker = broker
        self._limits = limits
        self._verb = verb
        self._writer = writer
        self._is_cancelled = is_cancelled

    def serve(self, reader: flight.MetadataRecordBatchReader) -> None:
        while True:
            try:
                chunk = reader.read_chunk()
            except (StopIteration, flight.FlightError):
                return
            except (pa.ArrowException, OSError) as wrong:
                raise InvalidRequest("batch", "Arrow's format for streams", str(wrong)) from None
            try:
                self._answer_or_refuse(chunk.app_metadata.to_pybytes() if chunk.app_metadata is not None else b"", chunk.data)
            except _ClientGone:
                return

    def _answer_or_refuse(self, metadata: bytes, batch: pa.RecordBatch | None) -> None:
        try:
            self._answer(metadata, batch)
        except _ClientGone:
            raise
        except FairleadError as refused:
            self._write(Answer(fault_of(refused)))
        except Exception as unexpected:
            _log.exception("a call failed in a way it should not", extra={"fields": {"verb": self._verb}})
            self._write(Answer(fault_of(unexpected)))

    def _answer(self, metadata: bytes, batch: pa.RecordBatch | None) -> None:
        if self._verb == "claim":
            self._claim(decode(metadata, ClaimCall))
            return
        # Not `nbytes`, which follows offsets: nothing in the batch has been found sound yet.
        with self._limits.call(len(metadata) + (batch.get_total_buffer_size() if batch is not None else 0)):
            answer, body, deliveries = answers.ANSWERS[self._verb](self._broker, metadata, batch)
        if self._verb == "exchange":
            self._hand_out(deliveries, answer)
        else:
            self._write(answer, body)

    def _claim(self, call: ClaimCall) -> None:
        with self._limits.waiting_call():
            if not call.credit:
                self._hand_out(answers.claim(self._broker, call, call.limit, call.wait_ms), Answer(), in_rows=call.in_rows)
                return
            left = call.credit
            for deliveries in answers.claim_by_credit(self._broker, call):
                left -= len(deliveries)
                self._hand_out(deliveries, Answer(done=False), in_rows=call.in_rows)
            self._write(Answer(now_ms=self._broker.clock.now_ms(), credit=left))

    def _hand_out(self, deliveries: list[Delivery], answer: Answer, *, in_rows: bool = False) -> None:
        """What cannot be written never left: it goes back to its place, and no attempt is counted.

        A write to a stream whose client is known to be gone fails. Asking beforehand polls the sockets, so it knows of a
        client that left a moment ago, but takes as long as a claim. It is done for what has been out before: a client that
        leaves gives back what it holds, and its own claim, still waiting here, must not be who gets it.
        """
        try:
            if any([delivery.deliveries > 1 for delivery in deliveries]) and self._is_cancelled():  # noqa: C419 - a generator takes longer
                raise _ClientGone
            told = msgspec.structs.replace(answer, now_ms=self._broker.clock.now_ms(), queues=runs_of(deliveries))
            if in_rows and are_few(deliveries):
                self._write(msgspec.structs.replace(told, rows=delivery_rows(deliveries)))
            else:
                self._write(told, encode_deliveries(deliveries) if deliveries else None)
        except BaseException:
            if deliveries:
                self._broker.settle([Release(delivery, keep_order=True) for delivery in deliveries])
            raise

    def _write(self, answer: Answer, body: pa.RecordBatch | None = None) -> None:
        try:
            if body is None:
                self._writer.write_metadata(encode(answer))
            else:
                self._writer.write_with_metadata(body, encode(answer))
        except (pa.ArrowException, flight.FlightError, OSError) as gone:
            raise _ClientGone from gone


class _ClientGone(Exception):
    """The stream broke while an answer was written."""
