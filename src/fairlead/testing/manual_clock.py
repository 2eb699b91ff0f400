"""A clock that moves only when a test moves it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


class ManualClock:
    """`advance` moves both readings; `jump` steps the wall clock alone, as an operator or NTP would.

    A broker that is opened again on the same manual clock sees a restarted process; on another manual clock,
    a restarted machine. Due work of every broker on this clock runs inside `advance` and `jump`, in the
    calling thread. When the call returns, everything due has happened, so a test needs no sleep.
    """

    ticks = False

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        #: Another manual clock is another boot of the machine: its steady time has another origin.
        self.origin: bytes | None = os.urandom(16)
        self._wall_ms = now_ms
        self._monotonic_ms = 0
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._waiting: list[threading.Condition] = []

    def now_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, *, ms: int = 0, seconds: float = 0) -> None:
        step = ms + round(seconds * 1000)
        if step < 0:
            raise ValueError("time only advances; use jump(ms=...) to step the wall clock")
        self._wall_ms += step
        self._monotonic_ms += step
        self._announce()

    def jump(self, *, ms: int) -> None:
        """Step the wall clock by `ms` (may be negative); monotonic time stands still."""
        self._wall_ms += ms
        self._announce()

    def wait(self, condition: threading.Condition, timeout_ms: int | None) -> None:
        if timeout_ms is not None and timeout_ms <= 0:
            return
        with self._lock:
            self._waiting.append(condition)
        try:
            condition.wait()
        finally:
            with self._lock:
                self._waiting.remove(condition)

    def subscribe(self, on_advance: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._listeners.append(on_advance)

        def unsubscribe() -> None:
            with self._lock:
                if on_advance in self._listeners:
                    self._listeners.remove(on_advance)

        return unsubscribe

    def _announce(self) -> None:
        with self._lock:
            listeners, waiting = list(self._listeners), list(self._waiting)
        for listener in listeners:
            listener()
        for condition in waiting:
            with condition:
                condition.notify_all()
