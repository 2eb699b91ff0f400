"""A bound on the bytes of messages that all running looks (`peek`, `drain`, `find`) hold together.

A look asks for room before it reads. It gets at most a quarter of what is free when it begins, so that many
simultaneous looks have shorter pages instead of more memory. A look whose first message does not fit waits
until others have returned their room.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fairlead.errors import Overloaded

#: A look that gets no room within this time is refused.
_PATIENCE_S = 10.0
_RETRY_AFTER_MS = 200
#: A look gets at most one part in this many of what is free.
_SHARE = 4


class LookBudget:
    def __init__(self, limit: int, check: Callable[[], None]) -> None:
        """`check` raises when waiting is no longer allowed."""
        self.limit = limit
        self.held = 0
        #: The maximum that was ever held.
        self.peak = 0
        self._check = check
        self._changed = threading.Condition()
        self._keeping = threading.local()

    @contextmanager
    def look(self) -> Iterator[Look]:
        """The room of one look, returned at its end; within `keep`, at the end of that."""
        kept: list[Look] | None = getattr(self._keeping, "looks", None)
        look = Look(self)
        if kept is not None:
            kept.append(look)
        try:
            yield look
        finally:
            if kept is None:
                self._give_back(look.held)

    @contextmanager
    def keep(self) -> Iterator[None]:
        """For a door that has yet to write the answer: this thread's looks keep their room until the end of
        the block.
        """
        looks = self._keeping.looks = list[Look]()
        try:
            yield
        finally:
            del self._keeping.looks
            self._give_back(sum(look.held for look in looks))

    def wake(self) -> None:
        """Let waiting looks check again whether they may continue."""
        with self._changed:
            self._changed.notify_all()

    def take_first(self, size: int) -> int:
        """Take room for one message, and return what its look may hold. A message larger than the whole bound
        gets in when nothing else is held.
        """
        deadline = time.monotonic() + _PATIENCE_S
        with self._changed:
            while self.held and self.held + size > self.limit:
                self._check()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Overloaded("bytes of messages that are looked at", self.limit, _RETRY_AFTER_MS)
                self._changed.wait(left)
            share = (self.limit - self.held) // _SHARE
            self._hold(size)
        return share

    def take_more(self, size: int) -> bool:
        with self._changed:
            fits = self.held + size <= self.limit
            if fits:
                self._hold(size)
        return fits

    def _hold(self, size: int) -> None:
        self.held += size
        self.peak = max(self.peak, self.held)

    def _give_back(self, size: int) -> None:
        with self._changed:
            self.held -= size
            self._changed.notify_all()


class Look:
    """The room that one look holds. Used by one thread."""

    def __init__(self, budget: LookBudget) -> None:
        self.held = 0
        self._budget = budget
        self._share: int | None = None

    def admit(self, sizes: Sequence[int]) -> int:
        """How many more messages, in this order, may be read. The first of a look always may: it waits for
        its room.
        """
        for count, size in enumerate(sizes):
            if self._share is None:
                self._share = self._budget.take_first(size)
            elif self.held + size > self._share or not self._budget.take_more(size):
                return count
            self.held += size
        return len(sizes)
