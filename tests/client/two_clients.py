"""A broker behind the door that speaks Redis, and clients of either kind."""

from __future__ import annotations

from typing import Any

from fairlead.server.resp.door import RespDoor
from fairlead.testing import laws, open_in_memory
from tests.client.clients import connect


class Site:
    """A broker with a queue `q` behind a door in this process, and its clients."""

    def __init__(self, **options: Any) -> None:
        self.broker = open_in_memory(durability="os")
        # Longer than any test: what comes back was given back.
        self.broker.create_queue("q", visibility_timeout="1h")
        self.door = RespDoor(self.broker, "127.0.0.1:0", **options)
        self.door.start()
        self._clients: list[Any] = []

    @property
    def address(self) -> str:
        return self.door.address

    def connect(self, kind: str, address: str = "", **options: Any) -> Any:
        self._clients.append(connect(kind, address or self.address, consumer="tester", **options))
        return self._clients[-1]

    def restart_door(self) -> None:
        """Another server takes the place of this one, at the same address and with the same data."""
        address = self.door.address
        self.door.drain()
        self.door.stop()
        self.door = RespDoor(self.broker, address)
        self.door.start()

    def counts(self, queue: str = "q") -> tuple[int, int, int, int]:
        """ready, waiting, leased, dead"""
        stats = self.broker.stats(queue)
        return stats.ready, stats.waiting, stats.leased, stats.dead

    def close(self) -> None:
        for client in self._clients:
            client.close()
        problems = laws(self.broker)
        self.door.drain()
        self.broker.interrupt_waits()
        self.door.stop()
        self.broker.close()
        assert problems == [], problems
