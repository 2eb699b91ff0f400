"""Which message of a stream may go next.

A message is held up by an earlier live one of its stream that is leased (under another claim), or waiting for
any reason. Who was let by passes those that wait, never one that is being worked on. Order is seq, never a
timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import islice

from fairlead.model.stream import StreamRow


class Standing(Enum):
    READY = "ready"
    WAITING = "waiting"
    LEASED = "leased"


def find_front(
    rows_from: Callable[[int], Iterator[StreamRow]],
    standing: Callable[[StreamRow], Standing],
    *,
    let_by: Iterable[int],
    all_after: int,
    lowest_leased: int | None,
) -> StreamRow | None:
    """The first claimable message: at most a walk to the first that waits, then a look at each that is let
    by.

    `rows_from(seq)` gives the live messages with that seq or a greater one, in order. Its cost does not grow
    with the messages that queue up behind a blocker.
    """
    blocker = _first_of(rows_from(0), lowest_leased)
    if blocker is None or standing(blocker) is Standing.READY:
        return blocker
    passing = []
    if all_after >= blocker.seq:
        after = _first_of(rows_from(all_after + 1), lowest_leased)
        if after is not None and standing(after) is Standing.READY:
            passing.append(after)
    for seq in sorted(let_by):
        if lowest_leased is not None and seq >= lowest_leased:
            break
        row = next(rows_from(seq), None)
        if row is not None and row.seq == seq and standing(row) is Standing.READY:
            passing.append(row)
            break
    return min(passing, key=lambda row: row.seq, default=None)


def _first_of(rows: Iterator[StreamRow], lowest_leased: int | None) -> StreamRow | None:
    """The first live message, unless it or an earlier one is leased."""
    row = next(rows, None)
    if row is None or (lowest_leased is not None and row.seq >= lowest_leased):
        return None
    return row


def may_follow(
    row: StreamRow, standing: Standing, *, nothing_earlier_waits: bool, let_by: Iterable[int], all_after: int
) -> bool:
    """May this message go out in the same run as the one before it?"""
    if standing is not Standing.READY:
        return False
    return nothing_earlier_waits or row.seq in let_by or 0 < all_after < row.seq


def first_waiting(
    rows: Iterator[StreamRow], standing: Callable[[StreamRow], Standing], look_at: int
) -> int | None:
    """The seq of the first message that waits, among a bounded number: whoever comes after it may be let by."""
    return next((row.seq for row in islice(rows, look_at) if standing(row) is Standing.WAITING), None)
