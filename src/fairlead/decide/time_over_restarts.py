"""How a store's time continues when its data is opened again, and what a power cut may have lost."""

from __future__ import annotations

from fairlead.model.clock_mark import ClockMark


def continue_time(mark: ClockMark | None, *, wall_ms: int, steady_ms: int, origin: bytes) -> int:
    """The store's time at open. It never goes back.

    While the machine keeps running, steady time tells how long the store was closed. After a restart of the
    machine only the wall clock can tell: a step forward counts as time that passed, and a step back is
    ignored.
    """
    if mark is None:
        return wall_ms
    same_boot = bool(origin) and mark.origin == origin
    elapsed_ms = steady_ms - mark.steady_ms if same_boot else wall_ms - mark.wall_ms
    return mark.store_ms + max(0, elapsed_ms)


def may_lack_commits(mark: ClockMark | None, *, origin: bytes, life: int) -> bool:
    """Whether unsynced commits may be missing because the machine restarted while the store was open.

    Each life writes a mark with its first commit, so a store without a mark has lost no commit that anything
    depends on.
    """
    if mark is None or (origin and mark.origin == origin):
        return False
    return not (mark.closed and mark.life == life - 1)
