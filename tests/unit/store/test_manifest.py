"""Edits of a manifest: which logs must be there."""

from __future__ import annotations

from fairlead.store.rocks.manifest import read_manifest
from tests.crash.damage.log_writer import frame, varint

LOG_NUMBER, LAST_SEQUENCE, MIN_LOG, FAMILY, ADD_FAMILY, DROP_FAMILY = 2, 4, 10, 200, 201, 202
LOG_CLOSED, LOGS_DELETED = (1 << 13) + 7, (1 << 13) + 8


def number(tag: int, value: int) -> bytes:
    return varint(tag) + varint(value)


def text(tag: int, value: bytes) -> bytes:
    return varint(tag) + varint(len(value)) + value


def closed(log: int, size: int) -> bytes:
    return text(LOG_CLOSED, varint(log) + varint(2) + varint(size) + varint(1))


def written(*edits: bytes) -> bytes:
    data = b""
    for edit in edits:
        data += frame(edit, len(data))
    return data


def test_one_edit_may_close_several_logs() -> None:
    manifest, walk = read_manifest(
        written(closed(4, 100) + closed(8, 200) + closed(300, 70_000) + number(LAST_SEQUENCE, 9))
    )
    assert walk.defect is None
    assert manifest.closed_logs == {4: 100, 8: 200, 300: 70_000}
    assert manifest.last_sequence == 9


def test_logs_that_are_deleted_need_not_be_there() -> None:
    manifest, _ = read_manifest(written(closed(4, 100), closed(8, 200), text(LOGS_DELETED, varint(8))))
    assert manifest.closed_logs == {8: 200}


def test_the_first_log_is_that_of_the_family_that_is_furthest_behind() -> None:
    family = text(ADD_FAMILY, b"messages") + number(FAMILY, 1)
    edits = [number(LOG_NUMBER, 12), family + number(LOG_NUMBER, 4)]
    assert read_manifest(written(*edits))[0].first_log == 4
    assert read_manifest(written(*edits, number(FAMILY, 1) + number(LOG_NUMBER, 8)))[0].first_log == 8
    assert read_manifest(written(*edits, number(FAMILY, 1) + varint(DROP_FAMILY)))[0].first_log == 12
    assert read_manifest(written(*edits, number(MIN_LOG, 10)))[0].first_log == 10


def test_an_edit_that_cannot_be_read_ends_the_walk() -> None:
    good = number(LAST_SEQUENCE, 5)
    for wrong in (number(77, 1), varint(LOG_NUMBER), b"\x80"):
        manifest, walk = read_manifest(written(good, wrong, number(LAST_SEQUENCE, 6)))
        assert manifest.last_sequence == 5
        assert walk.defect is not None
        assert not walk.defect.torn
        assert walk.whole == len(frame(good))


def test_a_wrong_checksum_ends_the_walk() -> None:
    data = bytearray(written(number(LAST_SEQUENCE, 5), number(LAST_SEQUENCE, 6)))
    data[-1] ^= 1
    manifest, walk = read_manifest(bytes(data))
    assert manifest.last_sequence == 5
    assert walk.defect is not None
