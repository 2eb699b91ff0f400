"""The store's own time, by which everything is due: steady, and continued over restarts.

It begins as the wall clock of the first open. A step of the wall clock does not move it, so from then on the
two differ by the step: times are stored in the store's time and shown in wall-clock time
(`model/shown_times.py`). A mark in the store ties the two together, so that the next process continues where
this one ended (`decide/time_over_restarts.py`).
"""

from __future__ import annotations

from fairlead.clock import Clock
from fairlead.decide.time_over_restarts import continue_time, may_lack_commits
from fairlead.model.clock_mark import ClockMark
from fairlead.model.shown_times import shown_ms
from fairlead.store.boot_id import boot_id
from fairlead.store.changes import Changes
from fairlead.store.kv.port import KeyValueStore, Table
from fairlead.store.rows import read_records

#: Smaller differences come from clock synchronisation; larger ones are steps.
MIN_STEP_MS = 1000
#: How often a commit carries a mark.
MARK_EVERY_MS = 10_000


#: The key of the mark in its table.
MARK_KEY = b"clock"


def find_mark(store: KeyValueStore) -> ClockMark | None:
    found: ClockMark | None = read_records(store, Changes(), Table.META, [MARK_KEY])[0]
    return found


class StoreTime:
    """Used under the engine lock, except `now_ms` and `ahead_ms`."""

    def __init__(self, clock: Clock, mark: ClockMark | None, life: int, *, not_before_ms: int = 0) -> None:
        """`not_before_ms`: a time that stored rows prove to have passed; a mark may be some seconds older."""
        self._clock = clock
        self._life = life
        self._origin = clock.origin or boot_id() or b""
        steady_ms, wall_ms = clock.monotonic_ms(), clock.now_ms()
        continued_ms = continue_time(mark, wall_ms=wall_ms, steady_ms=steady_ms, origin=self._origin)
        began_ms = max(continued_ms, not_before_ms)
        #: Unsynced commits may be missing, because the machine restarted while the store was open.
        self.may_lack_commits = may_lack_commits(mark, origin=self._origin, life=self._life)
        self._from_steady_ms = began_ms - steady_ms
        self._set_ahead(wall_ms - began_ms)
        #: When the next commit must carry a mark, in the store's time.
        self.next_mark_ms = began_ms

    def now_ms(self) -> int:
        return self._from_steady_ms + self._clock.monotonic_ms()

    def by_wall(self, at_ms: int) -> int:
        """A time of the store in wall-clock time."""
        return shown_ms(at_ms, self.ahead_ms)

    def from_steady(self, steady_ms: int) -> int:
        return self._from_steady_ms + steady_ms

    def notice_step(self) -> int:
        """By how much the wall clock was stepped since the last call; 0 if it was not."""
        ahead_ms = self._clock.now_ms() - self.now_ms()
        step_ms = ahead_ms - self._wall_ahead_ms
        if abs(step_ms) < MIN_STEP_MS:
            return 0
        self._set_ahead(ahead_ms)
        self.next_mark_ms = 0
        return step_ms

    def _set_ahead(self, wall_ahead_ms: int) -> None:
        self._wall_ahead_ms = wall_ahead_ms
        #: How far the wall clock is ahead of the store's time; 0 until a step was noticed.
        self.ahead_ms = wall_ahead_ms if abs(wall_ahead_ms) >= MIN_STEP_MS else 0

    def mark(self, *, closed: bool = False) -> ClockMark:
        steady_ms = self._clock.monotonic_ms()
        return ClockMark(
            self.from_steady(steady_ms), self._clock.now_ms(), steady_ms, self._origin, self._life, closed
        )

    def marked(self) -> None:
        """The commit with the mark was made."""
        self.next_mark_ms = self.now_ms() + MARK_EVERY_MS
