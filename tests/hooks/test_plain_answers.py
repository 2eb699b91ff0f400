"""Results that are read by column are the same as results that are read row by row."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairlead.hooks.results import find_plain_enqueues, is_ok, read_enqueue

keys = st.none() | st.text(max_size=3) | st.just("k" * 300) | st.integers(0, 1) | st.booleans()
weights = st.none() | st.integers(-1, 1002) | st.booleans() | st.floats(0, 3) | st.just("7")
rest = st.just([None, None]) | st.just([None, True]) | st.just(["s", None]) | st.just([None, True, "t"])
rows = st.builds(lambda key, weight, more: [0, key, weight, *more], keys, weights, rest)
simple = st.builds(
    lambda key, weight: [0, key, weight, None, None], st.none() | st.just("k"), st.integers(1, 9)
)


@given(st.lists(rows, max_size=3) | st.lists(simple, max_size=3))
def test_rows_read_by_column_are_the_decisions_of_the_rows(given_rows: list[list[Any]]) -> None:
    plain = find_plain_enqueues(given_rows)
    if plain is not None:
        assert plain == [read_enqueue(row) for row in given_rows]


@given(st.lists(simple, min_size=1, max_size=3))
def test_plain_rows_are_read_by_column(given_rows: list[list[Any]]) -> None:
    assert find_plain_enqueues(given_rows) is not None


@given(st.lists(st.lists(st.none() | st.integers(0, 4), max_size=6), min_size=1, max_size=3))
def test_invalid_rows_of_a_hostile_host_are_never_accepted(given_rows: list[list[Any]]) -> None:
    if find_plain_enqueues(given_rows) is not None:
        assert all(is_ok(row) for row in given_rows)
