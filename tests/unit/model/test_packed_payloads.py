"""Payloads one behind the other are the list of them."""

from __future__ import annotations

import pytest

from fairlead.model.packed_payloads import PackedPayloads

PAYLOADS = [b"one", b"", b"three", b"4"]


def test_packed_payloads_are_read_as_a_list_of_them() -> None:
    packed = PackedPayloads(b"".join(PAYLOADS), [3, 0, 5, 1])
    assert len(packed) == 4
    assert [*packed] == PAYLOADS
    assert [packed[at] for at in range(-4, 4)] == PAYLOADS * 2
    assert packed[1:3] == PAYLOADS[1:3]
    with pytest.raises(IndexError):
        packed[4]


def test_no_payloads_are_none() -> None:
    assert [*PackedPayloads(b"", [])] == []


@pytest.mark.parametrize("sizes", [[3, 0, 5], [3, 0, 5, 2]])
def test_bytes_of_another_size_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="got 9"):
        PackedPayloads(b"".join(PAYLOADS), sizes)
