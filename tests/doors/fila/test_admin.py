"""FilaAdmin and the status of every refusal, over Fila's own generated stubs."""

from __future__ import annotations

from collections.abc import Callable

import fila
import grpc
import pytest
from fila.v1 import admin_pb2, messages_pb2, service_pb2

from fairlead.middleware.stack import Layers
from fairlead.model.queue import QueueConfig
from fairlead.server.fila.admin import FilaAdmin
from fairlead.server.fila.calls import acting_as
from fairlead.server.fila.consumers import Consumers
from fairlead.server.fila.v1 import admin_pb2 as pb
from fairlead.testing import open_in_memory
from tests.doors.fila.servers import PATIENCE_S, Admin, Reader, Server, eventually, status_of

ID = "01a1e195-9429-7001-8c23-570efea5bcab"
OK = grpc.StatusCode.OK
INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND


def enqueue(admin: Admin, queue: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> str:
    return admin.service.Enqueue(
        service_pb2.EnqueueRequest(queue=queue, headers=headers or {}, payload=payload)
    ).message_id


def consume(admin: Admin, queue: str) -> object:
    return next(admin.service.Consume(service_pb2.ConsumeRequest(queue=queue), timeout=PATIENCE_S))


def ack(admin: Admin, queue: str, message_id: str) -> None:
    admin.service.Ack(service_pb2.AckRequest(queue=queue, message_id=message_id))


def nack(admin: Admin, queue: str, message_id: str) -> None:
    admin.service.Nack(service_pb2.NackRequest(queue=queue, message_id=message_id, error="e"))


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda admin: enqueue(admin, ""), INVALID),
        (lambda admin: enqueue(admin, "unknown"), NOT_FOUND),
        (lambda admin: enqueue(admin, "there", headers={"h": "x" * 70_000}), INVALID),
        (lambda admin: enqueue(admin, "there", b"x" * (16 * 1024 * 1024 + 1)), INVALID),
        (lambda admin: enqueue(admin, "there.dlq"), INVALID),
        (lambda admin: consume(admin, ""), INVALID),
        (lambda admin: consume(admin, "unknown"), NOT_FOUND),
        (lambda admin: ack(admin, "", ID), INVALID),
        (lambda admin: ack(admin, "there", ""), INVALID),
        (lambda admin: ack(admin, "there", "not-a-uuid"), INVALID),
        (lambda admin: ack(admin, "there", ID), NOT_FOUND),
        (lambda admin: ack(admin, "there", ID.replace("-", "")), NOT_FOUND),
        (lambda admin: ack(admin, "unknown", ID), NOT_FOUND),
        (lambda admin: nack(admin, "", ID), INVALID),
        (lambda admin: nack(admin, "there", "not-a-uuid"), INVALID),
        (lambda admin: nack(admin, "there", ID), NOT_FOUND),
        (lambda admin: admin.create(""), INVALID),
        (lambda admin: admin.create("there"), grpc.StatusCode.ALREADY_EXISTS),
        (lambda admin: admin.create("no-time", timeout_ms=99), INVALID),
        (lambda admin: admin.create("no-time", timeout_ms=1), INVALID),
        (lambda admin: admin.create("no-time", timeout_ms=1 << 63), INVALID),
        (lambda admin: admin.create("no-script", on_enqueue="this is not Lua"), INVALID),
        (lambda admin: admin.create("no-script", on_failure="function on_failure("), INVALID),
        (lambda admin: admin.delete(""), INVALID),
        (lambda admin: admin.delete("unknown"), NOT_FOUND),
        (lambda admin: admin.stats(""), INVALID),
        (lambda admin: admin.stats("unknown"), NOT_FOUND),
        (lambda admin: admin.redrive(""), INVALID),
        (lambda admin: admin.redrive("there"), INVALID),
        (lambda admin: admin.redrive("unknown.dlq"), NOT_FOUND),
        (lambda admin: admin.redrive("there.dlq"), OK),
        (lambda admin: admin.set("", "x"), INVALID),
        (lambda admin: admin.set("k" * 257, "x"), INVALID),
        (lambda admin: admin.set("k", "x" * 1025), INVALID),
        (lambda admin: admin.set("k" * 256, "x" * 1024), OK),
        (lambda admin: admin.get(""), INVALID),
        (lambda admin: admin.get("k" * 257), INVALID),
        (lambda admin: admin.get("never-set"), NOT_FOUND),
        (lambda admin: admin.get("throttle.never-set"), NOT_FOUND),
        (lambda admin: admin.list("p" * 257), INVALID),
        (lambda admin: admin.list("nothing-begins-like-this"), OK),
        *[
            (lambda admin, value=value: admin.set("throttle.bad", value), INVALID)
            for value in ("10", "a,b", "10,", "nan,1", "1,inf", "-1,1", "1,0", "1,2,3")
        ],
        (lambda admin: admin.set("throttle.", "1,1"), INVALID),
    ],
)
def test_each_refusal_has_the_status_that_fila_documents(
    admin: Admin, call: Callable[[Admin], object], status: grpc.StatusCode
) -> None:
    status_of(lambda: admin.create("there"))
    assert status_of(lambda: call(admin)) is status
    assert "throttle.bad" not in admin.list()


def test_an_error_names_itself_beside_its_status(admin: Admin) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        enqueue(admin, "unknown")
    assert ("fairlead-error", "queue_not_found") in [
        (key, value) for key, value in caught.value.trailing_metadata()
    ]
    assert "unknown" in caught.value.details()


def test_a_queue_is_made_with_its_dead_letters_listed_inspected_and_deleted(admin: Admin, name: str) -> None:
    assert admin.create(name, timeout_ms=60_000) == name
    for n in range(3):
        enqueue(admin, name, bytes([n]))
    assert {name, f"{name}.dlq"} <= admin.queues().keys()
    listed = admin.queues()[name]
    assert (listed.depth, listed.in_flight, listed.active_consumers, listed.leader_node_id) == (3, 0, 0, 0)
    stats = admin.stats(name)
    assert (stats.depth, stats.in_flight, stats.active_fairness_keys, stats.quantum) == (3, 0, 1, 1)
    assert [(key.key, key.pending_count, key.weight) for key in stats.per_key_stats] == [("default", 3, 1)]
    assert (stats.leader_node_id, stats.replication_count) == (0, 0)
    admin.delete(name)
    assert not {name, f"{name}.dlq"} & admin.queues().keys()
    assert status_of(lambda: admin.stats(name)) is NOT_FOUND


def test_depth_is_what_waits_to_be_delivered_and_in_flight_what_was(
    server: Server, admin: Admin, name: str
) -> None:
    admin.create(name)
    enqueue(admin, name)
    with Reader(server.address, name) as reader:
        reader.next()
        stats = admin.stats(name)
    assert (stats.depth, stats.in_flight) == (0, 1)


@pytest.mark.parametrize(
    ("given_ms", "taken_ms"), [(0, QueueConfig().visibility_timeout_ms), (500, 500), (60_000, 60_000)]
)
def test_a_visibility_timeout_has_the_bounds_of_every_door_and_0_is_the_default(
    given_ms: int, taken_ms: int
) -> None:
    broker = open_in_memory()
    config = pb.QueueConfig(visibility_timeout_ms=given_ms)
    with acting_as(Layers(broker).admit(None, "a test")):
        FilaAdmin(Consumers()).CreateQueue(pb.CreateQueueRequest(name="q", config=config), None)  # type: ignore[arg-type]
    assert broker.queues("q")[0].config.visibility_timeout_ms == taken_ms
    broker.close()


def test_deleting_a_queue_ends_the_streams_of_its_consumers(admin: Admin, name: str) -> None:
    admin.create(name)
    stream = admin.service.Consume(service_pb2.ConsumeRequest(queue=name), timeout=PATIENCE_S)
    eventually(lambda: admin.stats(name).active_consumers == 1)
    admin.delete(name)
    assert status_of(lambda: next(stream)) is NOT_FOUND


def test_a_throttle_is_one_entry_in_filas_spelling_and_two_in_ours(admin: Admin) -> None:
    admin.set("throttle.stripe.eu", " 10 , 20.5 ")
    assert admin.get("throttle.stripe.eu") == "10,20.5"
    assert admin.list("throttle:stripe.eu:") == {
        "throttle:stripe.eu:burst": "20.5",
        "throttle:stripe.eu:rate": "10",
    }
    assert admin.list("throttle.str") == {"throttle.stripe.eu": "10,20.5"}
    admin.set("throttle:stripe.eu:rate", "30")
    assert admin.get("throttle.stripe.eu") == "30,20.5"
    admin.set("throttle:stripe.eu:burst", "")
    assert admin.get("throttle.stripe.eu") == "30,30"
    admin.set("throttle.stripe.eu", "")
    assert admin.list("throttle:stripe.eu:") == admin.list("throttle.stripe.eu") == {}
    admin.set("throttle.stripe.eu", "")


def test_stats_show_every_throttle_with_its_tokens(admin: Admin, name: str) -> None:
    admin.create(name)
    admin.set("throttle.seen", "0,7")
    [seen] = [throttle for throttle in admin.stats(name).per_throttle_stats if throttle.key == "seen"]
    assert (seen.rate_per_second, seen.burst, seen.tokens) == (0, 7, 7)
    admin.set("throttle.seen", "")
    assert "seen" not in [throttle.key for throttle in admin.stats(name).per_throttle_stats]


def test_plain_configuration_is_stored_listed_by_prefix_and_read_by_hooks(
    server: Server, admin: Admin, client: fila.Client, name: str
) -> None:
    admin.set(f"{name}.b", "2")
    admin.set(f"{name}.a", "1")
    admin.set(f"{name}.empty", "")
    assert list(admin.list(f"{name}.").items()) == [
        (f"{name}.a", "1"),
        (f"{name}.b", "2"),
        (f"{name}.empty", ""),
    ]
    assert admin.get(f"{name}.empty") == ""
    assert admin.stub.ListConfig(admin_pb2.ListConfigRequest(prefix=f"{name}.")).total_count == 3
    admin.create(
        name,
        on_enqueue=f'function on_enqueue(msg) return {{fairness_key = "tier-" .. fila.get("{name}.b")}} end',
    )
    client.enqueue(name, None, b"")
    with Reader(server.address, name) as reader:
        assert reader.next().fairness_key == "tier-2"


def test_a_list_of_everything_has_each_throttle_once(admin: Admin) -> None:
    admin.set("throttle.once", "1,2")
    assert [key for key in admin.list() if "once" in key] == ["throttle.once"]
    assert [key for key in admin.list("thr") if "once" in key] == ["throttle.once"]
    admin.set("throttle.once", "")


def test_a_delivery_carries_what_the_protocol_has_fields_for(admin: Admin, name: str) -> None:
    admin.create(
        name,
        on_enqueue='function on_enqueue(msg) return {fairness_key = "k", weight = 5, throttle_keys = {"b", "a"}} end',
    )
    message_id = enqueue(admin, name, b"p", {"h": "v"})
    message = consume(admin, name).message
    assert (message.id, message.payload, dict(message.headers)) == (message_id, b"p", {"h": "v"})
    metadata = messages_pb2.MessageMetadata(
        fairness_key="k", weight=5, throttle_keys=["a", "b"], attempt_count=0, queue_id=name
    )
    assert message.metadata == metadata
    enqueued, leased = (
        message.timestamps.enqueued_at.ToMilliseconds(),
        message.timestamps.leased_at.ToMilliseconds(),
    )
    assert 0 < enqueued <= leased


def test_a_message_larger_than_grpcs_own_limit_is_taken_and_delivered(
    server: Server, admin: Admin, name: str
) -> None:
    admin.create(name)
    payload = b"x" * (16 * 1024 * 1024)
    enqueue(admin, name, payload)
    with grpc.insecure_channel(server.address, options=[("grpc.max_receive_message_length", -1)]) as roomy:
        wide = Admin.__new__(Admin)
        wide.service = type(admin.service)(roomy)
        assert consume(wide, name).message.payload == payload


def test_the_trace_context_of_a_call_becomes_headers_unless_the_message_has_its_own(
    admin: Admin, name: str
) -> None:
    admin.create(name)
    trace = (
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "a=b"),
        ("other", "x"),
    )
    admin.service.Enqueue(service_pb2.EnqueueRequest(queue=name, headers={"h": "v"}), metadata=trace)
    admin.service.Enqueue(
        service_pb2.EnqueueRequest(queue=name, headers={"traceparent": "own"}), metadata=trace
    )
    stream = admin.service.Consume(service_pb2.ConsumeRequest(queue=name), timeout=PATIENCE_S)
    assert dict(next(stream).message.headers) == {"h": "v", "traceparent": trace[0][1], "tracestate": "a=b"}
    assert dict(next(stream).message.headers) == {"traceparent": "own"}
