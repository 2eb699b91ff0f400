"""What a kill may leave behind is no damage: the directory opens with all that was confirmed. And what no
kill leaves is refused.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead
from fairlead.cli.restoring import restore
from fairlead.errors import StoreCorrupt, StoreLocked
from fairlead.store.kv.port import Table
from fairlead.store.rocks import marks
from fairlead.testing import ManualClock, Storage
from fairlead.testing.storage import read_only

from .boots import ANOTHER_BOOT, NO_BOOT, set_boot
from .cases import BLOCK_BYTES, record_spans
from .judge import Contents, contents_of, fingerprint
from .log_writer import batch, frame, put
from .victim import ROOT, make_directory


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
    """A directory with four live logs in which every commit was synced, and all that is in it."""
    base = make_directory(tmp_path_factory.mktemp("killed"))
    copy = base.with_name("read")
    shutil.copytree(base, copy)
    return base, read_all(copy)


@pytest.fixture
def directory(killed: tuple[Path, Contents], tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed[0], tmp_path / "data"))


@pytest.fixture
def contents(killed: tuple[Path, Contents]) -> Contents:
    return killed[1]


def read_all(directory: Path) -> Contents:
    with fairlead.open(directory, durability="os", clock=ManualClock()) as broker:
        return contents_of(broker)


def newest_log(directory: Path) -> Path:
    return max(directory.glob("*.log"))


def append(file: Path, more: bytes) -> None:
    file.write_bytes(file.read_bytes() + more)


def add_torn_record(directory: Path, body: bytes, keep: float) -> None:
    """Continue the newest log with a record that only began to be written."""
    log = newest_log(directory)
    size = log.stat().st_size
    framed = frame(batch(marks.read_mark(directory).sequence + 1, body), size)
    append(log, framed[: max(1, int(len(framed) * keep))])


def assert_exact(directory: Path, contents: Contents) -> None:
    before = fingerprint(directory)
    assert fairlead.verify(directory).problems == []
    assert fingerprint(directory) == before, "verify changed the directory"
    assert read_all(directory) == contents


def assert_refused(directory: Path, name: str) -> None:
    before = fingerprint(directory)
    (problem,) = fairlead.verify(directory).problems
    assert name in problem
    with pytest.raises(StoreCorrupt, match=name):
        fairlead.open(directory)
    after = fingerprint(directory)
    assert {name for name, content in before.items() if after[name] != content} <= {"LOG"}, (
        "a refusal changed the directory"
    )


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.3, 0.6, 0.999])
def test_a_record_that_only_began_to_be_written_is_cut_off(
    directory: Path, contents: Contents, keep: float
) -> None:
    add_torn_record(directory, os.urandom(100_000), keep)
    assert_exact(directory, contents)


def test_a_read_only_open_of_a_torn_directory_cuts_a_copy(directory: Path, contents: Contents) -> None:
    add_torn_record(directory, os.urandom(1000), 0.5)
    before = fingerprint(directory)
    with read_only(directory) as store:
        assert store.scan(Table.QUEUES, limit=10)
        rows = [row for table in Table for row in store.scan(table, limit=10_000)]
    # `contents` leaves out the mark of the clock.
    assert len(rows) == len(contents) + 1
    assert fingerprint(directory) == before


@pytest.mark.parametrize("count", [1, 6, 7, 8, 30, 3000])
def test_a_first_record_of_a_new_log_that_only_began_to_be_written_is_cut_off(
    directory: Path, contents: Contents, count: int
) -> None:
    framed = frame(batch(marks.read_mark(directory).sequence + 1, os.urandom(5000)))
    (directory / "000099.log").write_bytes(framed[:count])
    assert_exact(directory, contents)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_first_record_that_only_began_to_be_written_is_cut_off_also_when_no_other_log_is_left(
    directory: Path, contents: Contents, restarted: bool
) -> None:
    assert read_all(directory) == contents
    if restarted:
        set_boot(directory, ANOTHER_BOOT)
    torn = frame(batch(marks.read_mark(directory).sequence + 1, os.urandom(5000)))[:3000]
    (directory / "000099.log").write_bytes(torn + bytes(100 if restarted else 0))
    assert_exact(directory, contents)


def test_a_new_log_without_a_record_is_no_damage(directory: Path, contents: Contents) -> None:
    (directory / "000099.log").write_bytes(b"")
    assert_exact(directory, contents)


@pytest.mark.parametrize("left", range(1, 7))
def test_a_kill_inside_the_padding_of_a_block_is_no_damage(
    directory: Path, contents: Contents, left: int, tmp_path: Path
) -> None:
    """The last record ends `left` bytes before the end of its block, and only some of the padding was
    written.
    """
    log = newest_log(directory)
    end_with_record(log, marks.read_mark(directory).sequence + 1, left)
    for padding in {0, 1, left}:
        copy = Path(shutil.copytree(directory, tmp_path / f"padded-{padding}"))
        append(copy / log.name, bytes(padding))
        assert_exact(copy, contents)


@pytest.mark.sample(6)
@pytest.mark.parametrize("left", range(19))
def test_a_record_may_begin_and_end_anywhere_near_the_end_of_a_block(
    directory: Path, contents: Contents, left: int
) -> None:
    log, sequence = newest_log(directory), marks.read_mark(directory).sequence + 1
    end_with_record(log, sequence, left)
    for more in range(1, 4):
        append(log, frame(put(sequence + more, b"next"), log.stat().st_size))
    assert_exact(directory, contents)


def end_with_record(log: Path, sequence: int, left: int) -> None:
    """Add a record that ends `left` bytes before the end of a block."""
    size = log.stat().st_size
    room = BLOCK_BYTES - size % BLOCK_BYTES
    for value_bytes in range(max(0, room - left - 60), room - left):
        framed = frame(put(sequence, bytes(value_bytes)), size)
        if (size + len(framed)) % BLOCK_BYTES == (BLOCK_BYTES - left) % BLOCK_BYTES:
            append(log, framed)
            return
    raise AssertionError(f"no record ends {left} bytes before the end of a block")


def test_logs_that_a_crash_kept_from_being_deleted_are_no_damage(
    directory: Path, contents: Contents, tmp_path: Path
) -> None:
    logs = {log.name: log.read_bytes() for log in directory.glob("*.log")}
    assert read_all(directory) == contents
    Storage(directory).close()
    for kept in (sorted(logs), sorted(logs)[::2], sorted(logs)[-1:]):
        copy = Path(shutil.copytree(directory, tmp_path / f"kept-{len(kept)}"))
        for name in kept:
            assert not (copy / name).exists()
            (copy / name).write_bytes(logs[name])
        assert_exact(copy, contents)


def test_an_older_manifest_that_current_names_is_refused(directory: Path, contents: Contents) -> None:
    (manifest,) = directory.glob("MANIFEST-*")
    stale = {file.name: file.read_bytes() for file in (directory / "CURRENT", manifest)}
    fairlead.open(directory, clock=ManualClock()).close()
    fairlead.open(directory, clock=ManualClock()).close()
    for name, content in stale.items():
        (directory / name).write_bytes(content)
    assert_refused(directory, "CURRENT")


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("own", [True, False], ids=["of the same directory", "of another one"])
def test_a_payload_that_holds_the_bytes_of_a_log_and_is_cut_short_is_no_damage(
    directory: Path, contents: Contents, own: bool, keep: float
) -> None:
    """The records in the payload are whole and their sequence numbers could follow here, but they are no
    records of this log.
    """
    sequence = marks.read_mark(directory).sequence + 1
    logs = [log.read_bytes() for log in sorted(directory.glob("*.log"))]
    foreign = [frame(put(sequence + number, bytes(500))) for number in range(300)]
    add_torn_record(directory, b"".join(logs if own else foreign), keep)
    assert_exact(directory, contents)


def test_a_longer_length_in_the_last_record_is_not_taken_for_a_torn_write(
    directory: Path, tmp_path: Path
) -> None:
    """Behind the mark, so only the record itself can tell."""
    log, sequence = newest_log(directory), marks.read_mark(directory).sequence + 1
    for number in range(3):
        append(log, frame(put(sequence + number, bytes(40)), log.stat().st_size))
    data = log.read_bytes()
    for start, end in record_spans(data)[-3:]:
        for bit in range(16):
            length = struct.unpack_from("<H", data, start + 4)[0] ^ 1 << bit
            damaged = Path(shutil.copytree(directory, tmp_path / f"{start}-{bit}"))
            (damaged / log.name).write_bytes(
                data[: start + 4] + struct.pack("<H", length) + data[start + 6 :]
            )
            assert_refused(damaged, log.name)
        assert end <= len(data)


@pytest.mark.parametrize("boot", [NO_BOOT, ANOTHER_BOOT], ids=["no boot id", "restarted"])
def test_marks_of_another_start_still_say_what_was_synced(
    directory: Path, contents: Contents, boot: bytes, tmp_path: Path
) -> None:
    set_boot(directory, boot)
    log = newest_log(directory)
    torn, cut = (Path(shutil.copytree(directory, tmp_path / name)) for name in ("torn", "cut"))
    add_torn_record(torn, os.urandom(5000), 0.5)
    append(torn / log.name, bytes(3000))
    assert_exact(torn, contents)
    os.truncate(cut / log.name, record_spans(log.read_bytes())[-1][0])
    assert_refused(cut, log.name)
    assert_exact(directory, contents)


def test_an_end_of_the_manifest_that_no_mark_covers_is_dropped_after_a_restart_only(
    directory: Path, contents: Contents
) -> None:
    (manifest,) = directory.glob("MANIFEST-*")
    append(manifest, random.Random(3).randbytes(300))
    assert_refused(directory, manifest.name)
    set_boot(directory, ANOTHER_BOOT)
    assert_exact(directory, contents)


def test_several_logs_closed_by_one_edit_of_the_manifest_must_all_be_there(tmp_path: Path) -> None:
    base = make_directory(tmp_path, "closed_together")
    (manifest,) = base.glob("MANIFEST-*")
    closed = [log for log in sorted(base.glob("*.log")) if log.stat().st_size]
    assert len(closed) > 3
    assert manifest.exists()
    whole = Path(shutil.copytree(base, tmp_path / "whole"))
    assert fairlead.verify(whole).problems == []
    for log in closed[:-1]:
        lost = Path(shutil.copytree(base, tmp_path / log.stem))
        (lost / log.name).unlink()
        assert_refused(lost, log.name)


def test_a_directory_that_another_process_has_is_refused_before_anything_is_cut(
    directory: Path, contents: Contents
) -> None:
    add_torn_record(directory, os.urandom(1000), 0.5)
    before = fingerprint(directory)
    with open(directory / marks.MARKS_FILE, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreLocked):
            fairlead.open(directory)
        assert fingerprint(directory) == before
    assert_exact(directory, contents)


def test_a_forked_child_does_not_keep_the_directory_locked_after_its_parent_was_killed(
    tmp_path: Path,
) -> None:
    script = """
import os, sys, time
import fairlead
broker = fairlead.open(sys.argv[1], durability="os")
broker.create_queue("q")
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
time.sleep(600)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "data")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"forked\n"
        with pytest.raises(StoreLocked):
            fairlead.open(tmp_path / "data")
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        # The child lives until its stdin ends.
        with fairlead.open(tmp_path / "data") as broker:
            assert [info.name for info in broker.queues()] == ["q", "q.dlq"]


def test_a_record_that_is_gone_from_the_middle_of_a_log_is_noticed(directory: Path, tmp_path: Path) -> None:
    """In the last block of the newest log every other record stays where a record may be, so only sequence
    numbers tell.
    """
    log = newest_log(directory)
    data = log.read_bytes()
    last_block = len(data) - len(data) % BLOCK_BYTES
    gone = [(start, end) for start, end in record_spans(data) if start >= last_block][1:-1]
    assert gone
    for start, end in gone:
        damaged = Path(shutil.copytree(directory, tmp_path / str(start)))
        (damaged / log.name).write_bytes(data[:start] + data[end:])
        assert_refused(damaged, log.name)


def test_a_backup_and_what_is_restored_from_it_carry_marks(
    directory: Path, contents: Contents, tmp_path: Path
) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    with fairlead.open(directory, clock=ManualClock()) as broker:
        broker.checkpoint(backup)
    restore(backup, restored, began=lambda what, size: None, copied=lambda size: None)
    assert marks.read_mark(restored) == marks.read_mark(backup)
    assert marks.read_mark(restored).sequence > 0
    for copy in (backup, restored):
        (manifest,) = copy.glob("MANIFEST-*")
        damaged = Path(shutil.copytree(copy, tmp_path / f"damaged-{copy.name}"))
        os.truncate(damaged / manifest.name, record_spans(manifest.read_bytes())[-1][0])
        assert_refused(damaged, manifest.name)
        assert_exact(copy, contents)


def test_after_a_restart_a_broken_record_behind_the_mark_is_refused_only_if_a_whole_one_follows(
    directory: Path, contents: Contents, tmp_path: Path
) -> None:
    log, sequence = newest_log(directory), marks.read_mark(directory).sequence + 1
    for number in range(3):
        append(log, frame(put(sequence + number, bytes(40)), log.stat().st_size))
    set_boot(directory, ANOTHER_BOOT)
    data = log.read_bytes()
    starts = [start for start, _ in record_spans(data)][-3:]
    for start in starts:
        damaged = bytearray(data)
        damaged[start + 30] ^= 1
        copy = Path(shutil.copytree(directory, tmp_path / str(start)))
        (copy / log.name).write_bytes(damaged)
        if start == starts[-1]:
            assert_exact(copy, contents)
        else:
            assert_refused(copy, log.name)
