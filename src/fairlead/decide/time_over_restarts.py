"""How a store's time goes on when its data is opened again, and what a power cut may have taken."""

from __future__ import annotations

from fairlead.model.clock_mark import ClockMark


def continue_time(mark: ClockMark | None, *, wall_ms: int, steady_ms: int, origin: bytes) -> int:
    """The store's time at open; it never goes back.

    While the machine runs on, steady time tells how long the store was closed. After a restart of the machine
    only the wall clock can: a step ahead meanwhile counts as time that passed, and of a step back nothing is
    believed.
    """
    if mark is None:
        return wall_ms
    same_boot = bool(origin) and mark.origin == origin
    elapsed_ms = steady_ms - mark.steady_ms if same_boot else wall_ms - mark.wall_ms
    return mark.store_ms + max(0, elapsed_ms)


def may_lack_commits(mark: ClockMark | None, *, origin: bytes, life: int) -> bool:
    """Whether commits that were not synced may be missing, because the machine restarted under an open store.

    Each life writes a mark with its first commit, so a store without one has lost no commit that anything
    depends on.
    """
    if mark is None or (origin and mark.origin == origin):
        return False
    return not (mark.closed and mark.life == life - 1)
