"""Server processes under test, and readers of their streams that never hang a test."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fila
import grpc
from fila.v1 import admin_pb2, admin_pb2_grpc, service_pb2_grpc

ROOT = Path(__file__).parents[3]
#: Nothing here takes long; this is how long a stalled machine may take before a test says that something
#: hangs.
PATIENCE_S = 60.0


class Server:
    """A broker with a fila.v1 door in a process of its own."""

    def __init__(self, data: Path, *, port: int = 0) -> None:
        command = [sys.executable, "-m", "tests.doors.fila.runner", str(data), str(port)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address, "the server did not start"
        self.port = int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


class Admin:
    """Fila's own generated stub, with the calls the tests make."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub = admin_pb2_grpc.FilaAdminStub(self.channel)
        self.service = service_pb2_grpc.FilaServiceStub(self.channel)

    def create(self, name: str, *, on_enqueue: str = "", on_failure: str = "", timeout_ms: int = 0) -> str:
        config = admin_pb2.QueueConfig(
            on_enqueue_script=on_enqueue, on_failure_script=on_failure, visibility_timeout_ms=timeout_ms
        )
        return self.stub.CreateQueue(admin_pb2.CreateQueueRequest(name=name, config=config)).queue_id

    def delete(self, name: str) -> None:
        self.stub.DeleteQueue(admin_pb2.DeleteQueueRequest(queue=name))

    def set(self, key: str, value: str) -> None:
        self.stub.SetConfig(admin_pb2.SetConfigRequest(key=key, value=value))

    def get(self, key: str) -> str:
        return self.stub.GetConfig(admin_pb2.GetConfigRequest(key=key)).value

    def list(self, prefix: str = "") -> dict[str, str]:
        return {
            entry.key: entry.value
            for entry in self.stub.ListConfig(admin_pb2.ListConfigRequest(prefix=prefix)).entries
        }

    def stats(self, name: str) -> admin_pb2.GetStatsResponse:
        return self.stub.GetStats(admin_pb2.GetStatsRequest(queue=name))

    def redrive(self, name: str, count: int = 0) -> int:
        return self.stub.Redrive(admin_pb2.RedriveRequest(dlq_queue=name, count=count)).redriven

    def queues(self) -> dict[str, admin_pb2.QueueInfo]:
        return {info.name: info for info in self.stub.ListQueues(admin_pb2.ListQueuesRequest()).queues}


class Reader:
    """Reads a consume stream of the published client in the background; `next` gives up after a while instead
    of hanging.
    """

    _END = object()

    def __init__(self, address: str, name: str) -> None:
        self.client = fila.Client(address)
        self._got: queue.Queue[object] = queue.Queue()
        self._thread = threading.Thread(target=self._read, args=(self.client.consume(name),), daemon=True)
        self._thread.start()

    def _read(self, messages: Iterator[fila.ConsumeMessage]) -> None:
        for message in messages:
            self._got.put(message)
        self._got.put(self._END)

    def next(self) -> fila.ConsumeMessage:
        message = self._got.get(timeout=PATIENCE_S)
        assert isinstance(message, fila.ConsumeMessage), "the stream ended"
        return message

    def take(self, count: int) -> list[fila.ConsumeMessage]:
        return [self.next() for _ in range(count)]

    def wait_for_end(self) -> None:
        assert self._got.get(timeout=PATIENCE_S) is self._END

    def close(self) -> None:
        self.client.close()
        self._thread.join(PATIENCE_S)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for what another process or thread does in its own time."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it never came to be so"
        time.sleep(0.01)


def status_of(call: Callable[[], object]) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK
