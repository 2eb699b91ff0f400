"""A broker behind its doors in this process, and a Flight transport that loses what it is told to lose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from fairlead.client.addresses import read_endpoint
from fairlead.client.client import Client
from fairlead.client.core import Core
from fairlead.client.flight.bulk import Bulk
from fairlead.client.flight.core import FlightCore
from fairlead.client.flight.transport import ExchangeStream, FlightTransport
from fairlead.client.heartbeat import Heartbeat
from fairlead.client.identity import Identity
from fairlead.client.options import Options
from fairlead.client.traces import Traces
from fairlead.clock import Clock
from fairlead.server.flight import FlightDoor
from fairlead.server.resp.door import RespDoor
from fairlead.testing import laws, open_in_memory

#: Generous: a condition that comes true ends the wait at once.
PATIENCE_S = 60.0


def until(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Waits for a condition, and gives what it gave."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true")
        time.sleep(0.005)
    return found


def heartbeat_of(client: Any) -> Heartbeat:
    """Of a client of either kind."""
    found: Heartbeat = client._core.heartbeat
    return found


class FaultyTransport:
    """Real streams, with faults by verb: `lose` the answer of a request that was carried out, or `refuse` to
    connect.
    """

    def __init__(self, address: str) -> None:
        self._inner = FlightTransport(address)
        self._lock = threading.Lock()
        self._faults: dict[str, list[str]] = {}
        #: Requests as they were written, with the metadata of each.
        self.written: list[tuple[str, bytes]] = []
        self.opened: list[str] = []

    def lose(self, verb: str, times: int = 1) -> None:
        self._faults.setdefault(verb, []).extend(["lose"] * times)

    def refuse(self, verb: str, times: int = 1) -> None:
        self._faults.setdefault(verb, []).extend(["refuse"] * times)

    def requests(self, verb: str) -> list[bytes]:
        return [metadata for written, metadata in self.written if written == verb]

    def open(self, verb: str) -> ExchangeStream:
        if self.take_fault(verb, "refuse"):
            raise pa.ArrowException("connection refused, says the test")
        self.opened.append(verb)
        return FaultyStream(self, verb, self._inner.open(verb))

    def why_hopeless(self) -> str:
        return ""

    def close(self) -> None:
        self._inner.close()

    def take_fault(self, verb: str, kind: str) -> bool:
        with self._lock:
            faults = self._faults.get(verb, [])
            if faults and faults[0] == kind:
                faults.pop(0)
                return True
            return False


class FaultyStream:
    def __init__(self, transport: FaultyTransport, verb: str, inner: ExchangeStream) -> None:
        self._transport = transport
        self._verb = verb
        self._inner = inner

    def write(self, metadata: bytes, batch: pa.RecordBatch | None) -> None:
        self._transport.written.append((self._verb, metadata))
        self._inner.write(metadata, batch)

    def read(self) -> tuple[bytes, pa.RecordBatch | None]:
        reply = self._inner.read()
        if self._transport.take_fault(self._verb, "lose"):
            self._inner.cancel()
            raise pa.ArrowException("connection reset, says the test")
        return reply

    def cancel(self) -> None:
        self._inner.cancel()

    def abandon(self) -> None:
        self._inner.abandon()

    def close(self) -> None:
        self._inner.close()


class Scene:
    """With a queue `q`, retried at once and for ever."""

    def __init__(self) -> None:
        self.broker = open_in_memory(durability="os")
        self.broker.create_queue("q")
        self.flight = FlightDoor(self.broker, "127.0.0.1:0")
        self.flight.start()
        self.door = RespDoor(self.broker, "127.0.0.1:0", flight_address=lambda: self.flight.address)
        self.door.start()
        self._clients: list[Any] = []

    @property
    def address(self) -> str:
        return self.door.address

    def client(
        self, *, clock: Clock | None = None, consumer: str = "tester", address: str = "", **options: Any
    ) -> Client:
        """Connects with its first call, not before. By `address` where something stands in between."""
        chosen = Options(address or self.address, consumer, **options)
        core = Core(chosen, Identity(read_endpoint(chosen.address), None, None), Traces(), clock)
        core.connections.flight_address = self.flight.address
        self._clients.append(Client(core))
        return self._clients[-1]

    def bulk_client(self, **options: Any) -> tuple[Client, FaultyTransport]:
        """What it sends by Flight may get lost."""
        client, transport = self.client(**options), FaultyTransport(self.flight.address)
        core = FlightCore(client._core.options, transport)
        client._core.flight._bulk = Bulk(core, client._core.traces)
        return client, transport

    def restart_door(self) -> None:
        """Another server takes the place of this one, at the same address and with the same data."""
        address = self.door.address
        self.door.drain()
        self.door.stop()
        self.door = RespDoor(self.broker, address, flight_address=lambda: self.flight.address)
        self.door.start()

    def counts(self, queue: str = "q") -> tuple[int, int, int, int]:
        """ready, waiting, leased, dead"""
        stats = self.broker.stats(queue)
        return stats.ready, stats.waiting, stats.leased, stats.dead

    def payloads(self, queue: str = "q") -> list[bytes]:
        return [info.payload for info in self.broker.peek(queue, limit=10_000)]

    def close(self) -> None:
        """Every test ends with the store's own laws."""
        for client in self._clients:
            client.close()
        problems = laws(self.broker)
        # As a server does: a claim that waits for a client that is gone would hold the door open.
        self.broker.interrupt_waits()
        for door in (self.door, self.flight):
            door.drain()
            door.stop()
        self.broker.close()
        assert problems == [], problems
