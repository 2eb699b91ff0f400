"""Records of logs and manifests: what is whole, what is torn, what is wrong."""

from __future__ import annotations

import os

import pytest

from fairlead.store.rocks.log_format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    RecordWalk,
    checksums_fit,
    find_true_end,
    joined,
    record_beginnings,
)
from tests.crash.damage.log_writer import frame


def write(*records: bytes) -> bytes:
    written = b""
    for record in records:
        written += frame(record, len(written))
    return written


def walked(data: bytes) -> tuple[list[bytes], RecordWalk]:
    walk = RecordWalk(data)
    return [joined(data, spans) for spans in walk], walk


@pytest.mark.parametrize("left", range(19))
def test_a_record_may_begin_so_many_bytes_before_the_end_of_a_block(left: int) -> None:
    records = [
        os.urandom(BLOCK_BYTES - HEADER_BYTES - left),
        b"next",
        os.urandom(2 * BLOCK_BYTES),
        b"",
        b"last",
    ]
    data = write(*records)
    found, walk = walked(data)
    assert found == records
    assert (walk.defect, walk.whole) == (None, len(data))
    assert all(checksums_fit(data, spans) for spans in RecordWalk(data))


@pytest.mark.parametrize("left", range(19))
def test_every_cut_near_the_end_of_a_block_is_torn_and_keeps_the_whole_records(left: int) -> None:
    first = frame(os.urandom(BLOCK_BYTES - HEADER_BYTES - left))
    data = first + frame(b"x" * 100, len(first))
    for cut in range(len(first) + 1, len(data)):
        found, walk = walked(data[:cut])
        assert (len(found), walk.whole) == (1, len(first))
        # A whole padding and nothing behind it is how a full block ends.
        padded = left < HEADER_BYTES and cut == BLOCK_BYTES
        assert padded if walk.defect is None else walk.defect.torn


@pytest.mark.parametrize("kind", [0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 128, 255])
def test_a_record_of_another_type_ends_the_walk_and_is_not_torn(kind: int) -> None:
    data = bytearray(write(b"one", b"two", b"three"))
    at = len(frame(b"one"))
    data[at + 6] = kind
    found, walk = walked(bytes(data))
    assert (found, walk.whole) == ([b"one"], at)
    assert walk.defect is not None
    assert (walk.defect.at, walk.defect.torn) == (at, False)


def test_fragments_out_of_order_are_wrong() -> None:
    data = write(os.urandom(3 * BLOCK_BYTES))
    first, second = data[:BLOCK_BYTES], data[BLOCK_BYTES : 2 * BLOCK_BYTES]
    for wrong in (second + first, first + first, first + frame(b"whole")):
        found, walk = walked(wrong)
        assert found == []
        assert walk.defect is not None
        assert not walk.defect.torn


def test_a_wrong_length_is_told_from_a_torn_record_by_the_checksum() -> None:
    data = write(b"x" * 50, b"y" * 60)
    at = len(frame(b"x" * 50))
    longer = data[: at + 4] + (600).to_bytes(2, "little") + data[at + 6 :]
    assert find_true_end(longer, at) == len(data)
    assert find_true_end(longer[:-1], at) is None
    assert find_true_end(longer[: at + 3], at) is None


def test_records_behind_a_defect_are_found_at_any_position() -> None:
    data = b"garbage" + frame(b"record") + b"more" + frame(os.urandom(BLOCK_BYTES))[:BLOCK_BYTES]
    start = len(b"garbage")
    assert next(record_beginnings(data, 0)) == start
    assert start not in list(record_beginnings(data, start + 1))
