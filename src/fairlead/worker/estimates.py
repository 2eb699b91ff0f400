"""How long each step takes, as far as is known. Slow until the contrary is seen.

A mean that follows what happens, and not the worst: in threads any call may be held up for some milliseconds
by the others.
"""

from __future__ import annotations

#: From here on a call is handed over alone, and its message is started before.
SLOW_US = 5_000
_ENOUGH = 5
_MEMORY = 20
#: What handing over and answering takes, however little is done.
_MIN_US = 20


class Estimates:
    """In microseconds, by the name of the step."""

    def __init__(self) -> None:
        self._us: dict[str, float] = {}
        self._seen: dict[str, int] = {}

    def record(self, step: str, took_us: int) -> None:
        seen = self._seen.get(step, 0) + 1
        before = self._us.get(step, 0.0)
        self._us[step] = before + (took_us - before) / min(seen, _MEMORY)
        self._seen[step] = seen

    def of(self, step: str) -> int:
        """At least `SLOW_US` for a step that nobody knows yet."""
        if self._seen.get(step, 0) < _ENOUGH:
            return max(SLOW_US, int(self._us.get(step, 0)))
        return max(_MIN_US, int(self._us[step]))
