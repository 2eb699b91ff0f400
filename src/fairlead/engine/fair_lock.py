"""The lock of an engine. Steps of long work let waiting threads go first.

`threading.RLock` gives a free lock to the next thread that asks, even if others have waited longer. A thread
that releases the lock and asks again at once wins nearly every time, because a waiting thread needs a core
and the interpreter lock (GIL) first. A lock that always served its waiters in order would cost every short
call a thread switch. So only `Engine.transaction`, in which long work takes its steps, lets others pass.
"""

from __future__ import annotations

import threading
from typing import Any


class FairLock:
    """Like `threading.RLock`; a `threading.Condition` may use it."""

    __slots__ = ("__exit__", "_is_owned", "_lock", "_release_save", "_waiting", "acquire_now", "release")

    def __init__(self) -> None:
        lock: Any = threading.RLock()
        self._lock = lock
        #: `with` and conditions find these in their slots and call the lock itself, without a Python call in
        #: between.
        self.__exit__ = lock.__exit__
        #: `acquire_now(False)` takes the lock if it is free. The engine does so for each plain request, which
        #: saves the call of `__enter__`.
        self.acquire_now = lock.acquire
        self.release = lock.release
        self._is_owned = lock._is_owned
        self._release_save = lock._release_save
        #: For each waiting thread, a lock that it holds until it has acquired this one. A call that changes
        #: or copies the set is atomic under the GIL.
        self._waiting: set[threading.Lock] = set()

    @property
    def is_owned(self) -> bool:
        """Whether this thread holds the lock."""
        return bool(self._is_owned())

    @property
    def waiting(self) -> int:
        """The number of threads that wait for the lock."""
        return len(self._waiting)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(False):
            return True
        return blocking and self._wait(timeout)

    def _wait(self, timeout: float) -> bool:
        served = threading.Lock()
        served.acquire()
        self._waiting.add(served)
        try:
            return bool(self._lock.acquire(True, timeout))
        finally:
            self._waiting.discard(served)
            served.release()

    def _acquire_restore(self, state: Any) -> None:
        """For a condition: acquire the lock as many times as this thread held it."""
        self.acquire()
        for _ in range(state[0] - 1):
            self._lock.acquire()

    def let_waiters_pass(self) -> None:
        """Return once every thread that waits for the lock now has acquired it. A thread that holds the lock
        continues at once.

        A thread in this method does not count as waiting, so two steps cannot wait for each other.
        """
        if self._waiting and not self._is_owned():
            for served in tuple(self._waiting):
                with served:
                    pass

    def __enter__(self) -> None:
        if not self._lock.acquire(False):
            self._wait(-1)
