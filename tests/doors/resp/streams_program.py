"""redis-py as programs use it, blocking or in asyncio, and a Redis to compare with."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio


class StreamClient:
    """`client.xadd(...)` is that of redis-py, whichever form it has."""

    def __init__(self, port: int, protocol: int, *, is_async: bool, key: str | None = None) -> None:
        self._loop = asyncio.new_event_loop() if is_async else None
        make: Any = redis.asyncio.Redis if is_async else redis.Redis
        self._redis = make(port=port, protocol=protocol, decode_responses=True, password=key)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._redis, name)
        if self._loop is None:
            return method
        loop = self._loop
        return lambda *args, **options: loop.run_until_complete(method(*args, **options))

    def read(self, *args: Any, **options: Any) -> dict[str, list[tuple[str, dict[str, str]]]]:
        """XREADGROUP: redis-py gives lists or maps of lists of lists, after the version of the protocol."""
        found = self.xreadgroup(*args, **options)
        if isinstance(found, dict):
            return {name: pages[0] for name, pages in found.items()}
        return dict(found)

    def close(self) -> None:
        if self._loop is None:
            self._redis.close()
        else:
            self._loop.run_until_complete(self._redis.aclose())
            self._loop.close()


def redis_cli() -> str:
    """Skips without it: it is in Debian's redis-tools, which the tests do not install."""
    found = shutil.which("redis-cli")
    if found is None:
        pytest.skip("redis-cli is not installed (Debian: apt-get install redis-tools)")
    return found


@contextmanager
def redis_server(directory: Path) -> Iterator[str]:
    """The address of a real Redis. Skips without it, as above (redis-server)."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
    process = subprocess.Popen([binary, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "Ready to accept connections" in line:
                break
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate()
