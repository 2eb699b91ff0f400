"""The door as a whole: its limits, its other services, gathering, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import fila
import grpc
import pytest
from fila.v1 import service_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from fairlead import Broker
from fairlead.clock import Clock
from fairlead.config import LimitSettings
from fairlead.errors import AddressUnavailable
from fairlead.model.message import NewMessage
from fairlead.model.settle import Settlement, SettleResult
from fairlead.server.fila.door import FilaDoor
from fairlead.server.limits import Limits
from fairlead.testing import ManualClock, Storage, open_in_memory
from tests.doors.fila.servers import PATIENCE_S, Admin, Reader, Server, eventually, status_of


class WatchedBroker(Broker):
    """Notes the size of each batch, and holds the first one back until told to go on."""

    def __init__(self) -> None:
        super().__init__(Storage())
        self.enqueued: list[int] = []
        self.settled: list[int] = []
        self.go_on = threading.Event()

    def enqueue_many(self, queue: str, messages: Sequence[NewMessage]) -> list[str]:
        self.enqueued.append(len(messages))
        self.go_on.wait(PATIENCE_S)
        return super().enqueue_many(queue, messages)

    def settle(self, items: Sequence[Settlement]) -> list[SettleResult]:
        self.settled.append(len(items))
        self.go_on.wait(PATIENCE_S)
        return super().settle(items)


@contextmanager
def serving(
    broker: Broker, *, limits: Limits | None = None, call_threads: int = 64, clock: Clock | None = None
) -> Iterator[tuple[FilaDoor, Admin]]:
    door = FilaDoor(broker, "127.0.0.1:0", limits, call_threads=call_threads, grace_s=1, clock=clock)
    door.start()
    admin = Admin(door.address)
    try:
        yield door, admin
    finally:
        admin.channel.close()
        broker.interrupt_waits()
        door.stop()
        broker.close()


def enqueue(admin: Admin, queue: str, headers: dict[str, str] | None = None) -> str:
    request = service_pb2.EnqueueRequest(queue=queue, headers=headers or {}, payload=b"p")
    return admin.service.Enqueue(request, timeout=PATIENCE_S).message_id


def open_stream(admin: Admin, queue: str) -> grpc.Call:
    stream = admin.service.Consume(service_pb2.ConsumeRequest(queue=queue), timeout=PATIENCE_S)
    stream.initial_metadata()  # comes once the stream is open, or refused
    return stream


def test_concurrent_enqueues_share_a_commit_and_a_bad_one_spoils_none_of_them() -> None:
    broker = WatchedBroker()
    broker.create_queue("q")
    with serving(broker) as (door, admin), ThreadPoolExecutor(21) as callers:
        first = callers.submit(enqueue, admin, "q")
        eventually(lambda: broker.enqueued == [1])
        good = [callers.submit(enqueue, admin, "q") for _ in range(19)]
        bad = callers.submit(enqueue, admin, "q", {"too": "x" * 70_000})
        eventually(lambda: door.service.enqueues.waiting("q") == 20)
        broker.go_on.set()
        assert len({first.result(), *[future.result() for future in good]}) == 20
        with pytest.raises(grpc.RpcError) as caught:
            bad.result()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        # One alone, the rest together; that was refused, so each of them again alone.
        assert broker.enqueued == [1, 20] + [1] * 20
        assert broker.stats("q").ready == 20


def test_concurrent_enqueues_take_fewer_commits_than_there_are_calls() -> None:
    broker = WatchedBroker()
    broker.create_queue("q")
    with serving(broker) as (door, admin), ThreadPoolExecutor(50) as callers:
        calls = [callers.submit(enqueue, admin, "q") for _ in range(50)]
        eventually(lambda: door.service.enqueues.waiting("q") == 49)
        broker.go_on.set()
        assert len({call.result() for call in calls}) == 50
        assert broker.enqueued == [1, 49]


def test_concurrent_acks_and_nacks_share_a_commit_and_a_stale_one_spoils_none_of_them() -> None:
    broker = WatchedBroker()
    broker.go_on.set()
    broker.create_queue("q")
    with serving(broker) as (door, admin), ThreadPoolExecutor(10) as callers:
        for _ in range(10):
            enqueue(admin, "q")
        stream = open_stream(admin, "q")
        ids = [next(stream).message.id for _ in range(10)]
        eventually(lambda: sum(broker.settled) == 10)  # all of them are started
        broker.settled.clear()
        broker.drop("q", ids[9:])
        broker.go_on.clear()

        def settle(message_id: str) -> grpc.StatusCode:
            if message_id == ids[5]:
                return status_of(
                    lambda: admin.service.Nack(service_pb2.NackRequest(queue="q", message_id=message_id))
                )
            return status_of(
                lambda: admin.service.Ack(service_pb2.AckRequest(queue="q", message_id=message_id))
            )

        answers = [callers.submit(settle, message_id) for message_id in ids]
        eventually(lambda: door.service.settles.waiting("q") == 9)
        broker.go_on.set()
        assert [answer.result() for answer in answers] == [grpc.StatusCode.OK] * 9 + [
            grpc.StatusCode.NOT_FOUND
        ]
        assert broker.settled[:2] == [1, 9]
        again = next(stream).message
        assert (again.id, again.metadata.attempt_count) == (ids[5], 1)


def test_streams_beyond_the_limit_are_refused_and_never_take_the_threads_of_single_calls() -> None:
    broker = open_in_memory()
    broker.create_queue("q")
    limits = Limits(LimitSettings(max_streams=2))
    with serving(broker, limits=limits, call_threads=1) as (_, admin):
        streams = [open_stream(admin, "q") for _ in range(2)]
        eventually(lambda: (limits.channels, limits.in_flight) == (2, 2))
        assert status_of(lambda: next(open_stream(admin, "q"))) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert enqueue(admin, "q")
        assert admin.stats("q").active_consumers == 2
        streams[0].cancel()

        def admitted() -> bool:
            streams.append(open_stream(admin, "q"))
            return admin.stats("q").active_consumers == 2

        eventually(lambda: admin.stats("q").active_consumers == 1)
        eventually(admitted)


def test_calls_are_counted_and_bounded_together_with_those_of_other_doors() -> None:
    broker, limits = WatchedBroker(), Limits(LimitSettings(max_calls=1))
    broker.create_queue("q")
    with serving(broker, limits=limits) as (_, admin), ThreadPoolExecutor(1) as callers:
        first = callers.submit(enqueue, admin, "q")
        eventually(lambda: broker.enqueued == [1])
        assert limits.in_flight == 1
        assert limits.bytes_in_flight > 0
        assert status_of(lambda: enqueue(admin, "q")) is grpc.StatusCode.RESOURCE_EXHAUSTED
        broker.go_on.set()
        first.result()
        eventually(lambda: limits.in_flight == 0)
        with limits.call():
            assert status_of(lambda: enqueue(admin, "q")) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_health_and_reflection_are_served(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "fila.v1.FilaService", "fila.v1.FilaAdmin"):
            assert (
                health.Check(health_pb2.HealthCheckRequest(service=service)).status
                == health_pb2.HealthCheckResponse.SERVING
            )
        assert {"fila.v1.FilaService", "fila.v1.FilaAdmin", "grpc.health.v1.Health"} <= set(
            ProtoReflectionDescriptorDatabase(channel).get_services()
        )


def test_a_draining_door_refuses_new_calls_ends_its_streams_and_says_so_to_health_checks() -> None:
    broker = open_in_memory()
    broker.create_queue("q")
    with serving(broker) as (door, admin):
        stream = open_stream(admin, "q")
        door.drain()
        broker.interrupt_waits()
        assert status_of(lambda: next(stream)) is grpc.StatusCode.UNAVAILABLE
        assert status_of(lambda: enqueue(admin, "q")) is grpc.StatusCode.UNAVAILABLE
        assert status_of(lambda: next(open_stream(admin, "q"))) is grpc.StatusCode.UNAVAILABLE
        health = health_pb2_grpc.HealthStub(admin.channel)
        assert (
            health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        )
        assert broker.stats("q").ready == 0


def test_stopping_gives_back_what_a_stalled_stream_had_claimed_ahead() -> None:
    clock = ManualClock()
    broker = open_in_memory(clock=clock)
    broker.create_queue("q")
    broker.enqueue_many("q", [NewMessage(b"x" * 10_000)] * 1000)
    with serving(broker, clock=clock) as (door, admin):
        stalled = admin.service.Consume(service_pb2.ConsumeRequest(queue="q"))
        next(stalled)
        door.stop()
        leased = broker.stats("q").leased
        clock.advance(seconds=31)
        # Whatever is still leased had been written, and counts as seen.
        assert [info.attempts for info in broker.peek("q", limit=1000)].count(1) == leased > 0


def test_a_server_told_to_stop_ends_in_order_with_consumers_on_it(tmp_path: Path) -> None:
    server = Server(tmp_path)
    Admin(server.address).create("q")
    with Reader(server.address, "q") as reader, fila.Client(server.address) as client:
        message_id = client.enqueue("q", None, b"")
        assert reader.next().id == message_id
        assert server.stop() == 0
        reader.wait_for_end()


def test_an_address_that_is_taken_is_refused_by_name(server: Server) -> None:
    broker = open_in_memory()
    with pytest.raises(AddressUnavailable, match=f"expected to listen on {server.address} \\(grpc\\), got: "):
        FilaDoor(broker, server.address).start()
    broker.close()
