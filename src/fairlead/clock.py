"""The one door to time.

Two readings: `now_ms` is the wall clock, used for whatever is stored or shown; `monotonic_ms` never jumps, and is what
leases and token buckets are measured with, so that a step of the wall clock neither expires a lease nor fills a bucket.
`ManualClock` in `fairlead.testing` is the other implementation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    #: True when time passes by itself, so that a broker needs a thread to notice due work.
    ticks: bool

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

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wait(self, condition: threading.Condition, timeout_ms: int | None) -> None:
        condition.wait(None if timeout_ms is None else max(0, timeout_ms) / 1000)

    def subscribe(self, on_advance: Callable[[], None]) -> Callable[[], None]:
        return lambda: None
