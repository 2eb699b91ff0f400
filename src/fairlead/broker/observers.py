"""Who is told what was committed and how long it took, and can harm neither."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.model.facts import Fact
from fairlead.model.timings import Timing

Observer = Callable[[Sequence[Fact]], None]
TimingObserver = Callable[[Timing], None]

_log = logging.getLogger("fairlead.observers")


class Observers:
    """False while there is none, so that whoever would measure something need not."""

    def __init__(self) -> None:
        self._of_facts: list[Observer] = []
        self._of_timings: list[TimingObserver] = []
        self._in_trouble: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._of_facts)

    def add(self, observer: Observer, timed: TimingObserver | None, so_far: Sequence[Fact]) -> None:
        self._of_facts.append(observer)
        self._tell(observer, so_far)
        if timed is not None:
            self._of_timings.append(timed)

    def committed(self, facts: Sequence[Fact]) -> None:
        for observer in self._of_facts:
            self._tell(observer, facts)

    def timed(self, timing: Timing) -> None:
        for observer in self._of_timings:
            self._tell(observer, timing)

    def _tell(self, observer: Callable[[Any], None], what: object) -> None:
        try:
            observer(what)
        except Exception:
            # The commit is made: whoever asked for it must hear so. Once, or a busy broker would fill the
            # log.
            if id(observer) not in self._in_trouble:
                self._in_trouble.add(id(observer))
                _log.exception(
                    "an observer of the broker failed; it is still told, and no further failure is logged"
                )
