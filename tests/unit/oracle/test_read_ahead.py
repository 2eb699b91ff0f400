"""Rows reach a scheduler twice over: told to it after their commit, and read ahead from what is stored. Each
counts once.
"""

from __future__ import annotations

from tests.oracle.drr import Memory, QueueScheduler
from tests.oracle.rows import pack_lane, pack_row, row_place
from tests.oracle.throttle import Buckets

PLAIN, THROTTLED = pack_lane("k"), pack_lane("k", ("t",))


def row(place: int) -> bytes:
    return pack_row(place, place.to_bytes(16, "big"), 1, 0, 10)


class Stored:
    """The rows of each lane as a store has them."""

    def __init__(self) -> None:
        self.rows: dict[bytes, list[bytes]] = {PLAIN: [], THROTTLED: []}

    def read(self, lane: bytes, place: int, limit: int) -> list[bytes]:
        return [r for r in sorted(self.rows[lane]) if row_place(r) > place][:limit]

    def scheduler(self) -> QueueScheduler:
        return QueueScheduler(self.read, Buckets(), Memory())


def take_all(scheduler: QueueScheduler) -> list[int]:
    return sorted(row_place(taken) for _, taken in scheduler.take(100, 0))


def used_up(stored: Stored) -> QueueScheduler:
    """The plain lane has one row on disk and none in its window."""
    stored.rows[PLAIN] = [row(1), row(2)]
    scheduler = stored.scheduler()
    scheduler.load(PLAIN, row(1), row(2))
    assert scheduler.take(1, 0) == [(PLAIN, row(1))]
    stored.rows[PLAIN].remove(row(1))
    return scheduler


def test_a_row_of_a_commit_that_another_row_made_the_lane_read_is_handed_out_once() -> None:
    stored = Stored()
    scheduler = used_up(stored)
    # One commit: a second lane opens, which makes the key read the head of its first lane, and that lane
    # grows.
    stored.rows[THROTTLED].append(row(3))
    stored.rows[PLAIN].append(row(4))
    scheduler.add(THROTTLED, row(3))
    scheduler.add(PLAIN, row(4))
    assert take_all(scheduler) == [2, 3, 4]


def test_a_released_row_that_another_row_made_the_lane_read_is_handed_out_once() -> None:
    stored = Stored()
    scheduler = used_up(stored)
    scheduler.give_back(PLAIN, row(1))
    stored.rows[PLAIN].append(row(1))
    stored.rows[THROTTLED].append(row(3))
    scheduler.give_back(THROTTLED, row(3))
    scheduler.give_back(PLAIN, row(1))
    assert take_all(scheduler) == [1, 2, 3]


def test_a_row_released_into_a_lane_that_was_looked_at_and_found_empty_is_handed_out() -> None:
    stored = Stored()
    scheduler = used_up(stored)
    stored.rows[PLAIN].clear()
    assert scheduler.head(PLAIN) is None
    stored.rows[PLAIN].append(row(1))
    scheduler.give_back(PLAIN, row(1))
    assert take_all(scheduler) == [1]
