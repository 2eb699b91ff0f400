"""The packed forms must round-trip, tell different things apart, and sort as the scheduler and the store
expect.
"""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.lane import (
    DEAD_LETTER_LANE,
    DEFAULT_KEY,
    PLACE_INDEX_BITS,
    ROW_BYTES,
    Flag,
    first_place,
    key_prefix,
    lane_key,
    lane_throttle_keys,
    move_row,
    pack_lane,
    pack_row,
    row_flags,
    row_id,
    row_place,
    row_size,
    row_weight,
)
from fairlead.model.limits import MAX_BATCH_MESSAGES

Lane = tuple[str, tuple[str, ...]]
Row = tuple[int, bytes, int, int, int]

keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["", "a", "ab", "a\0", "\0\0", "\0\x01a"]
)
throttles = st.lists(keys, max_size=4).map(tuple)
lanes = st.tuples(keys, throttles)
rows = st.tuples(
    st.integers(0, 2**64 - 1),
    st.binary(min_size=16, max_size=16),
    st.integers(1, 1000),
    st.integers(0, 7),
    st.integers(0, 2**32 - 1),
)


@given(lanes)
def test_a_lane_tells_its_key_and_throttle_keys(lane: Lane) -> None:
    packed = pack_lane(*lane)
    assert (lane_key(packed), lane_throttle_keys(packed)) == lane


@given(lanes, lanes)
def test_different_lanes_never_share_a_packed_form_nor_is_one_the_beginning_of_another(
    one: Lane, other: Lane
) -> None:
    if one != other:
        assert not pack_lane(*one).startswith(pack_lane(*other))


@given(st.lists(lanes, max_size=20))
def test_all_lanes_of_a_key_sort_together_and_share_its_prefix(several: list[Lane]) -> None:
    packed = sorted(pack_lane(*lane) for lane in several)
    runs = [key for key, _ in groupby(lane_key(lane) for lane in packed)]
    assert len(runs) == len(set(runs))
    for key in runs:
        assert {lane_key(lane) for lane in packed if lane.startswith(key_prefix(key))} == {key}


def test_dead_letters_sit_in_the_default_lane() -> None:
    assert pack_lane(DEFAULT_KEY) == DEAD_LETTER_LANE


@given(rows)
def test_a_row_tells_all_it_was_packed_from(row: Row) -> None:
    packed = pack_row(*row)
    assert len(packed) == ROW_BYTES
    assert (row_place(packed), row_id(packed), row_weight(packed), row_flags(packed), row_size(packed)) == row


@given(rows, rows)
def test_rows_sort_by_place_and_different_rows_differ(one: Row, other: Row) -> None:
    if one[0] != other[0]:
        assert (pack_row(*one) < pack_row(*other)) == (one[0] < other[0])
    assert (pack_row(*one) == pack_row(*other)) == (one == other)


@given(rows, st.integers(0, 2**64 - 1), st.integers(0, 7))
def test_a_moved_row_changes_only_its_place_and_flags(row: Row, place: int, flags: int) -> None:
    moved = move_row(pack_row(*row), place, flags)
    assert moved == pack_row(place, row[1], row[2], flags, row[4])


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_a_later_commit_hands_out_later_places_even_after_the_largest_batch(one: int, more: int) -> None:
    assert first_place(one) + MAX_BATCH_MESSAGES < first_place(one + more) < 2**63
    assert 1 << PLACE_INDEX_BITS > MAX_BATCH_MESSAGES


def test_the_flags_are_bits_of_their_own() -> None:
    assert sorted([Flag.STATE, Flag.TTL, Flag.LIVE_DEDUP]) == [1, 2, 4]
