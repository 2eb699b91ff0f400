"""Redis Streams with redis-py and hiredis: a pipeline of XADD, one XREADGROUP, one XACK for all.

To its advantage, acknowledged entries stay in the stream while the clock runs, as if somebody could trim it
without cutting off work that is not done. (Deleting each with an XDEL in the same round trip as its XACK made
no difference beyond the noise.)
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from bench.doors.contender import NotThere, cycle_for, in_batches, ping, tasks_for, threads_for
from bench.doors.servers import ServerProcess, free_port

_STREAM, _GROUP, _ME = "work", "workers", "me"
#: `os`: handed to the operating system with every command and synced once a second, which is more than we do.
_APPENDFSYNC = {"os": "everysec", "fsync": "always"}


class RedisStreams:
    name = "Redis Streams"
    ways: Sequence[str] = ("claim",)
    styles: Sequence[str] = ("threads", "tasks")

    def __init__(self, home: Path, durability: str) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise NotThere("redis-server is not installed (Debian: apt-get install redis-server)")
        home.mkdir(parents=True)
        self._port = free_port()
        options = {
            "port": self._port,
            "bind": "127.0.0.1",
            "dir": home,
            "save": "",
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": _APPENDFSYNC[durability],
        }
        command = [binary, *(part for name, value in options.items() for part in (f"--{name}", str(value)))]
        self._server = ServerProcess(command, self._port, home / "log")
        self._redis = self._connect()
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        number = next(word.removeprefix("v=") for word in said.split() if word.startswith("v="))
        self.settings = (
            f"redis-server {number}, appendonly yes, appendfsync {_APPENDFSYNC[durability]}, save off; "
            f"redis-py {version('redis')} with hiredis {version('hiredis')}; a pipeline of XADD, XREADGROUP, one XACK for the batch"
        )
        self._make_group()

    def prepare(self, bodies: Sequence[bytes], batch: int) -> list[Any]:
        return in_batches([{"body": body} for body in bodies], batch)

    def lifecycles(self, batches: list[Any], seconds: float) -> int:
        return cycle_for(batches, seconds, self._one if len(batches[0]) == 1 else self._some)

    def latencies_ms(self, bodies: Sequence[bytes], way: str) -> list[float]:
        consumer, producer = self._connect(), self._connect()

        def receive() -> Callable[[], object]:
            taken = consumer.xreadgroup(_GROUP, _ME, {_STREAM: ">"}, count=1, block=30_000)
            entry = taken[0][1][0][0]
            return lambda: consumer.xack(_STREAM, _GROUP, entry)

        try:
            return ping(lambda body: producer.xadd(_STREAM, {"body": body}), receive, bodies)
        finally:
            consumer.close()
            producer.close()

    def singles(self, bodies: Sequence[bytes], style: str, producers: int, seconds: float) -> int:
        if style == "threads":
            return self._by_threads(bodies, producers, seconds)
        return asyncio.run(self._by_tasks(bodies, producers, seconds))

    def clear(self) -> None:
        self._redis.delete(_STREAM)
        self._make_group()

    def server_cpu_s(self) -> float:
        return self._server.cpu_s()

    def close(self) -> None:
        self._redis.close()
        self._server.stop()

    def _connect(self) -> redis.Redis:
        return redis.Redis(port=self._port, single_connection_client=True)

    def _make_group(self) -> None:
        self._redis.xgroup_create(_STREAM, _GROUP, id="0", mkstream=True)

    def _one(self, batch: list[dict[str, bytes]]) -> int:
        self._redis.xadd(_STREAM, batch[0])
        return self._take(1)

    def _some(self, batch: list[dict[str, bytes]]) -> int:
        pipeline = self._redis.pipeline(transaction=False)
        for entry in batch:
            pipeline.xadd(_STREAM, entry)
        pipeline.execute()
        return self._take(len(batch))

    def _take(self, count: int) -> int:
        taken = self._redis.xreadgroup(_GROUP, _ME, {_STREAM: ">"}, count=count)[0][1]
        if len(taken) != count or self._redis.xack(_STREAM, _GROUP, *[entry for entry, _ in taken]) != count:
            raise AssertionError(f"{count} entries are not there")
        return count

    def _by_threads(self, bodies: Sequence[bytes], producers: int, seconds: float) -> int:
        connections = [self._connect() for _ in range(producers)]
        try:
            return threads_for(
                [lambda body, to=to: to.xadd(_STREAM, {"body": body}) for to in connections], bodies, seconds
            )
        finally:
            for connection in connections:
                connection.close()

    async def _by_tasks(self, bodies: Sequence[bytes], producers: int, seconds: float) -> int:
        async with redis.asyncio.Redis(port=self._port) as shared:
            return await tasks_for(
                lambda body: shared.xadd(_STREAM, {"body": body}), bodies, producers, seconds
            )
