"""Packed lanes must round-trip, tell different lanes apart, and sort as the store expects."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.lane import lane_end, lane_key, lane_throttle_keys, pack_lane

Lane = tuple[str, tuple[str, ...]]

keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["", "a", "ab", "a\0", "\0\0", "\0\x01a"]
)
throttles = st.lists(keys, max_size=4).map(tuple)
lanes = st.tuples(keys, throttles)


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


@given(lanes, st.binary(max_size=8))
def test_a_lane_ends_where_what_stands_behind_it_begins(lane: Lane, behind: bytes) -> None:
    packed = pack_lane(*lane)
    assert lane_end(b"front" + packed + behind, 5) == 5 + len(packed)


@given(st.lists(lanes, max_size=20))
def test_all_lanes_of_a_key_sort_together(several: list[Lane]) -> None:
    packed = sorted(pack_lane(*lane) for lane in several)
    runs = [key for key, _ in groupby(lane_key(lane) for lane in packed)]
    assert len(runs) == len(set(runs))
