"""When one kind of failure piles up in a queue, further ones wait: the failure breaker, per queue and reason."""

from __future__ import annotations

from collections import deque

from fairlead.decide.retry import Bury, RetryAt
from fairlead.model.policy import FailureBreaker


class BreakerState:
    """Closed, open until a time, or on probation after it: then one more failure opens it again.

    Nothing that is queued already moves; what comes due first after the end is the probe.
    """

    __slots__ = ("_failures", "_open_until_ms", "_probation_until_ms")

    def __init__(self) -> None:
        self._failures: deque[int] = deque()
        self._open_until_ms = 0
        self._probation_until_ms = 0

    def after_failure(self, settings: FailureBreaker, now_ms: int) -> int:
        """Count a failure; the answer is the earliest due time it may have (0: no say)."""
        if now_ms < self._open_until_ms:
            return self._open_until_ms
        if now_ms < self._probation_until_ms:
            return self._open(settings, now_ms)
        failures = self._failures
        failures.append(now_ms)
        while failures and failures[0] <= now_ms - settings.window_ms:
            failures.popleft()
        return self._open(settings, now_ms) if len(failures) >= settings.failures else 0

    def open_until_ms(self, now_ms: int) -> int:
        return self._open_until_ms if now_ms < self._open_until_ms else 0

    def _open(self, settings: FailureBreaker, now_ms: int) -> int:
        self._failures.clear()
        self._open_until_ms = now_ms + settings.pause_ms
        self._probation_until_ms = self._open_until_ms + settings.window_ms
        return self._open_until_ms


def put_off(decision: RetryAt | Bury, earliest_ms: int, now_ms: int) -> RetryAt | Bury:
    """A retry comes no earlier than the breaker allows; a death stays one."""
    if isinstance(decision, Bury) or earliest_ms <= max(decision.due_ms, now_ms):
        return decision
    return RetryAt(earliest_ms, decision.rule + " + failure_breaker")
