"""Tasks in other processes and later versions ask for slices: these numbers must not change."""

from __future__ import annotations

from fairlead.decide.slices import slice_of_name, slices_of

SLICES = {
    3: (7919).to_bytes(16, "big"),
    0: (2 * 7919).to_bytes(16, "big"),
    7: (4 * 7919).to_bytes(16, "big"),
    6: b"orders",
    5: "ü".encode(),
}


def test_a_name_has_the_same_slice_for_ever() -> None:
    assert [slice_of_name(name, 8) for name in SLICES.values()] == list(SLICES)
    assert slice_of_name(b"account 7", 8) == 0


def test_many_names_have_the_slices_that_they_have_one_by_one() -> None:
    assert slices_of(SLICES.values(), 8) == list(SLICES)
