"""The checks of every incoming call, and the status of every error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fairlead.errors import FairleadError, InvalidRequest
from fairlead.middleware.stack import AdmittedCaller, Layers
from fairlead.server.limits import Limits
from fairlead.wire.statuses import status_of

#: The trailing metadata that names the fairlead error for which a status stands.
ERROR_CODE_KEY = "fairlead-error"

_HEALTH = "/grpc.health."
_log = logging.getLogger("fairlead.fila")

_caller: ContextVar[AdmittedCaller] = ContextVar("caller")

Behaviour = Callable[[Any, grpc.ServicerContext], Any]


class CallGate(grpc.ServerInterceptor):
    """All services pass this gate except health, which must answer in every state of the server.

    Streams run on threads of their own, and never take the threads of single calls.
    """

    def __init__(self, layers: Layers, limits: Limits, stream_threads: ThreadPoolExecutor) -> None:
        self._layers = layers
        self._limits = limits
        self._stream_threads = stream_threads

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler_call_details.method.startswith(_HEALTH):
            return handler
        if handler is None:
            return grpc.stream_stream_rpc_method_handler(self._unknown)
        # The gate parses requests itself, so that the caller is authenticated first.
        read, coding = handler.request_deserializer, {"response_serializer": handler.response_serializer}
        if not handler.response_streaming:
            return grpc.unary_unary_rpc_method_handler(self._once(handler.unary_unary, read), **coding)
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(handler.stream_stream, lambda raw: _read_all(read, raw)), **coding
            )
        return grpc.unary_stream_rpc_method_handler(
            self._streaming(handler.unary_stream, lambda raw: _read(read, raw)), **coding
        )

    def _once(self, behaviour: Behaviour, read: Callable[[bytes], Any]) -> Behaviour:
        def answer(raw: bytes, context: grpc.ServicerContext) -> Any:
            try:
                with acting_as(self._admit(context, len(raw))):
                    return behaviour(_read(read, raw), context)
            except Exception as error:
                self._limits.count_error(error)
                return refuse(context, error)

        return answer

    def _streaming(self, behaviour: Behaviour, read: Callable[[Any], Any]) -> Behaviour:
        def answer(raw: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                admitted = self._admit(context)
                with self._limits.stream(context.peer()):
                    # Only for this block, because another thread may end the stream.
                    with acting_as(admitted):
                        answers = behaviour(read(raw), context)
                    yield from answers
            except Exception as error:
                self._limits.count_error(error)
                refuse(context, error)

        # gRPC looks for this attribute; its health service uses the attribute too.
        answer.experimental_thread_pool = self._stream_threads  # type: ignore[attr-defined]
        return answer

    def _unknown(self, raw: Any, context: grpc.ServicerContext) -> Any:
        """Only authenticated callers learn which methods exist."""
        try:
            self._admit(context)
            raise NotImplementedError("Method not found!")
        except Exception as error:
            self._limits.count_error(error)
            return refuse(context, error)

    def _admit(self, context: grpc.ServicerContext, size: int = 0) -> AdmittedCaller:
        """Runs in the thread of the call, before anything is carried out."""
        if not context.is_active():
            raise _CallerGone()
        given = [value for name, value in context.invocation_metadata() if name == "authorization"]
        authorization = given[0] if len(given) == 1 and isinstance(given[0], str) else None
        return self._layers.admit(authorization, context.peer(), size)


@contextmanager
def acting_as(admitted: AdmittedCaller) -> Iterator[None]:
    """Calls in this block are made by this caller."""
    before = _caller.set(admitted)
    try:
        yield
    finally:
        _caller.reset(before)


def caller() -> AdmittedCaller:
    """The broker with the rights of the caller of this call. A stream must call this before its first
    response, because its responses are made outside the block of `acting_as`.
    """
    return _caller.get()


def _read(read: Callable[[bytes], Any], raw: bytes) -> Any:
    """`read` is the `FromString` of a message class. gRPC itself would answer INTERNAL, which means that the
    server failed.
    """
    try:
        return read(raw)
    except DecodeError:
        expected = read.__self__.DESCRIPTOR.full_name  # type: ignore[attr-defined]
        raise InvalidRequest(
            "the request", f"a {expected} in protobuf encoding", f"{len(raw)} bytes that are none"
        ) from None


def _read_all(read: Callable[[bytes], Any], requests: Iterator[bytes]) -> Iterator[Any]:
    for raw in requests:
        yield _read(read, raw)


class _CallerGone(Exception):
    """The call was cancelled or reached its deadline before a thread was free for it."""


def refuse(context: grpc.ServicerContext, error: Exception) -> Any:
    """End the call with the status that the error has at every door."""
    if isinstance(error, _CallerGone):
        context.abort(
            grpc.StatusCode.CANCELLED, "the call was over before its turn came; nothing was carried out"
        )
    if isinstance(error, NotImplementedError):
        context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
    if not isinstance(error, FairleadError):
        _log.error("a call failed in an unforeseen way", exc_info=error)
        context.abort(grpc.StatusCode.INTERNAL, "the server failed in an unforeseen way; its log says more")
    assert isinstance(error, FairleadError)
    context.set_trailing_metadata(((ERROR_CODE_KEY, error.code),))
    context.abort(grpc.StatusCode[status_of(error).grpc], error.message)
