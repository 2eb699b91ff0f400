"""Daemon threads for blocking calls. They start on demand and end when idle.

This is no ThreadPoolExecutor: the interpreter waits for its threads at exit, and a thread here may wait an
hour for a message.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from fairlead.errors import ClientClosed

P = ParamSpec("P")
T = TypeVar("T")

_IDLE_S = 10.0


class DaemonThreads:
    """Up to `most` threads. Further jobs wait for a free thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._idle = 0
        self._threads = 0
        self._closed = False

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise ClientClosed()
            self._jobs.append((future, lambda: work(*args, **kwargs)))
            if self._idle >= len(self._jobs):
                self._changed.notify()
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, name="fairlead-client", daemon=True).start()
        return future

    def close(self) -> None:
        """Fail the jobs that no thread has taken with `ClientClosed`; jobs under way continue."""
        with self._changed:
            self._closed = True
            jobs, self._jobs = self._jobs, deque()
            self._changed.notify_all()
        for future, _ in jobs:
            if future.set_running_or_notify_cancel():
                future.set_exception(ClientClosed())

    def join(self, timeout_s: float) -> None:
        """After `close`: wait until the last job under way is over, or until the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: not self._threads, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._jobs or self._closed, timeout=_IDLE_S)
                self._idle -= 1
                if not self._jobs:
                    self._threads -= 1
                    self._changed.notify_all()
                    return
                future, job = self._jobs.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as error:
                    future.set_exception(error)
            # Freed before the next job comes: they refer to the caller's result.
            del future, job
