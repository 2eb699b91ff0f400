"""The file of marks: which mark counts after torn writes, restarts and damage."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from fairlead.errors import StoreCorrupt, StoreLocked
from fairlead.store.boot_id import boot_id
from fairlead.store.rocks.marks import MARKS_FILE, Mark, Marks, read_mark, write_mark

SLOT_BYTES = 512
HERE, EARLIER = boot_id() or bytes(16), b"an earlier start"


def write_slots(directory: Path, *marks: Mark) -> bytearray:
    content = bytearray()
    for mark in marks:
        raw = struct.pack("<QQQQ16s", mark.log, mark.sequence, mark.manifest, mark.manifest_bytes, mark.boot)
        content += (raw + struct.pack("<I", zlib.crc32(raw))).ljust(SLOT_BYTES, b"\0")
    (directory / MARKS_FILE).write_bytes(content)
    return content


def test_the_later_of_two_marks_counts(tmp_path: Path) -> None:
    older, later = Mark(4, 100, 5, 70, HERE), Mark(8, 200, 5, 90, HERE)
    for order in ((older, later), (later, older)):
        write_slots(tmp_path, *order, Mark())
        assert read_mark(tmp_path) == later


@pytest.mark.parametrize("slot", [0, 1])
def test_a_torn_mark_leaves_the_other(tmp_path: Path, slot: int) -> None:
    marks = [Mark(4, 100, 5, 70, HERE), Mark(8, 200, 5, 90, HERE)]
    content = write_slots(tmp_path, *marks, Mark())
    content[slot * SLOT_BYTES + 8] ^= 1
    (tmp_path / MARKS_FILE).write_bytes(content)
    assert read_mark(tmp_path) == marks[1 - slot]


def test_without_a_mark_that_can_be_read_the_file_is_corrupt(tmp_path: Path) -> None:
    content = write_slots(tmp_path, *[Mark(4, 100, 5, 70, HERE)] * 3)
    content[0] ^= 1
    content[SLOT_BYTES] ^= 1
    for wrong in (content, content[:30], b"", bytes(3 * SLOT_BYTES)):
        (tmp_path / MARKS_FILE).write_bytes(wrong)
        with pytest.raises(StoreCorrupt, match=MARKS_FILE):
            read_mark(tmp_path)


def test_a_file_that_is_too_short_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    first = Mark(4, 100, 5, 70, HERE)
    content = write_slots(tmp_path, first, Mark(8, 200, 5, 90, HERE), Mark(9, 300, 5, 90, HERE))
    (tmp_path / MARKS_FILE).write_bytes(content[: SLOT_BYTES + 20])
    assert read_mark(tmp_path) == first


@pytest.mark.skipif(boot_id() is None, reason="this system has no boot id")
def test_a_mark_of_what_was_only_written_counts_until_the_machine_restarts(tmp_path: Path) -> None:
    synced, written = Mark(4, 100, 5, 70, HERE), Mark(8, 200, 5, 90, HERE)
    write_slots(tmp_path, synced, Mark(), written)
    assert read_mark(tmp_path) == written
    for boot in (EARLIER, bytes(16)):
        write_slots(tmp_path, synced, Mark(), Mark(8, 200, 5, 90, boot))
        assert read_mark(tmp_path) == synced


def test_a_mark_of_another_start_or_of_none_says_that_the_machine_may_have_restarted() -> None:
    assert Mark(boot=EARLIER).restarted
    assert Mark(boot=bytes(16)).restarted
    assert Mark(boot=HERE).restarted == (boot_id() is None)


def test_only_one_process_has_the_marks(tmp_path: Path) -> None:
    write_mark(tmp_path, Mark(4, 100, 5, 70, HERE))
    first = Marks(tmp_path, create=False)
    with pytest.raises(StoreLocked):
        Marks(tmp_path, create=False)
    first.forget()
    Marks(tmp_path, create=False).forget()
    assert read_mark(tmp_path) == Mark(4, 100, 5, 70, HERE)


def test_missing_marks_are_made_only_for_a_new_directory(tmp_path: Path) -> None:
    with pytest.raises(StoreCorrupt, match=MARKS_FILE):
        Marks(tmp_path, create=False)
    marks = Marks(tmp_path, create=True)
    marks.write_first()
    assert read_mark(tmp_path) == Mark()
    marks.forget()
