"""Closed throttle keys, and how they open: after a time one message is delivered as a probe, then 2, 4, 8,
... at a time, until enough probes were in flight at once that the key counts as open.

Only the end of the closed time is stored. The progress of the opening is a hint: after a restart it begins
with one probe again.
"""

from __future__ import annotations

from collections.abc import Iterable

#: The last stage: a key with this many answered probes, and up to as many in flight at a time, is open.
MAX_PROBES = 64


class ClosedKey:
    __slots__ = ("answered", "at_once", "probes", "until_ms")

    def __init__(self, until_ms: int) -> None:
        self.until_ms = until_ms
        #: How many probes may be in flight at a time, and how many of this stage were answered.
        self.at_once = 1
        self.answered = 0
        #: The messages in flight as probes.
        self.probes: set[int] = set()

    @property
    def is_open(self) -> bool:
        """Whether the last stage is over."""
        return self.at_once > MAX_PROBES

    def room(self, now_ms: int) -> int:
        """How many more messages may be delivered now."""
        return max(0, self.at_once - len(self.probes)) if now_ms >= self.until_ms else 0

    def ended(self, numbers: Iterable[int], *, is_answer: bool) -> bool:
        """End deliveries. Returns whether any was a probe, so that other messages may be delivered. A probe
        without an answer makes room for another one, and proves nothing.
        """
        ended = self.probes.intersection(numbers)
        self.probes -= ended
        if is_answer:
            self.answered += len(ended)
        while self.answered >= self.at_once:
            self.answered -= self.at_once
            self.at_once *= 2
        return bool(ended)
