"""fairlead through its Flight door: `fairlead serve` in a process of its own, and the Python client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import fairlead
from bench.doors.contender import ping, tasks_for
from bench.doors.engine import KEYS, QUEUE, Verbs
from bench.doors.servers import cpu_s
from fairlead.client.async_client import connect as aio_connect
from fairlead.client.client import connect
from fairlead.testing.server import ServerProcess, free_ports


class Flight(Verbs):
    """A client of its own for the consumer, as a consumer elsewhere would have."""

    name = "Flight"
    ways = ("claim", "stream")
    styles = ("threads", "tasks")

    def __init__(self, home: Path, durability: str, command: Sequence[str] = ()) -> None:
        self._stack = ExitStack()
        address = f"127.0.0.1:{free_ports(1)[0]}"
        self.server = ServerProcess(
            home, {"flight": address}, {"durability": durability}, *([command] if command else [])
        )
        self.server.start()
        self._stack.callback(self.server.stop)
        super().__init__(self._stack.enter_context(connect(self.server.addresses["flight"])))
        self._consumer = self._stack.enter_context(connect(self.server.addresses["flight"]))
        self.settings = f"fairlead {fairlead.__version__}, durability {durability}, pyarrow {version('pyarrow')}, {KEYS} fairness keys; sync client"

    def latencies_ms(self, bodies: Sequence[bytes], way: str) -> list[float]:
        if way == "claim":
            return super().latencies_ms(bodies, way)
        with self._consumer.consume(QUEUE) as deliveries:

            def receive() -> Callable[[], object]:
                delivery = next(deliveries)
                return lambda: self._consumer.settle([fairlead.Complete(delivery)])

            return ping(self._send, receive, bodies)

    def singles(self, bodies: Sequence[bytes], style: str, seconds: float) -> int:
        return (
            super().singles(bodies, style, seconds)
            if style == "threads"
            else asyncio.run(self._by_tasks(bodies, seconds))
        )

    def server_cpu_s(self) -> float:
        return cpu_s(self.server.pid)

    def close(self) -> None:
        self._stack.close()

    async def _by_tasks(self, bodies: Sequence[bytes], seconds: float) -> int:
        async with await aio_connect(self.server.addresses["flight"]) as client:
            return await tasks_for(lambda body: client.enqueue(QUEUE, body), bodies, seconds)
