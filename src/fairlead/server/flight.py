"""The Arrow Flight door, for record batches: channels of requests and answers, each a persistent DoExchange stream.

Each channel has its own thread, which reads a request, lets the engine carry it out, and writes the answer. So a slow
client blocks only itself. A claim's deliveries return to their places when their client is gone before the write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.flight as flight

from fairlead.engine.broker import Broker
from fairlead.errors import (
    FairleadError,
    InvalidRequest,
    LimitReached,
    Overloaded,
    ProtocolMismatch,
    Unauthenticated,
)
from fairlead.middleware.stack import AdmittedCaller, Layers
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_REQUEST_BYTES
from fairlead.server import answers
from fairlead.server.flight_listener import FlightListener
from fairlead.server.limits import RETRY_AFTER_MS, Limit, Limits, OpenChannel
from fairlead.server.sockets import connection_of
from fairlead.server.streamed import MAX_BYTES, STREAMED, Part
from fairlead.wire.calls import Answer, Open, decode, encode
from fairlead.wire.deliveries import encode_deliveries, runs_of
from fairlead.wire.faults import fault_of
from fairlead.wire.requests import unpack
from fairlead.wire.schemas import CHANNELS, VERSION

if TYPE_CHECKING:
    from fairlead.server.certificates import Certificates

_log = logging.getLogger("fairlead.flight")

_GRACE_S = 2.0
_AUTHORIZATION = "authorization"
_EMPTY_SCHEMA = "one without columns: a batch travels in the app_metadata of its request"


class FlightDoor:
    name = "flight"

    def __init__(
        self,
        broker: Broker,
        address: str,
        limits: Limits | None = None,
        *,
        certificates: Certificates | None = None,
        layers: Layers | None = None,
    ) -> None:
        self.address = address
        self._limits = limits = limits or Limits()
        layers = layers or Layers(broker, limits=limits)
        self._listener = FlightListener(
            lambda where, **tls: _FlightServer(where, layers, limits, **tls), address, certificates
        )

    def start(self) -> None:
        self._listener.start()
        self.address = self._listener.address

    def drain(self) -> None:
        self._limits.close()

    def stop(self) -> None:
        self._listener.stop(_GRACE_S)


class _Authorization(flight.ServerMiddleware):  # type: ignore[misc]
    """The credentials of one call."""

    def __init__(self, value: str | None) -> None:
        self.value = value


class _ReadsAuthorization(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses unknown credentials at the first header, before anything of the call is read."""

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self._layers = layers

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> _Authorization:
        given = [
            value for name, values in headers.items() if name.lower() == _AUTHORIZATION for value in values
        ]
        authorization = given[0] if len(given) == 1 and isinstance(given[0], str) else None
        try:
            self._layers.admit(authorization, "")
        except FairleadError as refused:
            raise _in_flight_words(refused) from None
        return _Authorization(authorization)


class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, location: str, layers: Layers, limits: Limits, **tls: Any) -> None:
        super().__init__(
            location,
            middleware={_AUTHORIZATION: _ReadsAuthorization(layers), "channels": _ChannelGate(limits)},
            **tls,
        )
        self._layers = layers
        self._limits = limits

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        try:
            broker = self._layers.admit(context.get_middleware(_AUTHORIZATION).value, context.peer())
            verb = _read_verb(descriptor.command or b"")
            with self._limits.channel(connection_of(context.peer())) as opened:
                writer.begin(CHANNELS[verb])
                if not _has_no_columns(reader):
                    return
                _Channel(broker, self._limits, opened, verb, writer, context.is_cancelled).serve(reader)
        except FairleadError as refused:
            self._limits.count_error(refused)
            raise _in_flight_words(refused) from None
        except flight.FlightError:
            # The client left while its channel was being opened.
            return
        except Exception as unexpected:
            # Flight would send our stack to the client.
            _log.exception("a channel failed in a way it should not")
            raise _in_flight_words(unexpected) from None

    def _refuse(self, *_: object) -> NoReturn:
        raise _in_flight_words(
            ProtocolMismatch("the fairlead protocol, all of which is DoExchange", "another method of Flight")
        ) from None

    list_flights = get_flight_info = get_schema = do_put = do_get = list_actions = do_action = _refuse


class _ChannelGate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Counts a channel from its first header on: pyarrow gives it a thread, which waits for a first frame
    that may never come.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> flight.ServerMiddleware:
        try:
            self._limits.open_channel()
        except FairleadError as refused:
            raise _in_flight_words(refused) from None
        return _Counted(self._limits)


class _Counted(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    def call_completed(self, exception: Exception | None) -> None:
        self._limits.close_channel()


def _in_flight_words(error: Exception) -> flight.FlightError:
    """The text is what any Flight client shows; our clients turn the fault back into the error."""
    fault = fault_of(error)
    kind = (
        flight.FlightUnauthenticatedError if isinstance(error, Unauthenticated) else flight.FlightServerError
    )
    return kind(fault.message, encode(Answer(fault)))


def _read_verb(command: bytes) -> str:
    opened = decode(command, Open)
    if opened.fairlead != VERSION:
        raise ProtocolMismatch(f"version {VERSION} of the Flight protocol", f"version {opened.fairlead}")
    if opened.verb not in CHANNELS:
        # Errors of a whole call travel in headers, which have little room.
        raise ProtocolMismatch("one of the channels " + ", ".join(CHANNELS), repr(opened.verb[:40]))
    return opened.verb


def _has_no_columns(reader: flight.MetadataRecordBatchReader) -> bool:
    """Checked before anything else is read: Flight unpacks nothing of batches without columns. False if the
    client has left.
    """
    try:
        columns = reader.schema.names
    except (StopIteration, flight.FlightError):
        return False
    except (pa.ArrowException, OSError) as wrong:
        raise InvalidRequest("schema", _EMPTY_SCHEMA, str(wrong)) from None
    except UnicodeDecodeError:
        raise InvalidRequest("schema", _EMPTY_SCHEMA, "columns whose names are no text") from None
    if columns:
        raise InvalidRequest("schema", _EMPTY_SCHEMA, columns[:5])
    return True


class _Channel:
    def __init__(
        self,
        broker: AdmittedCaller,
        limits: Limits,
        opened: OpenChannel,
        verb: str,
        writer: flight.MetadataRecordBatchWriter,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._broker = broker
        self._limits = limits
        self._opened = opened
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
                raise InvalidRequest("request", "a frame of Arrow Flight", str(wrong)) from None
            if chunk.data is not None:
                raise InvalidRequest(
                    "request", "an app_metadata with the batch in it", "a record batch of Flight's own"
                )
            try:
                self._answer_or_refuse(
                    chunk.app_metadata if chunk.app_metadata is not None else pa.py_buffer(b"")
                )
            except _ClientGone:
                return
            # Freed before the wait for the next request, which may take hours.
            del chunk

    def _answer_or_refuse(self, request: pa.Buffer) -> None:
        try:
            self._answer(request)
        except _ClientGone:
            raise
        except FairleadError as refused:
            self._limits.count_error(refused)
            self._write(Answer(fault_of(refused)))
        except pa.ArrowMemoryError:
            self._write(Answer(fault_of(self._no_memory())))
        except Exception as unexpected:
            _log.exception("a call failed in a way it should not", extra={"fields": {"verb": self._verb}})
            self._write(Answer(fault_of(unexpected)))

    def _no_memory(self) -> Overloaded:
        """Many large answers at a time."""
        self._limits.refused(Limit.ARROW_BYTES)
        return Overloaded("bytes of memory for Arrow", self._limits.settings.max_arrow_bytes, RETRY_AFTER_MS)

    def _answer(self, request: pa.Buffer) -> None:
        # The key may have been revoked since the channel was opened: then nothing else is read.
        self._broker.rights.grants()
        size = request.size
        self._opened.note(size)
        if size > MAX_REQUEST_BYTES:
            raise LimitReached("bytes in one request", MAX_REQUEST_BYTES)
        metadata, batch = unpack(request)
        self._broker.caller = self._broker.caller._replace(size=size)
        if self._verb == "write":
            self._write(answers.write(self._broker, metadata, batch))
        elif batch is not None:
            raise InvalidRequest("batch", f"none at the channel {self._verb}", f"{batch.num_rows} rows")
        elif self._verb == "claim":
            with self._limits.handing_out():
                self._hand_out(answers.claim(self._broker, metadata))
        else:
            self._stream(STREAMED[self._verb](self._broker, metadata))

    def _stream(self, parts: Iterator[Part]) -> None:
        """Each page is a call of its own: a client that is slow to read holds up no stop, and hears of it
        between two parts.
        """
        with self._limits.unread() as hold:
            hold(MAX_BYTES)
            while True:
                part = next(parts, None)
                if part is None:
                    self._write(Answer())
                    return
                queues, body = part
                hold(body.nbytes)
                self._write(Answer(queues=queues, done=False), body)

    def _hand_out(self, deliveries: list[Delivery]) -> None:
        """Deliveries that cannot be written go back to their places, and no attempt is counted.

        A write to a stream whose client is known to be gone fails. Asking beforehand polls the sockets, so it
        notices a client that left a moment ago, but takes as long as a claim. Only repeated deliveries are worth
        the question: a client that leaves returns its deliveries, and its own claim, still waiting here, must
        not get them.
        """
        try:
            if any([delivery.deliveries > 1 for delivery in deliveries]) and self._is_cancelled():  # noqa: C419 - a generator takes longer
                raise _ClientGone
            answer = Answer(now_ms=self._broker.now_ms(), queues=runs_of(deliveries))
            self._write(answer, encode_deliveries(deliveries) if deliveries else None)
        except BaseException:
            if deliveries:
                self._broker.put_back(deliveries)
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
