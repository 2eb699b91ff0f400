"""The engine's one lock. Long operations take it step by step and let waiting callers pass in between.

`threading.Lock` gives a free lock to the next thread that asks, also when others have waited for longer. A
scan that releases the lock and asks again at once wins nearly every time: the thread that waited needs a core
and the interpreter lock (GIL) first. Measured beside a redrive, one enqueue was passed by 100 steps. A lock
that always served its waiters in order would cost every short call a change of threads. So only the steps of
long operations wait for others (`Core.step`).
"""

from __future__ import annotations

import threading


class EngineLock:
    """Like `threading.Lock`; a `threading.Condition` may use it."""

    __slots__ = ("__exit__", "_lock", "_waiting", "locked", "release")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: `with` finds these in their slots and calls the lock itself, without a call of Python in between.
        self.__exit__ = self._lock.__exit__
        self.release = self._lock.release
        self.locked = self._lock.locked
        #: For each thread that waits, a lock that it holds until it has got this one. One call that changes or
        #: copies the set is atomic under the GIL.
        self._waiting: set[threading.Lock] = set()

    @property
    def waiting(self) -> int:
        """How many threads wait for the lock."""
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
            return self._lock.acquire(timeout=timeout)
        finally:
            self._waiting.discard(served)
            served.release()

    def let_waiters_pass(self) -> None:
        """Without the lock: return when everybody who waits for it now has got it.

        A thread in here is nobody's waiter, so two steps cannot wait for each other.
        """
        for served in tuple(self._waiting):
            with served:
                pass

    def __enter__(self) -> None:
        # Every call comes through here, and nearly always finds the lock free.
        if not self._lock.acquire(False):
            self._wait(-1)
