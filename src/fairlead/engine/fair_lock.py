"""The lock of an engine. Steps of long work let the threads that wait for it go first.

`threading.RLock` gives a free lock to the next thread that asks, also when others have waited for longer. A thread
that releases the lock and asks again at once wins nearly every time, because a thread that waited needs a core and the
interpreter lock (GIL) first. A lock that always served its waiters in order would cost every short call a change of
threads. So only `Engine.transaction`, in which long work takes its steps, lets others pass.
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
        #: `with` and conditions find these in their slots and call the lock itself, without a call of Python in
        #: between.
        self.__exit__ = lock.__exit__
        #: `acquire_now(False)` takes the lock if nobody has it. Then it spares the call of `__enter__`, as the engine does
        #: for each plain request.
        self.acquire_now = lock.acquire
        self.release = lock.release
        self._is_owned = lock._is_owned
        self._release_save = lock._release_save
        #: For each thread that waits, a lock that it holds until it has got this one. A call that changes or copies
        #: the set is atomic under the GIL.
        self._waiting: set[threading.Lock] = set()

    @property
    def is_owned(self) -> bool:
        """Whether this thread has the lock."""
        return bool(self._is_owned())

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
            return bool(self._lock.acquire(True, timeout))
        finally:
            self._waiting.discard(served)
            served.release()

    def _acquire_restore(self, state: Any) -> None:
        """For a condition: take the lock as often as this thread had it."""
        self.acquire()
        for _ in range(state[0] - 1):
            self._lock.acquire()

    def let_waiters_pass(self) -> None:
        """Return when everybody who waits for the lock now has got it. A thread that has the lock goes on at once.

        A thread in here is nobody's waiter, so two steps cannot wait for each other.
        """
        if self._waiting and not self._is_owned():
            for served in tuple(self._waiting):
                with served:
                    pass

    def __enter__(self) -> None:
        if not self._lock.acquire(False):
            self._wait(-1)
