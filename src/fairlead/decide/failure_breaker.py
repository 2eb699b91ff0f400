"""The failure breaker of a queue and failure reason: when failures of one kind accumulate, further ones wait."""

from __future__ import annotations

from collections import deque

from fairlead.decide.retry import DeadLetter, RetryAt
from fairlead.model.policy import FailureBreaker


class BreakerState:
    """Closed, open until a time, or on probation after that time, when one more failure opens it again.

    Messages that are already queued do not move. The first message that is due after the open time is the
    probe.
    """

    __slots__ = ("_failures", "_open_until_ms", "_probation_until_ms")

    def __init__(self) -> None:
        self._failures: deque[int] = deque()
        self._open_until_ms = 0
        self._probation_until_ms = 0

    def after_failure(self, settings: FailureBreaker, now_ms: int) -> int:
        """Count a failure, and return the earliest due time that its retry may have; 0 means no restriction."""
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


def put_off(decision: RetryAt | DeadLetter, earliest_ms: int, now_ms: int) -> RetryAt | DeadLetter:
    """The decision, with a retry no earlier than the breaker allows. A death is not affected."""
    if isinstance(decision, DeadLetter) or earliest_ms <= max(decision.due_ms, now_ms):
        return decision
    return RetryAt(earliest_ms, decision.rule + " + failure_breaker")
