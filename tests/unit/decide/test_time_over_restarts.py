from __future__ import annotations

import pytest

from fairlead.decide.time_over_restarts import continue_time, may_lack_commits
from fairlead.model.clock_mark import ClockMark

BOOT, OTHER = b"b" * 16, b"o" * 16
MARK = ClockMark(store_ms=1_000, wall_ms=5_000, steady_ms=300, origin=BOOT, life=4)
CLOSED = ClockMark(1_000, 5_000, 300, BOOT, life=4, closed=True)


@pytest.mark.parametrize(
    ("wall_ms", "steady_ms", "origin", "expected_ms"),
    [
        pytest.param(5_070, 370, BOOT, 1_070, id="the machine ran on"),
        pytest.param(9_999_999, 370, BOOT, 1_070, id="it ran on, and its clock was set ahead"),
        pytest.param(0, 370, BOOT, 1_070, id="it ran on, and its clock was set back"),
        pytest.param(5_070, 10, OTHER, 1_070, id="it restarted"),
        pytest.param(5_070, 10, b"", 1_070, id="nothing tells whether it restarted"),
        pytest.param(4_000, 10, OTHER, 1_000, id="it restarted with its clock set back"),
        pytest.param(5_070, 10, BOOT, 1_000, id="steady time went back, as in a restored snapshot"),
    ],
)
def test_time_goes_on_from_the_mark_and_never_back(
    wall_ms: int, steady_ms: int, origin: bytes, expected_ms: int
) -> None:
    assert continue_time(MARK, wall_ms=wall_ms, steady_ms=steady_ms, origin=origin) == expected_ms


def test_time_begins_with_the_wall_clock() -> None:
    assert continue_time(None, wall_ms=77, steady_ms=3, origin=BOOT) == 77


@pytest.mark.parametrize(
    ("mark", "origin", "life", "expected"),
    [
        pytest.param(None, BOOT, 1, False, id="a new store"),
        pytest.param(MARK, BOOT, 5, False, id="a killed process leaves its commits to the system"),
        pytest.param(MARK, OTHER, 5, True, id="the machine restarted under an open store"),
        pytest.param(MARK, b"", 5, True, id="nothing tells whether it did"),
        pytest.param(CLOSED, OTHER, 5, False, id="it restarted after a clean end"),
        pytest.param(CLOSED, OTHER, 6, True, id="all commits of a later life are gone"),
    ],
)
def test_commits_may_be_missing_unless_the_last_life_is_known_to_be_whole(
    mark: ClockMark | None, origin: bytes, life: int, expected: bool
) -> None:
    assert may_lack_commits(mark, origin=origin, life=life) is expected
