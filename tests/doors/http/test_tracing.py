from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fairlead import Complete, NewMessage
from fairlead.errors import InvalidRequest, QueueNotFound
from fairlead.middleware.stack import AdmittedCaller, Layers
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.settle import Settle
from fairlead.wire.tracing import MAX_LINKS, Tracing, ambient, setup
from tests.doors.http.collector import running_collector
from tests.integration.world import World
from tests.turns import new_place, turn

SECRET = "the payload of somebody's life"


class Traced:
    """A process that traces, and the spans it has finished."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider)
        self.tracer = provider.get_tracer("a user of fairlead")

    def spans_of(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def producer() -> Traced:
    return Traced()


@pytest.fixture
def server(world: World) -> Traced:
    return Traced()


@pytest.fixture
def consumer() -> Traced:
    return Traced()


@pytest.fixture
def broker(world: World, server: Traced) -> AdmittedCaller:
    return Layers(world.broker, tracing=server.tracing).admit(None, "a test")


def _send(producer: Traced, broker: AdmittedCaller, count: int = 1, **fields: Any) -> None:
    with producer.tracing.enqueue_span("q", [NewMessage(SECRET.encode(), **fields)] * count) as messages:
        broker.enqueue_many("q", messages)


def test_a_trace_goes_from_producer_through_the_server_to_the_consumer(
    producer: Traced, broker: AdmittedCaller, server: Traced, consumer: Traced
) -> None:
    with producer.tracer.start_as_current_span("a web request"):
        _send(producer, broker, headers={"kind": "order"})
    (delivery,) = broker.claim("q")
    assert delivery.headers["kind"] == "order"
    with consumer.tracing.process_span(delivery), consumer.tracer.start_as_current_span("the work"):
        pass
    broker.settle([Complete(delivery)])

    request, sent = producer.spans()["a web request"], producer.spans()["enqueue q"]
    taken, claimed, settled = server.spans()["enqueue q"], server.spans()["claim q"], server.spans()["settle"]
    processed, worked = consumer.spans()["process q"], consumer.spans()["the work"]
    assert {span.context.trace_id for span in (request, sent, taken, processed, worked)} == {
        request.context.trace_id
    }
    assert sent.parent is not None
    assert sent.parent.span_id == request.context.span_id
    assert taken.parent is not None
    assert taken.parent.span_id == processed.parent.span_id == sent.context.span_id  # type: ignore[union-attr]
    assert worked.parent is not None
    assert worked.parent.span_id == processed.context.span_id
    assert [link.context.span_id for link in claimed.links] == [sent.context.span_id]
    assert [span.kind for span in (sent, taken, claimed, settled, processed)] == [
        SpanKind.PRODUCER,
        SpanKind.SERVER,
        SpanKind.SERVER,
        SpanKind.SERVER,
        SpanKind.CONSUMER,
    ]


def test_spans_speak_the_words_of_opentelemetry(
    producer: Traced, broker: AdmittedCaller, server: Traced, consumer: Traced
) -> None:
    _send(producer, broker, count=3)
    deliveries = broker.claim("q", limit=3)
    with consumer.tracing.process_span(deliveries[0]):
        pass
    broker.settle([Complete(delivery) for delivery in deliveries])
    assert dict(producer.spans()["enqueue q"].attributes or {}) == {
        "messaging.system": "fairlead",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "q",
        "messaging.batch.message_count": 3,
    }
    assert dict(consumer.spans()["process q"].attributes or {}) == {
        "messaging.system": "fairlead",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "q",
        "messaging.message.id": deliveries[0].id,
        "fairlead.attempts": 0,
        "fairlead.deliveries": 1,
    }
    found = {name: (span.attributes or {}) for name, span in server.spans().items()}
    assert {name: attributes["messaging.operation.type"] for name, attributes in found.items()} == {
        "enqueue q": "send",
        "claim q": "receive",
        "settle": "settle",
    }
    assert {attributes["messaging.batch.message_count"] for attributes in found.values()} == {3}


def test_a_batch_of_many_traces_has_a_bounded_number_of_links(
    world: World, broker: AdmittedCaller, producer: Traced, server: Traced
) -> None:
    for _ in range(MAX_LINKS + 5):
        _send(producer, world.broker)
    assert len(broker.claim("q", limit=1000)) == MAX_LINKS + 5
    assert len(server.spans()["claim q"].links) == MAX_LINKS


def test_an_exchange_is_one_span_with_all_it_moved(broker: AdmittedCaller, server: Traced) -> None:
    result = turn(broker, "worker", enqueue={"q": [NewMessage(b"")] * 3}, claim={"queue": "q", "limit": 2})
    assert len(result.deliveries) == 2
    assert (server.spans()["exchange"].attributes or {})["messaging.batch.message_count"] == 5


def test_an_enqueue_and_a_settle_under_an_id_have_the_same_spans_as_without(
    broker: AdmittedCaller, producer: Traced, server: Traced
) -> None:
    with producer.tracing.enqueue_span("q", [NewMessage(b"")]) as messages:
        broker.once(EnqueueMany("q", messages), **new_place(broker))
    broker.once(Settle([Complete(delivery) for delivery in broker.claim("q")]), **new_place(broker))
    taken, sent = server.spans()["enqueue q"], producer.spans()["enqueue q"]
    assert taken.parent is not None
    assert taken.parent.span_id == sent.context.span_id
    assert server.spans().keys() == {"enqueue q", "claim q", "settle"}


def test_a_claim_that_finds_nothing_leaves_no_span(broker: AdmittedCaller, server: Traced) -> None:
    assert broker.claim("q") == []
    turn(broker, "worker", claim={"queue": "q"})
    assert server.spans() == {}


def test_a_call_that_is_refused_says_which_error(broker: AdmittedCaller, server: Traced) -> None:
    with pytest.raises(QueueNotFound):
        broker.enqueue("nowhere", SECRET.encode())
    with pytest.raises(QueueNotFound):
        broker.claim("nowhere")
    for name in ("enqueue nowhere", "claim nowhere"):
        span = server.spans()[name]
        assert (span.status.status_code, (span.attributes or {})["error.type"]) == (
            StatusCode.ERROR,
            "queue_not_found",
        )


@pytest.mark.parametrize(
    "call",
    [
        lambda broker: broker.enqueue_many("q", None),
        lambda broker: broker.enqueue_many("q", [b"no message"]),
        lambda broker: broker.enqueue("q", b"", headers={"traceparent": 7}),
        lambda broker: broker.settle(None),
    ],
)
def test_what_the_broker_refuses_is_refused_alike(broker: AdmittedCaller, call: Any) -> None:
    with pytest.raises(InvalidRequest):
        call(broker)


def test_a_look_leaves_no_span(world: World, broker: AdmittedCaller, server: Traced) -> None:
    world.fill("q", count=2)
    assert broker.stats("q").ready == 2
    assert server.spans() == {}


def test_a_settle_by_id_is_shown_as_a_settle(world: World, broker: AdmittedCaller, server: Traced) -> None:
    world.fill("q", count=2)
    first, second = world.broker.claim("q", limit=2)
    broker.ack("q", first.id)
    assert (server.spans()["settle"].attributes or {})["messaging.batch.message_count"] == 1
    broker.nack("q", second.id, "no")
    assert len(server.spans_of("settle")) == 2


def test_work_that_raises_marks_its_span_and_never_quotes(
    producer: Traced, broker: AdmittedCaller, server: Traced, consumer: Traced
) -> None:
    _send(producer, broker)
    (delivery,) = broker.claim("q")
    with pytest.raises(ValueError, match="payload"), consumer.tracing.process_span(delivery):
        raise ValueError(f"cannot parse {SECRET}")
    span = consumer.spans()["process q"]
    assert (span.status.status_code, (span.attributes or {})["error.type"]) == (
        StatusCode.ERROR,
        "ValueError",
    )
    for process in (producer, server, consumer):
        assert all(SECRET not in finished.to_json() for finished in process.spans().values())


def test_a_message_that_carries_a_trace_already_keeps_it(producer: Traced) -> None:
    carried = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with producer.tracing.enqueue_span(
        "q", [NewMessage(b"", {"traceparent": carried}), NewMessage(b"")]
    ) as messages:
        assert messages[0].headers == {"traceparent": carried}
        assert (messages[1].headers or {})["traceparent"] != carried
        assert producer.tracing.inject({"traceparent": carried}) == {"traceparent": carried}
        assert producer.tracing.inject({"a": "b"}).keys() == {"a", "traceparent"}


@pytest.mark.parametrize(
    "carried", [{}, {"traceparent": "nonsense"}, {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"}]
)
def test_a_message_with_no_trace_or_a_broken_one_begins_its_own(
    world: World, consumer: Traced, carried: dict[str, str]
) -> None:
    world.broker.enqueue("q", b"", headers=carried)
    with (
        consumer.tracer.start_as_current_span("the loop of the worker"),
        consumer.tracing.process_span(world.claim_one("q")),
    ):
        pass
    processed, around = consumer.spans()["process q"], consumer.spans()["the loop of the worker"]
    assert processed.parent is None
    assert processed.context.trace_id != around.context.trace_id
    assert [link.context.span_id for link in processed.links] == [around.context.span_id]


def test_off_means_no_opentelemetry() -> None:
    look = "import sys, fairlead.wire.tracing, fairlead.middleware.stack; print(any(m.startswith('opentelemetry') for m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize("begin", [ambient, lambda: setup("http://127.0.0.1:1")])
def test_without_the_extra_it_is_said_what_to_install(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidRequest, match=r"fairlead\[otel\]"):
        begin()


def test_ambient_spans_go_nowhere_when_the_program_traces_nothing(world: World) -> None:
    with ambient().enqueue_span("q", [NewMessage(b"", {"a": "b"})]) as messages:
        world.broker.enqueue_many("q", messages)
    delivery = world.claim_one("q")
    assert delivery.headers == {"a": "b"}
    with ambient().process_span(delivery):
        pass


def test_setup_sends_spans_to_a_collector_under_the_name_of_the_service() -> None:
    with running_collector() as collector:
        tracing = setup(collector.endpoint, "orders")
        with tracing.enqueue_span("q", [NewMessage(b"")]):
            pass
        tracing.close()
    assert collector.services() == {"orders"}
    assert list(collector.spans()) == ["enqueue q"]


def test_a_call_that_was_carried_out_is_answered_whatever_becomes_of_its_span(
    world: World,
    broker: AdmittedCaller,
    server: Traced,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the tracer is broken")

    monkeypatch.setattr(server.tracing, "record_call", fail)
    world.fill("q", count=2)
    with caplog.at_level(logging.ERROR):
        assert len(broker.claim("q", limit=2)) == 2
        with pytest.raises(QueueNotFound):
            broker.claim("nowhere")
    assert [record.message for record in caplog.records] == [
        "a span could not be written; later failures of this kind are not logged"
    ]
