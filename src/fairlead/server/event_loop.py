"""One event loop in a thread of its own, on which the doors with Python sockets run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoop:
    """`uvloop` if it is installed, else asyncio's own loop. Started by the first door that needs it, stopped
    after the last one has closed.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "start it first"
        return self._loop

    @property
    def thread_id(self) -> int | None:
        return None if self._thread is None else self._thread.ident

    def start(self) -> None:
        """Calling it twice is allowed."""
        if self._thread is not None:
            return
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name="fairlead-doors", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """From another thread: run the coroutine, and return its result or raise its error."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def stop(self) -> None:
        """Call it after the doors have closed. Returns when the thread has ended; calling it twice is
        allowed.
        """
        if self._thread is None:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self._thread = None

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
