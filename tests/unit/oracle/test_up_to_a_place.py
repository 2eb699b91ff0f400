"""Taking what stands up to a place: nothing behind it goes out, nothing before it stays, and all the rest
goes on as it was.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.drr import Memory, QueueScheduler
from tests.oracle.rows import pack_lane, pack_row, row_place
from tests.oracle.throttle import Buckets

LANES = [pack_lane("a"), pack_lane("b"), pack_lane("a", ("t",)), pack_lane("c", ("t", "u"))]


def row(place: int, stream: bytes = b"") -> bytes:
    return pack_row(place, (place * 7919).to_bytes(16, "big"), 1 + place % 3, 0, 10) + stream


def scheduler_of(
    lanes: list[int], read_ahead: int, quantum: int = 1
) -> tuple[QueueScheduler, dict[bytes, list[bytes]]]:
    """One row for each entry, at the places 1, 2, 3, ..., in the lane that it names."""
    stored: dict[bytes, list[bytes]] = {}
    for place, lane in enumerate(lanes, 1):
        stored.setdefault(LANES[lane], []).append(row(place))

    def read(lane: bytes, place: int, limit: int) -> list[bytes]:
        return [found for found in stored[lane] if row_place(found) > place][:limit]

    scheduler = QueueScheduler(read, Buckets(), Memory(row_limit=read_ahead), quantum=quantum)
    for lane, rows in stored.items():
        scheduler.load(lane, rows[0], rows[-1])
    return scheduler, stored


def places(taken: list[tuple[bytes, bytes]]) -> list[int]:
    return [row_place(found) for _, found in taken]


many = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@given(
    lanes=many,
    up_to=st.integers(0, 41),
    limit=st.integers(1, 50),
    read_ahead=st.sampled_from([0, 2, 1000]),
    quantum=st.integers(1, 4),
)
def test_all_up_to_the_place_goes_out_and_nothing_behind_it(
    lanes: list[int], up_to: int, limit: int, read_ahead: int, quantum: int
) -> None:
    scheduler, _ = scheduler_of(lanes, read_ahead, quantum)
    first = places(scheduler.take(limit, 0, up_to))
    assert len(first) == min(limit, up_to, len(lanes))
    assert all(place <= up_to for place in first)
    second = places(scheduler.take(100, 0, up_to))
    assert sorted(first + second) == list(range(1, min(up_to, len(lanes)) + 1))
    assert scheduler.take(100, 0, up_to) == []
    rest = places(scheduler.take(100, 0))
    assert sorted(first + second + rest) == list(range(1, len(lanes) + 1))


@given(lanes=many, limit=st.integers(1, 50), quantum=st.integers(1, 4))
def test_up_to_a_place_behind_all_the_turns_are_as_ever(lanes: list[int], limit: int, quantum: int) -> None:
    bounded, unbounded = scheduler_of(lanes, 1000, quantum)[0], scheduler_of(lanes, 1000, quantum)[0]
    assert bounded.take(limit, 0, 1 << 60) == unbounded.take(limit, 0)
    assert bounded.take(100, 0, 1 << 60) == unbounded.take(100, 0)


def test_lanes_without_tokens_are_left_waiting_for_them() -> None:
    buckets = Buckets()
    buckets.set("t", 1, None, 0)
    stored = {LANES[2]: [row(1), row(2), row(3)]}
    scheduler = QueueScheduler(
        lambda lane, place, limit: [r for r in stored[lane] if row_place(r) > place][:limit],
        buckets,
        Memory(),
    )
    scheduler.load(LANES[2], row(1), row(3))
    assert places(scheduler.take(5, 0, 2)) == [1]
    assert places(scheduler.take(5, 1000, 2)) == [2]
    assert places(scheduler.take(5, 2000, 2)) == []
    assert places(scheduler.take(5, 2000)) == [3]
