"""The only source of time.

A clock has two readings. `now_ms` is the wall clock: people read it and other machines compare with it, and
an operator may step it at any moment. `monotonic_ms` is steady: it counts the time since `origin`, and no
step moves it. Due times are measured with steady time; `engine/store_time.py` continues it over restarts.
`ManualClock` in `fairlead.testing` is the other implementation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

#: Linux has a steady clock that continues while the machine sleeps; elsewhere, time asleep does not count.
_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    #: True if time passes by itself, so that a broker needs a thread to notice due work.
    ticks: bool
    #: Identifies the origin of `monotonic_ms`, so that readings of two processes can be compared. None: the
    #: boot of this machine.
    origin: bytes | None

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...

    def wait(self, condition: threading.Condition, timeout_ms: int | None) -> None:
        """Wait on a held condition until it is notified or the time has passed. May return early."""
        ...

    def subscribe(self, on_advance: Callable[[], None]) -> Callable[[], None]:
        """Call `on_advance` after time was moved by hand; returns the function that unsubscribes. A ticking
        clock never calls it.
        """
        ...


class SystemClock:
    ticks = True
    origin: bytes | None = None

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1_000_000

    def wait(self, condition: threading.Condition, timeout_ms: int | None) -> None:
        condition.wait(None if timeout_ms is None else max(0, timeout_ms) / 1000)

    def subscribe(self, on_advance: Callable[[], None]) -> Callable[[], None]:
        return lambda: None
