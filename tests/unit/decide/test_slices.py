"""Tasks in other processes ask for slices: each must get the same members every time, and all of them one each."""

from __future__ import annotations

import pytest

from fairlead.decide.slices import places_of, slice_of

STREAMS = {6: "orders", 0: "account 7", 5: "ü"}


def test_a_stream_has_the_same_slice_wherever_its_messages_stand() -> None:
    for slice, stream in STREAMS.items():
        assert {slice_of(place, 90, stream, 8) for place in range(90)} == {slice}


@pytest.mark.parametrize(("count", "slices"), [(1, 1), (1, 7), (7, 7), (90, 8), (90, 256), (1000, 3)])
def test_messages_without_a_stream_are_in_parts_of_one_size_in_the_order_of_the_claim(
    count: int, slices: int
) -> None:
    found = [slice_of(place, count, "", slices) for place in range(count)]
    assert found == sorted(found)
    sizes = [found.count(slice) for slice in range(slices)]
    assert max(sizes) - min(sizes) <= 1
    for slice in range(slices):
        start, end = places_of(slice, count, slices)
        assert found[start:end] == [slice] * sizes[slice]
        assert end - start == sizes[slice]
