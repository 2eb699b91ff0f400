"""The fila.v1 door: requests that are none, too large, dropped by the thousand."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from fairlead.model.limits import MAX_PAYLOAD_BYTES
from fairlead.server.fila.v1 import admin_pb2, service_pb2, service_pb2_grpc
from fairlead.testing.server import ServerProcess
from tests.doors.fila.servers import eventually
from tests.hostile.conftest import usage

PATIENCE_S = 60.0
METHODS = {
    f"/{service.full_name}/{method.name}": method.input_type.full_name
    for service in (
        service_pb2.DESCRIPTOR.services_by_name["FilaService"],
        admin_pb2.DESCRIPTOR.services_by_name["FilaAdmin"],
    )
    for method in service.methods
}
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.addresses["grpc"], options=options) as opened:
        yield opened


def ask(channel: grpc.Channel, method: str, raw: bytes) -> tuple[grpc.StatusCode, str]:
    try:
        channel.unary_unary(method)(raw, timeout=PATIENCE_S)
    except grpc.RpcError as refused:
        return refused.code(), refused.details() or ""
    return grpc.StatusCode.OK, ""


NOT_PROTOBUF = [b"\xff" * 50, b"\x0a\xff\xff\xff\xff\x0f", b"\x0b" * 100_000]


def expect_invalid(refused: grpc.RpcError, expected: str) -> None:
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.details().startswith(f"expected the request to be a {expected} in protobuf encoding, got ")
    assert dict(refused.trailing_metadata())["fairlead-error"] == "invalid_request"


@pytest.mark.parametrize(("method", "expected"), METHODS.items())
@pytest.mark.parametrize("raw", NOT_PROTOBUF, ids=len)
def test_bytes_that_are_no_protobuf_are_an_invalid_argument_that_names_the_message_type(
    channel: grpc.Channel, method: str, expected: str, raw: bytes
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        next(channel.unary_stream(method)(raw, timeout=PATIENCE_S))
    expect_invalid(refused.value, expected)


@pytest.mark.parametrize("raw", NOT_PROTOBUF, ids=len)
def test_bytes_that_are_no_protobuf_end_a_stream_of_requests_in_the_same_way(
    channel: grpc.Channel, raw: bytes
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        next(channel.stream_stream(REFLECTION)(iter([raw]), timeout=PATIENCE_S))
    expect_invalid(refused.value, "grpc.reflection.v1alpha.ServerReflectionRequest")


@pytest.mark.parametrize("method", ["/fila.v1.FilaService/Steal", "/x/y", "/" + "z" * 5000])
def test_methods_that_nobody_has_are_not_implemented(channel: grpc.Channel, method: str) -> None:
    assert ask(channel, method, b"")[0] is grpc.StatusCode.UNIMPLEMENTED


def test_a_message_that_is_too_large_is_refused_and_the_connection_goes_on(channel: grpc.Channel) -> None:
    service = service_pb2_grpc.FilaServiceStub(channel)
    for size, code in (
        (MAX_PAYLOAD_BYTES + 1, grpc.StatusCode.INVALID_ARGUMENT),
        (3 * MAX_PAYLOAD_BYTES, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            service.Enqueue(service_pb2.EnqueueRequest(queue="q", payload=bytes(size)), timeout=PATIENCE_S)
        assert refused.value.code() is code
    many = {f"h{number}": "v" for number in range(10_000)}
    with pytest.raises(grpc.RpcError) as refused:
        service.Enqueue(service_pb2.EnqueueRequest(queue="q", headers=many), timeout=PATIENCE_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["", " ", "a/b/c", "../x", "-x", "q\0", "q\n", "é", "x" * 201, "\u202eq"])
def test_a_name_that_is_none_is_refused_by_every_call(channel: grpc.Channel, name: str) -> None:
    service = service_pb2_grpc.FilaServiceStub(channel)
    calls = [
        lambda: service.Enqueue(service_pb2.EnqueueRequest(queue=name), timeout=PATIENCE_S),
        lambda: next(service.Consume(service_pb2.ConsumeRequest(queue=name), timeout=PATIENCE_S)),
        lambda: service.Ack(service_pb2.AckRequest(queue=name, message_id="0" * 32), timeout=PATIENCE_S),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not set(refused.value.details()) & set("\0\n\u202e")


def test_streams_opened_and_dropped_by_the_thousand_leave_room_for_the_next(
    server: ServerProcess, channel: grpc.Channel
) -> None:
    service = service_pb2_grpc.FilaServiceStub(channel)
    for _ in range(3):
        streams = [service.Consume(service_pb2.ConsumeRequest(queue="q")) for _ in range(1000)]
        for stream in streams:
            stream.cancel()
    before = usage(server.pid)
    assert before["threads"] < 1200

    def is_answered() -> bool:
        """Until the dropped ones have left, the connection has as many as it may."""
        with pytest.raises(grpc.RpcError) as refused:
            service.Ack(service_pb2.AckRequest(queue="q", message_id="0" * 32), timeout=PATIENCE_S)
        assert refused.value.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
        return refused.value.code() is grpc.StatusCode.NOT_FOUND

    def is_heard() -> bool:
        """The initial metadata comes when the queue was found; one too many is refused instead."""
        last = service.Consume(service_pb2.ConsumeRequest(queue="q"), timeout=PATIENCE_S)
        last.initial_metadata()
        heard = last.is_active()
        assert heard or last.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
        last.cancel()
        return heard

    eventually(is_answered)
    eventually(is_heard)
