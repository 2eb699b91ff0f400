"""Log records are written as RocksDB writes them, and a damaged header is restored only from its checksum."""

from __future__ import annotations

import random

import pytest

from fairlead.store.rocks.log_format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    RecordWalk,
    checksums_fit,
    joined,
    next_beginning,
    packed_records,
    restored_header,
)


@pytest.mark.parametrize("left", range(19))
def test_records_that_begin_near_the_end_of_a_block_are_read_back(left: int) -> None:
    first = bytes(BLOCK_BYTES - HEADER_BYTES - left)
    records = [first, b"second", bytes(range(256)) * 300, b""]
    data = b"".join(packed_records(records))
    walk = RecordWalk(data)
    found = [(joined(data, spans), checksums_fit(data, spans)) for spans in walk]
    assert found == [(record, True) for record in records]
    assert walk.defect is None


@pytest.mark.parametrize("byte", [4, 5, 6])
@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_type_or_length_is_restored(byte: int, bit: int) -> None:
    data = bytearray(b"".join(packed_records([b"one" * 30, b"two" * 40, b"three" * 50])))
    at = HEADER_BYTES + 90
    whole = bytes(data[at : at + HEADER_BYTES])
    data[at + byte] ^= 1 << bit
    assert restored_header(bytes(data), at) == whole


@pytest.mark.parametrize("byte", [0, 3, 20])
def test_a_header_whose_checksum_or_data_is_damaged_is_not_restored(byte: int) -> None:
    data = bytearray(b"".join(packed_records([b"one" * 30, b"two" * 40, b"three" * 50])))
    at = HEADER_BYTES + 90
    data[at + byte] ^= 1
    assert restored_header(bytes(data), at) is None


def test_behind_a_defect_a_walk_goes_on_at_the_next_block_and_not_inside_a_payload() -> None:
    """A payload may hold the bytes of a log."""
    forged = b"".join(packed_records([b"forged"]))
    payload = random.Random(1).randbytes(100) + forged * 20
    data = b"".join(packed_records([payload, b"x" * 40_000, b"last"]))
    beginning = next_beginning(data, 0)
    assert beginning is not None
    assert [joined(data, spans) for spans in RecordWalk(data, beginning)] == [b"last"]
