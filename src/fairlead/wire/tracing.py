"""OpenTelemetry traces that travel with messages: a W3C `traceparent` in the headers connects the consumer to
the producer.

Tracing is off by default: a component holds a `Tracing` or None, and tests which only once. OpenTelemetry is
the extra `fairlead[otel]`, and the first `setup` or `ambient` imports it. Spans have queue, id and counts;
never a payload, never the text of an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Literal

import msgspec

from fairlead.errors import FairleadError, InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.message import NewMessage

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
    from opentelemetry.trace import Link, SpanContext, TracerProvider

#: The values of OpenTelemetry's conventions for messaging.
OperationType = Literal["send", "receive", "settle", "process"]
_SYSTEM = {"messaging.system": "fairlead"}
_PARENT, _STATE = "traceparent", "tracestate"
_NO_MORE: Mapping[str, str | int] = {}
#: The most links of a span. Spans are exported whole: a claim of ten thousand messages must not make a span
#: of megabytes.
MAX_LINKS = 64
#: How long a stop waits for a collector that does not answer.
_EXPORT_S = 2.0


def setup(endpoint: str, service_name: str = "fairlead") -> Tracing:
    """Send spans to an OTLP collector over gRPC, such as `http://localhost:4317`, in the background and in
    batches.

    A collector that does not answer loses spans and delays no caller. `close` sends the remaining spans.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as missing:
        raise _extra_missing(missing) from missing
    provider = TracerProvider(
        resource=Resource.create({"service.name": service_name}), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(
        endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=_EXPORT_S
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider, own=provider)


def ambient() -> Tracing:
    """Tracing into the tracer provider that the surrounding program has set up. Without a provider, spans are
    dropped.
    """
    try:
        from opentelemetry.trace import get_tracer_provider
    except ImportError as missing:
        raise _extra_missing(missing) from missing
    return Tracing(get_tracer_provider())


class Tracing:
    """Thread-safe, and usable with asyncio: the current span is that of the calling task or thread."""

    def __init__(self, provider: TracerProvider, own: SdkTracerProvider | None = None) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._tracer = provider.get_tracer("fairlead")
        self._carried = TraceContextTextMapPropagator()
        self._own = own

    def inject(self, headers: Mapping[str, str] | None = None) -> dict[str, str]:
        """The headers with the current span in them. Headers that already have a trace stay unchanged."""
        return _laid_over(headers, self._current())

    @contextmanager
    def enqueue_span(self, queue: str, messages: Sequence[NewMessage]) -> Iterator[list[NewMessage]]:
        """A producer's span around an enqueue. Yields the messages, with the span in their headers."""
        with self._span(self._trace.SpanKind.PRODUCER, "enqueue", "send", queue, len(messages)):
            carried = self._current()
            yield [
                msgspec.structs.replace(message, headers=_laid_over(message.headers, carried))
                for message in messages
            ]

    @contextmanager
    def process_span(self, delivery: Delivery) -> Iterator[None]:
        """A consumer's span around its work on one message: a child of the span that enqueued the message, in
        the same trace.

        The span that was current before is linked. An exception marks the span as failed, by the exception's
        type only, and propagates.
        """
        around = self._trace.get_current_span().get_span_context()
        links = [self._trace.Link(around)] if around.is_valid else []
        more: dict[str, str | int] = {
            "messaging.message.id": delivery.id,
            "fairlead.attempts": delivery.attempts,
            "fairlead.deliveries": delivery.deliveries,
        }
        parent = self._context_in(delivery.headers)
        with self._span(
            self._trace.SpanKind.CONSUMER,
            "process",
            "process",
            delivery.queue,
            None,
            parent=parent,
            links=links,
            more=more,
        ):
            yield

    def record_call(
        self,
        verb: str,
        operation: OperationType,
        *,
        queue: str | None = None,
        count: int,
        began_ns: int,
        parent: Mapping[str, str] | None = None,
        linked: Iterable[Mapping[str, str]] = (),
        error: BaseException | None = None,
    ) -> None:
        """Record a server's span after the call: a claim that found nothing leaves no span.

        `parent` and `linked` are headers of messages, which may have a trace.
        """
        links = [
            self._trace.Link(found)
            for headers in islice(linked, MAX_LINKS)
            if (found := self._span_in(headers)) is not None
        ]
        span = self._tracer.start_span(
            _name(verb, queue),
            context=self._context_in(parent or {}),
            kind=self._trace.SpanKind.SERVER,
            attributes=_attributes(verb, operation, queue, count),
            links=links,
            start_time=began_ns,
        )
        if error is not None:
            self._mark_failed(span, error)
        span.end()

    def close(self) -> None:
        """Send the remaining spans, if this object owns the tracer provider."""
        if self._own is not None:
            self._own.shutdown()

    @contextmanager
    def _span(
        self,
        kind: object,
        verb: str,
        operation: OperationType,
        queue: str,
        count: int | None,
        *,
        parent: Context | None = None,
        links: Sequence[Link] = (),
        more: Mapping[str, str | int] = _NO_MORE,
    ) -> Iterator[None]:
        with self._tracer.start_as_current_span(
            _name(verb, queue),
            context=parent,
            kind=kind,  # type: ignore[arg-type]
            attributes={**_attributes(verb, operation, queue, count), **more},
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                self._mark_failed(span, error)
                raise

    def _mark_failed(self, span: object, error: BaseException) -> None:
        """Mark the span by the error's code or type. The error's text may quote a payload."""
        kind = error.code if isinstance(error, FairleadError) else type(error).__name__
        span.set_attribute("error.type", kind)  # type: ignore[attr-defined]
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, kind))  # type: ignore[attr-defined]

    def _current(self) -> dict[str, str]:
        carried: dict[str, str] = {}
        self._carried.inject(carried)
        return carried

    def _context_in(self, headers: Mapping[str, str]) -> Context:
        """The trace context in the headers only: a span that is current here is not the parent of another
        program's message.
        """
        carried = {name: value for name in (_PARENT, _STATE) if isinstance(value := headers.get(name), str)}
        return self._carried.extract(carried)

    def _span_in(self, headers: Mapping[str, str]) -> SpanContext | None:
        if _PARENT not in headers:
            return None
        found = self._trace.get_current_span(self._context_in(headers)).get_span_context()
        return found if found.is_valid else None


def _laid_over(headers: Mapping[str, str] | None, carried: Mapping[str, str]) -> dict[str, str]:
    known = dict(headers or {})
    return known if _PARENT in known else {**known, **carried}


def _name(verb: str, queue: str | None) -> str:
    return f"{verb} {queue}" if queue else verb


def _attributes(verb: str, operation: str, queue: str | None, count: int | None) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        **_SYSTEM,
        "messaging.operation.name": verb,
        "messaging.operation.type": operation,
    }
    if queue:
        found["messaging.destination.name"] = queue
    if count is not None:
        found["messaging.batch.message_count"] = count
    return found


def _extra_missing(missing: ImportError) -> InvalidRequest:
    return InvalidRequest(
        "tracing", "OpenTelemetry to be installed: pip install 'fairlead[otel]'", str(missing)
    )
