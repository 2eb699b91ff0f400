"""The circuit breaker of one hook."""

from __future__ import annotations

from collections import deque


class Breaker:
    """Opens for `cooldown_ms` after `threshold` failures in a row; then calls resume with a full threshold.

    A success ends a row of failures. A failure that killed the host process delays every queue, so kills also
    count on their own: `threshold` kills within one cooldown open the breaker, whatever succeeded in between.
    """

    def __init__(self, threshold: int, cooldown_ms: int) -> None:
        self.threshold = threshold
        self.consecutive = 0
        self._cooldown_ms = cooldown_ms
        self._open_until_ms: int | None = None
        self._kills: deque[int] = deque(maxlen=threshold)

    def open_for_ms(self, now_ms: int) -> int:
        """How much longer the breaker stays open; 0 while it is closed."""
        if self._open_until_ms is None:
            return 0
        if now_ms < self._open_until_ms:
            return self._open_until_ms - now_ms
        self._open_until_ms = None
        self.consecutive = 0
        self._kills.clear()
        return 0

    def succeeded(self) -> None:
        self.consecutive = 0

    def failed(self, now_ms: int, *, killed: bool = False) -> None:
        self.consecutive += 1
        if killed:
            self._kills.append(now_ms)
        too_many_kills = len(self._kills) == self.threshold and now_ms - self._kills[0] < self._cooldown_ms
        if self.consecutive >= self.threshold or too_many_kills:
            self._open_until_ms = now_ms + self._cooldown_ms
