"""Every way to a broker behind one set of verbs. An adapter has a verb only if its door has it; answers are
plain values.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from typer.testing import CliRunner

import fairlead
import fairlead.aio
from fairlead import Broker, Complete, Fail, NewMessage, Release, errors
from fairlead.cli.app import app
from fairlead.server.fila.door import FilaDoor
from fairlead.server.fila.v1 import admin_pb2, admin_pb2_grpc, service_pb2, service_pb2_grpc
from fairlead.server.resp.door import RespDoor
from fairlead.testing import ManualClock, open_in_memory
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.settle import Settle
from fairlead.wire.statuses import STATUSES


class Refused(Exception):
    """A door said no. `matches` tells whether that is how it says one particular error."""

    def __init__(self, said: object) -> None:
        super().__init__(said)
        self.said = said

    def matches(self, kind: type[errors.FairleadError]) -> bool:
        if isinstance(self.said, errors.FairleadError):
            return type(self.said) is kind
        if isinstance(self.said, grpc.StatusCode):
            return self.said.name == STATUSES[kind].grpc
        assert isinstance(self.said, tuple)
        return self.said == (STATUSES[kind].exit_code, kind.code)


class Verbs:
    """The engine's verbs, on whatever has them: a broker, a client, or an asyncio client that is waited for."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def _ask(self, verb: str, *args: Any, **options: Any) -> Any:
        on = self._target.config if verb.startswith("config.") else self._target
        try:
            return getattr(on, verb.rpartition(".")[2])(*args, **options)
        except errors.FairleadError as refused:
            raise Refused(refused) from None

    def create_queue(self, name: str, **options: Any) -> str:
        return str(self._ask("create_queue", name, **options).name)

    def update_queue(self, name: str, **options: Any) -> int:
        return int(self._ask("update_queue", name, **options).config.visibility_timeout_ms)

    def delete_queue(self, name: str) -> None:
        self._ask("delete_queue", name)

    def queues(self) -> list[str]:
        return [info.name for info in self._ask("queues")]

    def pause(self, name: str) -> None:
        self._ask("pause", name)

    def resume(self, name: str) -> None:
        self._ask("resume", name)

    def purge(self, name: str) -> int:
        return int(self._ask("purge", name))

    def enqueue(self, queue: str, payload: bytes, headers: dict[str, str] | None = None) -> str:
        return str(self._ask("enqueue", queue, payload, headers=headers))

    def enqueue_with(self, queue: str, payload: bytes, **options: Any) -> str:
        return str(self._ask("enqueue", queue, payload, **options))

    def enqueue_many(self, queue: str, payloads: list[bytes]) -> int:
        return len(self._ask("enqueue_many", queue, [NewMessage(payload) for payload in payloads]))

    def quarantine(self, queue: str, payload: bytes) -> int:
        return len(
            self._ask("quarantine", queue, [NewMessage(payload)], error="bad", reason="validation_failure")
        )

    def claim(self, queue: str, limit: int) -> list[tuple[bytes, int]]:
        return [(delivery.payload, delivery.attempts) for delivery in self._ask("claim", queue, limit=limit)]

    def claim_with(self, queue: Any, **options: Any) -> list[bytes]:
        return [delivery.payload for delivery in self._ask("claim", queue, **options)]

    def work(self, queue: str, *outcomes: str) -> list[str]:
        """Claims as many as there are outcomes, and settles each with its own."""
        kinds = {
            "complete": Complete,
            "fail": lambda d: Fail(d, error="no"),
            "dead": lambda d: Fail(d, dead=True),
            "release": Release,
        }
        deliveries = self._ask("claim", queue, limit=len(outcomes))
        items = [kinds[outcome](delivery) for outcome, delivery in zip(outcomes, deliveries, strict=True)]
        return [result.outcome for result in self._ask("settle", items)]

    def settle_twice(self, queue: str) -> list[str]:
        (delivery,) = self._ask("claim", queue)
        return [result.outcome for _ in range(2) for result in self._ask("settle", [Complete(delivery)])]

    def exchange(self, queue: str, other: str) -> tuple[list[str], int, list[bytes]]:
        """Completes one message of the queue, enqueues two, claims one of them."""
        (delivery,) = self._ask("claim", queue, consumer="me")
        messages = [NewMessage(b"x"), NewMessage(b"y")]
        requests = [Settle([Complete(delivery)]), EnqueueMany(other, messages), Claim(other, consumer="me")]
        settled, ids, deliveries = self._ask("exchange", requests)
        return [result.outcome for result in settled], len(ids), [got.payload for got in deliveries]

    def ack(self, queue: str, message_id: str) -> None:
        _must_be_ok(self._ask("ack", queue, message_id))

    def nack(self, queue: str, message_id: str, error: str) -> None:
        _must_be_ok(self._ask("nack", queue, message_id, error))

    def goodbye(self, consumer: str) -> int:
        return int(self._ask("goodbye", consumer))

    def stats(self, queue: str) -> tuple[int, int]:
        found = self._ask("stats", queue)
        return found.ready, found.leased

    def peek(self, queue: str) -> list[bytes]:
        return [info.payload for info in self._ask("peek", queue)]

    def find(self, queue: str, message_id: str) -> str:
        return str(self._ask("find", message_id, queue).where)

    def operate(self, verb: str, queue: str, message_id: str) -> tuple[int, int]:
        done = self._ask(verb, queue, [message_id])
        return len(done.changed), len(done.skipped)

    def prune(self, queue: str) -> int:
        return len(self._ask("prune", queue).changed)

    def drain(self, queue: str) -> list[bytes]:
        return [info.payload for info in self._ask("drain", queue)]

    def release_stream(self, queue: str, stream: str) -> bool:
        return bool(self._ask("release_stream", queue, stream))

    def redrive(self, queue: str, count: int | None = None) -> int:
        return int(self._ask("redrive", queue, count=count).moved)

    def redrive_dry(self, queue: str) -> int:
        return int(self._ask("redrive", queue, dry_run=True).matched)

    def explain(self, queue: str, message_id: str) -> list[str]:
        return [reason.code for reason in self._ask("explain", message_id, queue).reasons]

    def failures(self, queue: str) -> dict[str, int]:
        return dict(self._ask("failure_metrics", queue).by_reason)

    def config_set(self, key: str, value: str) -> None:
        self._ask("config.set", key, value)

    def config_get(self, key: str) -> str:
        return str(self._ask("config.get", key))

    def config_list(self, prefix: str) -> dict[str, str]:
        return dict(self._ask("config.list", prefix))

    def config_unset(self, key: str) -> None:
        self._ask("config.delete", key)


def _must_be_ok(result: fairlead.SettleResult) -> None:
    """By id there is no delivery to be told apart: both ways of being too late are 'not there'."""
    if not result.ok:
        raise Refused(errors.LostLease(result.id))


class Waited:
    """An asyncio client whose coroutines are run to their end."""

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name == "config":
            return Waited(found, self._loop)
        return lambda *args, **options: self._loop.run_until_complete(found(*args, **options))


class Grpc:
    """Fila's protocol, by the stubs of its own description."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self._admin = admin_pb2_grpc.FilaAdminStub(self.channel)
        self._service = service_pb2_grpc.FilaServiceStub(self.channel)

    def _ask(self, call: Any, request: Any) -> Any:
        try:
            return call(request, timeout=60)
        except grpc.RpcError as refused:
            raise Refused(refused.code()) from None

    def create_queue(self, name: str) -> str:
        return str(self._ask(self._admin.CreateQueue, admin_pb2.CreateQueueRequest(name=name)).queue_id)

    def delete_queue(self, name: str) -> None:
        self._ask(self._admin.DeleteQueue, admin_pb2.DeleteQueueRequest(queue=name))

    def queues(self) -> list[str]:
        return [info.name for info in self._ask(self._admin.ListQueues, admin_pb2.ListQueuesRequest()).queues]

    def enqueue(self, queue: str, payload: bytes, headers: dict[str, str] | None = None) -> str:
        return str(
            self._ask(
                self._service.Enqueue,
                service_pb2.EnqueueRequest(queue=queue, payload=payload, headers=headers),
            ).message_id
        )

    def claim(self, queue: str, limit: int) -> list[tuple[bytes, int]]:
        stream = self._service.Consume(service_pb2.ConsumeRequest(queue=queue), timeout=60)
        try:
            messages = [next(stream).message for _ in range(limit)]
        except grpc.RpcError as refused:
            raise Refused(refused.code()) from None
        stream.cancel()
        return [(message.payload, message.metadata.attempt_count) for message in messages]

    def ack(self, queue: str, message_id: str) -> None:
        self._ask(self._service.Ack, service_pb2.AckRequest(queue=queue, message_id=message_id))

    def nack(self, queue: str, message_id: str, error: str) -> None:
        self._ask(
            self._service.Nack, service_pb2.NackRequest(queue=queue, message_id=message_id, error=error)
        )

    def stats(self, queue: str) -> tuple[int, int]:
        found = self._ask(self._admin.GetStats, admin_pb2.GetStatsRequest(queue=queue))
        return found.depth, found.in_flight

    def redrive(self, queue: str, count: int | None = None) -> int:
        # Fila names the queue of dead letters, never its source.
        dead = queue if queue.endswith(".dlq") else f"{queue}.dlq"
        return int(
            self._ask(
                self._admin.Redrive, admin_pb2.RedriveRequest(dlq_queue=dead, count=count or 0)
            ).redriven
        )

    def config_set(self, key: str, value: str) -> None:
        self._ask(self._admin.SetConfig, admin_pb2.SetConfigRequest(key=key, value=value))

    def config_get(self, key: str) -> str:
        return str(self._ask(self._admin.GetConfig, admin_pb2.GetConfigRequest(key=key)).value)

    def config_list(self, prefix: str) -> dict[str, str]:
        return {
            entry.key: entry.value
            for entry in self._ask(self._admin.ListConfig, admin_pb2.ListConfigRequest(prefix=prefix)).entries
        }


class Cli:
    """The command line against a server, in JSON."""

    def __init__(self, address: str) -> None:
        self._address = address

    def _ask(self, *command: str) -> Any:
        ran = CliRunner().invoke(app, ["--addr", self._address, "-o", "json", *command])
        if ran.exit_code:
            raise Refused((ran.exit_code, json.loads(ran.stderr)["error"]["code"]))
        return json.loads(ran.stdout)

    def create_queue(self, name: str) -> str:
        return str(self._ask("queue", "create", name)["name"])

    def update_queue(self, name: str, visibility_timeout: str) -> int:
        return int(
            self._ask("queue", "update", name, "--visibility-timeout", visibility_timeout)["config"][
                "visibility_timeout_ms"
            ]
        )

    def delete_queue(self, name: str) -> None:
        self._ask("queue", "delete", name, "--yes")

    def queues(self) -> list[str]:
        return [info["name"] for info in self._ask("queue", "list", "--all")]

    def pause(self, name: str) -> None:
        self._ask("queue", "pause", name)

    def resume(self, name: str) -> None:
        self._ask("queue", "resume", name)

    def purge(self, name: str) -> int:
        return int(self._ask("queue", "purge", name, "--yes")["dropped"])

    def enqueue(self, queue: str, payload: bytes, headers: dict[str, str] | None = None) -> str:
        options = [
            word for name, value in (headers or {}).items() for word in ("--header", f"{name}={value}")
        ]
        return str(self._ask("queue", "push", queue, payload.decode(), *options)["id"])

    def stats(self, queue: str) -> tuple[int, int]:
        (found,) = self._ask("stats", queue)["queues"]
        return found["ready"], found["leased"]

    def peek(self, queue: str) -> list[bytes]:
        return [info["payload"].encode() for info in self._ask("queue", "peek", queue)]

    def operate(self, verb: str, queue: str, message_id: str) -> tuple[int, int]:
        done = self._ask("queue", verb, queue, message_id, "--yes")
        return len(done["changed"]), len(done["skipped"])

    def prune(self, queue: str) -> int:
        return len(self._ask("queue", "prune", queue, "--all", "--yes")["changed"])

    def drain(self, queue: str) -> list[bytes]:
        return [info["payload"].encode() for info in self._ask("queue", "drain", queue, "--yes")]

    def release_stream(self, queue: str, stream: str) -> bool:
        return bool(self._ask("queue", "release-stream", queue, stream)["released"])

    def redrive(self, queue: str, count: int | None = None) -> int:
        return int(self._ask("redrive", queue, "--yes", *(["--count", str(count)] if count else []))["moved"])

    def redrive_dry(self, queue: str) -> int:
        return int(self._ask("redrive", queue, "--dry-run")["matched"])

    def explain(self, queue: str, message_id: str) -> list[str]:
        return [reason["code"] for reason in self._ask("explain", queue, message_id)["reasons"]]

    def failures(self, queue: str) -> dict[str, int]:
        return dict(self._ask("failures", queue)["by_reason"])

    def config_set(self, key: str, value: str) -> None:
        self._ask("config", "set", key, value)

    def config_get(self, key: str) -> str:
        return str(self._ask("config", "get", key)["value"])

    def config_list(self, prefix: str) -> dict[str, str]:
        return dict(self._ask("config", "list", prefix))

    def config_unset(self, key: str) -> None:
        self._ask("config", "unset", key)


KINDS: dict[str, type] = {
    "in process": Verbs,
    "client": Verbs,
    "asyncio": Verbs,
    "grpc": Grpc,
    "command line": Cli,
}


@contextmanager
def open_door(name: str) -> Iterator[tuple[Any, Broker]]:
    """A fresh broker on a clock that stands still, and one door to it."""
    broker = open_in_memory(clock=ManualClock())
    door: FilaDoor | RespDoor | None = None
    try:
        if name == "in process":
            yield Verbs(broker), broker
            return
        door = (FilaDoor if name == "grpc" else RespDoor)(broker, "127.0.0.1:0")
        door.start()
        with _adapter(name, door.address) as adapter:
            yield adapter, broker
    finally:
        broker.interrupt_waits()
        if door is not None:
            door.drain()
            door.stop()
        broker.close()


@contextmanager
def _adapter(name: str, address: str) -> Iterator[Any]:
    if name == "client":
        with fairlead.connect(address) as client:
            yield Verbs(client)
    elif name == "asyncio":
        with asyncio.Runner() as runner:
            client_of_loop = runner.run(fairlead.aio.connect(address))
            yield Verbs(Waited(client_of_loop, runner.get_loop()))
            runner.run(client_of_loop.close())
    elif name == "grpc":
        adapter = Grpc(address)
        with adapter.channel:
            yield adapter
    else:
        yield Cli(address)
