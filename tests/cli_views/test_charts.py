from __future__ import annotations

import pytest

from fairlead.cli.charts import (
    Bar,
    shares,
    show_age,
    show_bytes,
    show_count,
    show_rate,
    show_until,
    sparkline,
)
from tests.cli_views.values import NOW_MS, drawn


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0"),
        (99_999, "99,999"),
        (100_000, "100k"),
        (1_234_567, "1.2M"),
        (99_960_000, "100M"),
        (999_600_000, "1.0G"),
        (5 * 10**15, "5000T"),
    ],
)
def test_counts_are_exact_while_they_are_short(count: int, shown: str) -> None:
    assert show_count(count) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (200 * 1024, "200 KiB"),
        (3 << 40, "3.0 TiB"),
        (9 << 50, "9216 TiB"),
    ],
)
def test_bytes_have_the_largest_unit_that_fits(count: int, shown: str) -> None:
    assert show_bytes(count) == shown


@pytest.mark.parametrize(
    ("rate", "shown"),
    [(None, "–"), (0.0, "·"), (0.04, "·"), (2.25, "2.2"), (-3.0, "-3.0"), (1500.4, "1,500")],
)
def test_a_rate_tells_nothing_known_from_nothing_moving(rate: float | None, shown: str) -> None:
    assert show_rate(rate) == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (-5, "0ms"),
        (999, "999ms"),
        (1000, "1s"),
        (59_999, "59s"),
        (90_000, "1m30s"),
        (600_000, "10m"),
        (3_660_000, "1h1m"),
        (93_600_000, "1d2h"),
        (10**10, "115d"),
    ],
)
def test_ages_have_two_units_where_the_second_says_something(ms: int, shown: str) -> None:
    assert show_age(ms) == shown


def test_a_due_time_is_ahead_now_or_never() -> None:
    assert [show_until(due, NOW_MS) for due in (NOW_MS + 5000, NOW_MS, NOW_MS - 1, None)] == [
        "in 5s",
        "due now",
        "due now",
        "held",
    ]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (0.0, "────────"),
        (1.0, "████████"),
        (0.5, "████────"),
        (9 / 64, "█▏──────"),
        (0.0001, "▏───────"),
        (2.0, "████████"),
        (-1.0, "────────"),
    ],
)
def test_a_bar_is_exact_to_an_eighth_of_a_cell_and_little_is_not_nothing(part: float, text: str) -> None:
    assert Bar(part, 8).text(8) == text


def test_a_bar_marks_what_was_due() -> None:
    assert [Bar(0.25, 8, mark=mark).text(8) for mark in (0.0, 0.5, 1.0)] == [
        "┃█──────",
        "██─┃────",
        "██─────┃",
    ]


def test_a_terminal_without_unicode_gets_a_bar_too() -> None:
    assert drawn(Bar(0.5, 8, mark=1.0), encoding="ascii") == ["####...|"]


def test_a_bar_keeps_to_the_room_there_is() -> None:
    assert drawn(Bar(1.0, 50), width=10) == ["█" * 10]


def test_little_columns_grow_with_their_values_and_end_with_the_latest() -> None:
    assert sparkline([0, 1, 4, 8], 6) == "  ▁▂▅█"
    assert sparkline([9, 9, 1, 8], 2) == "▂█"
    assert sparkline([0, 0], 3) == " ▁▁"
    assert sparkline([None, 5], 2) == "▁█"
    assert sparkline([], 2) == "  "


def test_shares_add_up_unless_there_is_nothing_to_share() -> None:
    assert shares([3, 1]) == [0.75, 0.25]
    assert shares([0, 0]) == [0, 0]
