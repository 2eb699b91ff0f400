"""The fila door puts calls of many callers into one batch: none of them learns of another, or fails with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import errors
from fairlead.middleware.stack import AdmittedCaller
from fairlead.server.fila.calls import acting_as
from fairlead.server.fila.consumers import Consumers
from fairlead.server.fila.service import FilaService
from fairlead.server.fila.starts import Starter
from fairlead.server.fila.v1 import service_pb2 as pb
from tests.doors.fila.in_process import Caller
from tests.integration.world import Background, wait_until
from tests.security.scene import Scene


class Gathering:
    """A service whose first batch waits until the test lets it go, so that the calls behind it are gathered."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
        self.scene = scene
        self.starter = Starter(scene.broker)
        self.starter.open()
        self.service = FilaService(
            scene.access,
            Consumers(),
            self.starter,
            clock=scene.clock,
            stopping=lambda: False,
            trace_headers=False,
        )
        self.go = threading.Event()
        self.batches: list[int] = []
        self._streams: list[Iterator[pb.ConsumeResponse]] = []
        carry_out = getattr(scene.broker, verb)

        def wait_and_carry_out(*args: Any) -> Any:
            if threading.current_thread().name != "fila-starts":
                self.batches.append(len(args[-1]))
                assert self.go.wait(60)
            return carry_out(*args)

        monkeypatch.setattr(scene.broker, verb, wait_and_carry_out)

    def enqueue(self, guard: AdmittedCaller, queue: str, payload: bytes = b"", **headers: str) -> Background:
        def call() -> str:
            with acting_as(guard):
                return self.service.Enqueue(
                    pb.EnqueueRequest(queue=queue, payload=payload, headers=headers), Caller()
                ).message_id  # type: ignore[arg-type]

        return Background(call)

    def _on(self, guard: AdmittedCaller, connection: Caller) -> AdmittedCaller:
        return AdmittedCaller(self.scene.access, guard.caller._replace(source=connection.peer()))

    def consume(self, guard: AdmittedCaller, queue: str, connection: Caller) -> str:
        with acting_as(self._on(guard, connection)):
            stream: Iterator[pb.ConsumeResponse] = self.service.Consume(
                pb.ConsumeRequest(queue=queue), connection
            )  # type: ignore[arg-type]
        self._streams.append(stream)
        return next(stream).message.id

    def ack(self, guard: AdmittedCaller, queue: str, message_id: str, connection: Caller) -> Background:
        def call() -> None:
            with acting_as(self._on(guard, connection)):
                self.service.Ack(pb.AckRequest(queue=queue, message_id=message_id), connection)  # type: ignore[arg-type]

        return Background(call)


def test_who_is_refused_is_so_at_once_and_not_with_a_batch(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.broker.create_queue("q")
    gathering = Gathering(scene, monkeypatch, "enqueue_many")
    ann, bob, stranger = (
        scene.with_grants("produce:q"),
        scene.with_grants("produce:*"),
        scene.with_grants("consume:q", "produce:p"),
    )
    first = gathering.enqueue(ann, "q", b"first")
    wait_until(lambda: gathering.batches == [1])
    good = gathering.enqueue(bob, "q", b"good")
    wait_until(lambda: gathering.service.enqueues.waiting("q") == 1)
    bad = gathering.enqueue(ann, "q", b"bad", secret="x" * 70_000)
    wait_until(lambda: gathering.service.enqueues.waiting("q") == 2)
    with pytest.raises(errors.Forbidden):
        gathering.enqueue(stranger, "q", b"refused").result()
    assert gathering.service.enqueues.waiting("q") == 2
    gathering.go.set()
    assert {first.result(), good.result()} == {info.id for info in scene.broker.peek("q")}
    with pytest.raises(errors.InvalidRequest) as own:
        bad.result()
    assert "headers" in str(own.value)
    # Together, and when that was refused, each alone.
    assert gathering.batches == [1, 2, 1, 1]
    # Each call passed the layers on its own, and who was refused got no further.
    assert scene.access.requests["enqueue"].outcomes == {"ok": 2, "invalid_request": 1}
    gathering.starter.close()


def test_a_queue_of_no_such_name_is_told_apart_from_none_of_ones_own_only_by_whose_it_may_be(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathering = Gathering(scene, monkeypatch, "enqueue_many")
    gathering.go.set()
    with pytest.raises(errors.QueueNotFound):
        gathering.enqueue(scene.with_grants("produce:q"), "q").result()
    with pytest.raises(errors.Forbidden):
        gathering.enqueue(scene.with_grants("produce:p"), "q").result()
    gathering.starter.close()


def test_of_acks_in_one_batch_each_is_answered_by_itself(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.broker.create_queue("q", visibility_timeout="30s")
    gathering = Gathering(scene, monkeypatch, "settle")
    connections = [Caller(f"ipv4:127.0.0.1:{port}") for port in (1, 2, 3)]
    guards = [scene.with_grants("consume:q") for _ in connections]
    held = []
    for guard, connection in zip(guards, connections, strict=True):
        # One after the other, because a stream takes all there is.
        scene.broker.enqueue("q", b"")
        held.append(gathering.consume(guard, "q", connection))
    first = gathering.ack(guards[0], "q", held[0], connections[0])
    wait_until(lambda: gathering.batches == [1])
    second = gathering.ack(guards[1], "q", held[1], connections[1])
    wait_until(lambda: gathering.service.settles.waiting("q") == 1)
    third = gathering.ack(guards[2], "q", held[2], connections[2])
    wait_until(lambda: gathering.service.settles.waiting("q") == 2)
    stranger = scene.with_grants("consume:p", "admin:q")
    for connection in connections:
        # Also on a connection that another key uses.
        with pytest.raises(errors.Forbidden):
            gathering.ack(stranger, "q", held[1], connection).result()
    # While they wait, an operator takes the last one away.
    scene.broker.drop("q", [held[2]])
    gathering.go.set()
    assert (first.result(), second.result()) == (None, None)
    with pytest.raises(errors.MessageNotFound):
        third.result()
    assert gathering.batches == [1, 2]
    gathering.starter.close()
