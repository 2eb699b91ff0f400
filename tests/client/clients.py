"""Both clients of the Redis protocol behind one face, so that each test is written once."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from collections.abc import Callable
from typing import Any

import fairlead
import fairlead.aio

PATIENCE_S = 60

#: How a test asks for a client: `connect(kind, address, ...)`.
KINDS = ["blocking", "asyncio"]


def connect(kind: str, address: str, **options: Any) -> Any:
    if kind == "blocking":
        return fairlead.connect(address, **options)
    return OnALoop(address, options)


class OnALoop:
    """An asyncio client on a loop in a thread of its own; its coroutines are waited for."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self.client = self.wait(fairlead.aio.connect(address, **options))
        except BaseException:
            self._end()
            raise

    def wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        return found if not callable(found) else lambda *args, **fields: self._call(found, *args, **fields)

    def _call(self, method: Callable[..., Any], *args: Any, **fields: Any) -> Any:
        async def call() -> Any:
            answer = method(*args, **fields)
            return await answer if inspect.isawaitable(answer) else answer

        return self.wait(call())

    def close(self) -> None:
        if self._thread.is_alive():
            self.wait(self.client.close())
            self._end()

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def __enter__(self) -> OnALoop:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Listener:
    """A server of one's own: `serve` gets each connection, in a thread. Without it, nobody accepts."""

    def __init__(self, serve: Callable[[socket.socket], None] | None = None, backlog: int = 8) -> None:
        self._serve = serve
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self.connections: list[socket.socket] = []
        if serve is not None:
            threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def _accept(self) -> None:
        assert self._serve is not None
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        for connection in self.connections:
            connection.close()
