from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_span_id, format_trace_id

from fairlead import NewMessage, errors
from fairlead.client.addresses import read_endpoint
from fairlead.client.async_client import AsyncClient
from fairlead.client.async_core import AsyncCore
from fairlead.client.client import Client
from fairlead.client.core import Core
from fairlead.client.identity import Identity
from fairlead.client.options import Options
from fairlead.client.traces import Traces
from fairlead.wire.tracing import Tracing
from tests.client.scene import Scene
from tests.turns import turn


class Traced:
    def __init__(self, scene: Scene) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self._needed = (
            Options(scene.address, "tester"),
            Identity(read_endpoint(scene.address), None, None),
            Traces(Tracing(provider)),
        )
        self.client = Client(Core(*self._needed))

    async def enqueue_on_a_loop(self, queue: str) -> None:
        async with AsyncClient(AsyncCore(*self._needed)) as client:
            await client.enqueue(queue, b"")

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()


@pytest.fixture
def traced(scene: Scene) -> Traced:
    traced = Traced(scene)
    scene._clients.append(traced.client)
    return traced


def parent_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{format_trace_id(span.context.trace_id)}-{format_span_id(span.context.span_id)}-{int(span.context.trace_flags):02x}"


def test_a_message_carries_the_span_of_its_enqueue_to_its_consumer(scene: Scene, traced: Traced) -> None:
    traced.client.enqueue("q", b"", headers={"a": "b"})
    (delivery,) = traced.client.claim("q")
    with traced.client.process_span(delivery):
        pass
    enqueue, process = traced.spans
    assert delivery.headers == {"a": "b", "traceparent": parent_of(enqueue)}
    assert process.parent is not None
    assert enqueue.context is not None
    assert process.parent.span_id == enqueue.context.span_id


def test_a_staged_message_carries_the_span_of_its_staging(scene: Scene, traced: Traced) -> None:
    traced.client.queues()
    traced.client.staging.stage("t", "a", "q", [NewMessage(b"")])
    traced.client.staging.publish("t", "q", ["a"])
    assert scene.broker.peek("q")[0].headers == {"traceparent": parent_of(traced.spans[0])}


def test_an_asyncio_client_does_the_same(scene: Scene, traced: Traced) -> None:
    asyncio.run(traced.enqueue_on_a_loop("q"))
    assert scene.broker.peek("q")[0].headers == {"traceparent": parent_of(traced.spans[0])}


def test_messages_of_an_exchange_carry_the_span_around_it(scene: Scene, traced: Traced) -> None:
    with traced.tracer.start_as_current_span("around"):
        turn(traced.client, "me", enqueue={"q": [NewMessage(b"")]})
    assert scene.broker.peek("q")[0].headers == {"traceparent": parent_of(traced.spans[-1])}


def test_what_is_no_message_is_refused_with_tracing_as_without(traced: Traced) -> None:
    for messages in ("text", [1], [NewMessage(b"", headers=5)]):  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidRequest):
            traced.client.enqueue_many("q", messages)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidRequest):
            turn(traced.client, "me", enqueue={"q": messages})  # type: ignore[dict-item]


def test_without_tracing_nothing_is_added(scene: Scene, client: Client) -> None:
    client.enqueue("q", b"")
    (delivery,) = client.claim("q")
    with client.process_span(delivery):
        assert delivery.headers == {}
