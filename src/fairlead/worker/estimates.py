"""How long each step takes: slow until it was measured a few times.

An estimate is a moving mean, not the maximum: between threads of one process any call may be delayed by some
milliseconds.
"""

from __future__ import annotations

#: From this estimate on, a call is dispatched alone, and its message is started before.
SLOW_US = 5_000
_ENOUGH_CALLS = 5
_MEAN_OF_CALLS = 20
#: The cost of dispatching a call and taking in its answer, however little the step does.
_MIN_US = 20


class Estimates:
    """Expected duration of a call by the name of its step, in microseconds."""

    def __init__(self) -> None:
        self._mean_us: dict[str, float] = {}
        self._calls: dict[str, int] = {}

    def record(self, step: str, took_us: int) -> None:
        calls = self._calls.get(step, 0) + 1
        before = self._mean_us.get(step, 0.0)
        self._mean_us[step] = before + (took_us - before) / min(calls, _MEAN_OF_CALLS)
        self._calls[step] = calls

    def of(self, step: str) -> int:
        """At least `SLOW_US` until the step was called a few times."""
        if self._calls.get(step, 0) < _ENOUGH_CALLS:
            return max(SLOW_US, int(self._mean_us.get(step, 0)))
        return max(_MIN_US, int(self._mean_us[step]))
