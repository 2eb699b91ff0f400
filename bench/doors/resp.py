"""fairlead through the door that speaks the Redis protocol, and its light client, blocking and asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import fairlead
import fairlead.aio
from bench.doors.contender import aping, ping, tasks_for
from bench.doors.engine import KEYS, QUEUE, WAIT, Verbs
from bench.doors.servers import cpu_s
from fairlead.server.bootstrap import BOOTSTRAP_FILE
from fairlead.testing.authority import Authority
from fairlead.testing.server import ServerProcess, free_ports


class Resp(Verbs):
    """A client of its own for the consumer, as a consumer elsewhere would have; threads share a client."""

    name = "RESP"
    ways = ("claim", "consume")
    styles: Sequence[str] = ("threads", "tasks")

    def __init__(
        self,
        home: Path,
        durability: str,
        command: Sequence[str] = (),
        *,
        keys: bool = False,
        tls: bool = False,
    ) -> None:
        home.mkdir(parents=True)
        self._stack = ExitStack()
        settings: dict[str, object] = {"durability": durability, "auth.mode": "keys" if keys else "off"}
        #: How a client connects, beside the address.
        self._options: dict[str, Any] = {}
        if tls:
            settings |= self._make_certificates(home)
        listens = {"resp": f"127.0.0.1:{free_ports(1)[0]}"}
        self.server = ServerProcess(home / "data", listens, settings, *([command] if command else []))
        self.server.start()
        self._stack.callback(self.server.stop)
        if keys:
            self._options["api_key"] = (home / "data" / BOOTSTRAP_FILE).read_text().strip()
        self.address = f"fairlead://{self.server.addresses['resp']}"
        super().__init__(self._connect())
        self._consumer = self._connect()
        self.settings = (
            f"fairlead {fairlead.__version__}, durability {durability}, {KEYS} fairness keys; its light client on"
            f" hiredis {version('hiredis')}, the server on uvloop {version('uvloop')}; every enqueue and completion has a"
            " number in a session, so that it takes effect once"
        )

    def latencies_ms(self, bodies: Sequence[bytes], way: str) -> list[float]:
        if way == "claim":
            return super().latencies_ms(bodies, way)
        with self._consumer.consume(QUEUE) as deliveries:

            def receive() -> Callable[[], object]:
                delivery = next(deliveries)
                return lambda: self._consumer.settle([fairlead.Complete(delivery)])

            return ping(self._send, receive, bodies)

    def singles(self, bodies: Sequence[bytes], style: str, producers: int, seconds: float) -> int:
        if style == "threads":
            return super().singles(bodies, style, producers, seconds)

        async def produce() -> int:
            async with await self._connect_async() as client:
                return await tasks_for(lambda body: client.enqueue(QUEUE, body), bodies, producers, seconds)

        return asyncio.run(produce())

    def server_cpu_s(self) -> float:
        return cpu_s(self.server.pid)

    def close(self) -> None:
        self._stack.close()

    def _connect(self) -> Any:
        return self._stack.enter_context(fairlead.connect(self.address, **self._options))

    def _connect_async(self) -> Awaitable[Any]:
        return fairlead.aio.connect(self.address, **self._options)

    def _make_certificates(self, home: Path) -> dict[str, object]:
        """The settings of a server that shows a certificate, whose authority clients trust."""
        authority = Authority()
        issued = authority.for_server()
        trusted, cert, key = home / "authority.pem", home / "server.pem", home / "server.key"
        for path, content in ((trusted, authority.issued.cert), (cert, issued.cert), (key, issued.key)):
            path.write_bytes(content)
            path.chmod(0o600)
        self._options["tls"] = str(trusted)
        return {"tls.cert": str(cert), "tls.key": str(key)}


class AsyncResp(Resp):
    """Its lifecycles and waits are those of the asyncio client, as those of NATS are."""

    name = "RESP, asyncio"
    styles: Sequence[str] = ()

    def __init__(self, home: Path, durability: str) -> None:
        super().__init__(home, durability)
        self._loop = asyncio.new_event_loop()
        self._client = self._await(self._connect_async())

    def lifecycles(self, batches: list[Any], seconds: float) -> int:
        return int(self._await(self._lifecycles(batches, seconds)))

    def latencies_ms(self, bodies: Sequence[bytes], way: str) -> list[float]:
        return self._await(self._claimed(bodies) if way == "claim" else self._consumed(bodies))

    def close(self) -> None:
        self._await(self._client.close())
        self._loop.close()
        super().close()

    def _await(self, work: Awaitable[Any]) -> Any:
        return self._loop.run_until_complete(work)

    async def _lifecycles(self, batches: list[Any], seconds: float) -> int:
        done, until = 0, perf_counter() + seconds
        step = self._one_async if len(batches[0]) == 1 else self._some_async
        while True:
            for some in batches:
                await step(some)
                done += len(some)
                if perf_counter() >= until:
                    return done

    async def _one_async(self, batch: list[fairlead.NewMessage]) -> None:
        await self._client.enqueue(QUEUE, batch[0].payload, fairness_key=batch[0].fairness_key)
        (delivery,) = await self._client.claim(QUEUE)
        await self._client.settle([fairlead.Complete(delivery)])

    async def _some_async(self, batch: list[fairlead.NewMessage]) -> None:
        await self._client.enqueue_many(QUEUE, batch)
        left = len(batch)
        while left:
            deliveries = await self._client.claim(QUEUE, limit=left)
            await self._client.settle([fairlead.Complete(delivery) for delivery in deliveries])
            left -= len(deliveries)

    async def _claimed(self, bodies: Sequence[bytes]) -> list[float]:
        async def receive() -> Callable[[], Awaitable[object]]:
            (delivery,) = await self._client.claim(QUEUE, wait=WAIT)
            return lambda: self._client.settle([fairlead.Complete(delivery)])

        return await aping(lambda body: self._client.enqueue(QUEUE, body), receive, bodies)

    async def _consumed(self, bodies: Sequence[bytes]) -> list[float]:
        async with self._client.consume(QUEUE) as deliveries:

            async def receive() -> Callable[[], Awaitable[object]]:
                delivery = await anext(deliveries)
                return lambda: self._client.settle([fairlead.Complete(delivery)])

            return await aping(lambda body: self._client.enqueue(QUEUE, body), receive, bodies)
