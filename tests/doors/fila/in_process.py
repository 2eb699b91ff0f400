"""Parts of the door without sockets: a broker in memory on a clock that stands still, and a caller made of
plain values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.middleware.stack import Layers
from fairlead.server.fila.calls import acting_as
from fairlead.server.fila.consumers import Consumers
from fairlead.server.fila.service import FilaService
from fairlead.server.fila.starts import Starter
from fairlead.server.fila.v1 import service_pb2 as pb
from fairlead.testing import ManualClock, open_in_memory


class Caller:
    """What gRPC tells a handler about a call."""

    def __init__(self, peer: str = "ipv4:127.0.0.1:1") -> None:
        self._peer = peer
        self.active = True
        self.told_open = False

    def peer(self) -> str:
        return self._peer

    def is_active(self) -> bool:
        return self.active

    def add_callback(self, callback: object) -> bool:
        return True

    def send_initial_metadata(self, metadata: object) -> None:
        self.told_open = True


class Workbench:
    """A service whose clock the test moves. `told` says that every start posted so far is with the broker."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = open_in_memory(clock=self.clock)
        self.broker.create_queue("q", visibility_timeout="30s")
        self.starter = Starter(self.broker)
        self.starter.open()
        self.stopping = False
        self.layers = Layers(self.broker)
        self.service = FilaService(
            self.layers,
            Consumers(),
            self.starter,
            clock=self.clock,
            stopping=lambda: self.stopping,
            trace_headers=False,
        )

    def told(self) -> None:
        self.starter.close()

    def enqueue(self, *payloads: bytes) -> list[str]:
        return [self.broker.enqueue("q", payload) for payload in payloads]

    def consume(self, caller: Caller) -> Iterator[pb.ConsumeResponse]:
        with acting_as(self.layers.admit(None, caller.peer())):
            return self.service.Consume(pb.ConsumeRequest(queue="q"), caller)  # type: ignore[arg-type]

    def ack(self, message_id: str, caller: Caller) -> None:
        with acting_as(self.layers.admit(None, caller.peer())):
            self.service.Ack(pb.AckRequest(queue="q", message_id=message_id), caller)  # type: ignore[arg-type]

    def nack(self, message_id: str, caller: Caller) -> None:
        with acting_as(self.layers.admit(None, caller.peer())):
            self.service.Nack(pb.NackRequest(queue="q", message_id=message_id, error="e"), caller)  # type: ignore[arg-type]

    def attempts(self) -> list[int]:
        """Of all ready messages, in the order they will come."""
        return [info.attempts for info in self.broker.peek("q")]


@contextmanager
def workbench() -> Iterator[Workbench]:
    bench = Workbench()
    try:
        yield bench
    finally:
        bench.starter.close()
        bench.broker.close()
