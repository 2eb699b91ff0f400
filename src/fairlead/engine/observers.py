"""Observers receive committed facts and durations. An observer that fails harms no commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fairlead.model.timings import Timing
from fairlead.records.facts import StateFact

if TYPE_CHECKING:
    from fairlead.engine.memory import Memory

#: The facts of a commit, and memory, whose `changes` still has what they touched.
FactObserver = Callable[[Sequence[StateFact], "Memory"], None]
TimingObserver = Callable[[Timing], None]

_log = logging.getLogger("fairlead.observers")


class Observers:
    """False while there is none, so that nothing is measured in vain."""

    def __init__(self) -> None:
        self.of_facts: list[Callable[..., None]] = []
        self._of_timings: list[TimingObserver] = []
        self._in_trouble: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self.of_facts)

    def add(self, observer: Callable[..., None], timed: TimingObserver | None, *so_far: object) -> None:
        """Add an observer. It receives `so_far` first, as if that had just been committed."""
        self.of_facts.append(observer)
        self._tell(observer, *so_far)
        if timed is not None:
            self._of_timings.append(timed)

    def committed(self, *what: object) -> None:
        for observer in self.of_facts:
            self._tell(observer, *what)

    def timed(self, timing: Timing) -> None:
        for observer in self._of_timings:
            self._tell(observer, timing)

    def _tell(self, observer: Callable[..., None], *what: object) -> None:
        try:
            observer(*what)
        except Exception:
            # The commit is made, so its caller must succeed. Logged once, or a busy broker would fill the
            # log.
            if id(observer) not in self._in_trouble:
                self._in_trouble.add(id(observer))
                _log.exception(
                    "an observer of the broker failed; it is still told, and no further failure is logged"
                )
