"""Long waits as several requests each.

A connection that is dead without a sign is noticed after one of them, and a thread inside pyarrow hears an
interrupt only between two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from fairlead.client.core import Core
from fairlead.model.durations import Duration, to_ms

_POLL_MS = 20_000
_POLL_IN_MAIN_THREAD_MS = 1000
_SHORT_MS = 25

T = TypeVar("T")


class LongPoll:
    def __init__(self, core: Core, wait: Duration | None) -> None:
        self._core = core
        wait_ms = 0 if wait is None else to_ms(wait, "wait")
        self._most_ms = (
            _POLL_MS if threading.current_thread() is not threading.main_thread() else _POLL_IN_MAIN_THREAD_MS
        )
        self._until_ms = core.clock.monotonic_ms() + wait_ms

    def left_ms(self) -> int:
        """How long the server may wait from now on."""
        return min(max(self._until_ms - self._core.clock.monotonic_ms(), 0), self._most_ms)

    def ask(self, once: Callable[[], T], found: Callable[[T], object]) -> T:
        """The first answer in which something is found, or the last one before the time is over."""
        core = self._core
        while True:
            began_ms = core.clock.monotonic_ms()
            answer = once()
            now_ms = core.clock.monotonic_ms()
            if found(answer) or now_ms >= self._until_ms:
                return answer
            if now_ms - began_ms < _SHORT_MS:
                # A server that is about to stop ends all waits at once.
                core.pauses.wait(_SHORT_MS)
