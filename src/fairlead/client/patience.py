"""The time limit of one call, and the pauses between its attempts."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from fairlead.clock import Clock
from fairlead.errors import ClientClosed

_FIRST_MS = 25
_LONGEST_MS = 1000


class Pauses:
    """Pauses that end when the client is closed."""

    def __init__(self, clock: Clock, chance: Callable[[], float] = random.random) -> None:
        self.clock = clock
        self.chance = chance
        self._changed = threading.Condition()
        self.closed = False

    def wait(self, pause_ms: int) -> None:
        until_ms = self.clock.monotonic_ms() + pause_ms
        with self._changed:
            while not self.closed:
                left_ms = until_ms - self.clock.monotonic_ms()
                if left_ms <= 0:
                    return
                self.clock.wait(self._changed, left_ms)
        raise ClientClosed()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class Patience:
    """The time limits of one call.

    The call ends at `ends_ms` at the latest. Within this time, attempts continue for `retry_for_ms` from the
    first failure, not from the beginning: a silently dead connection is noticed only when the first attempt
    has used its whole timeout.
    """

    def __init__(self, pauses: Pauses, retry_for_ms: int, ends_ms: int) -> None:
        self._pauses = pauses
        self._retry_for_ms = retry_for_ms
        self._retries_end_ms: int | None = None
        self._tries = 0
        self.ends_ms = ends_ms

    def left_ms(self) -> int:
        """How long the call may still take."""
        return max(0, self.ends_ms - self._pauses.clock.monotonic_ms())

    def wait(self, at_least_ms: int = 0) -> bool:
        """Pause before the next attempt. False when the time is over: give up."""
        pause_ms = self.next_pause_ms(at_least_ms)
        if pause_ms is None:
            return False
        self._pauses.wait(pause_ms)
        return self.left_ms() > 0

    def next_pause_ms(self, at_least_ms: int = 0) -> int | None:
        """The pause before the next attempt; None when the time is over.

        Pauses double up to a second, and half of each is random, so that a thousand clients do not retry at
        the same time.
        """
        now_ms = self._pauses.clock.monotonic_ms()
        if self._retries_end_ms is None:
            self._retries_end_ms = min(now_ms + self._retry_for_ms, self.ends_ms)
        if now_ms >= self._retries_end_ms:
            return None
        step_ms = min(_LONGEST_MS, _FIRST_MS << min(self._tries, 10))
        self._tries += 1
        pause_ms = max(at_least_ms, round(step_ms * (0.5 + 0.5 * self._pauses.chance())))
        return min(pause_ms, self._retries_end_ms - now_ms)
