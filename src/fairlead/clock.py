"""The one door to time.

Two readings. `now_ms` is the wall clock: what people read and other machines compare with; somebody may step
it at any moment. `monotonic_ms` is steady: it counts the time since `origin` and no step moves it. Whatever
is due is measured with steady time; `engine/store_time.py` carries that on over restarts. `ManualClock` in
`fairlead.testing` is the other implementation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

#: Linux has a steady clock that goes on while the machine sleeps; elsewhere time asleep does not count.
_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    #: True when time passes by itself, so that a broker needs a thread to notice due work.
    ticks: bool
    #: Names where `monotonic_ms` counts from, so that readings of two processes can be compared. None: the
    #: boot of this machine.
    origin: bytes | None

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...

    def wait(self, condition: threading.Condition, timeout_ms: int | None) -> None:
        """Wait on a held condition until it is notified or the time has passed. May return early."""
        ...

    def subscribe(self, on_advance: Callable[[], None]) -> Callable[[], None]:
        """Be called after time was moved by hand; returns the unsubscribe call. A ticking clock never calls."""
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
