"""`repair --cut-unsynced`: a healthy directory that a power failure left with ends that no sync confirmed; and what a
repair refuses, or leaves when it is killed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fairlead import Complete, NewMessage
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.engine.verify import verify
from fairlead.errors import InvalidRequest, StoreCorrupt, StoreLocked
from fairlead.salvage.repair import repair
from fairlead.store.kv.port import Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.rocks.log_format import HEADER_BYTES, RecordWalk
from fairlead.store.rocks.marks import MARKS_FILE, read_mark, write_mark
from fairlead.store.rows import read_table
from fairlead.testing import ManualClock

Change = Callable[[Path], object]
Rows = dict[Table, dict[bytes, bytes]]


@dataclass
class Made:
    """`crashed`: three parts of a queue in tables and the rest in logs, left by a killed process. `flushing`: the
    power failed while RocksDB wrote a table: the log before the last one has no end, and the manifest does not yet
    know that it is closed. `closed`: the same queue after an orderly close.
    """

    crashed: Path
    flushing: Path
    closed: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    home = tmp_path_factory.mktemp("cut")
    living = home / "living"
    store = RocksKeyValueStore.open(living)
    broker = Broker(store, clock=ManualClock(), durability="os")
    broker.create_queue("work")
    for part in range(3):
        for at in range(25):
            broker.enqueue_many("work", [NewMessage(b"%d %d %d" % (part, at, n) * 99) for n in range(4)])
        broker.settle([Complete(one) for one in broker.claim("work", limit=20)])
        store.flush_table(Table.CHUNKS if part == 1 else Table.COUNTERS)
    for at in range(20):
        broker.enqueue("work", b"first %d" % at)
    store.sync()
    (manifest,) = living.glob("MANIFEST-*")
    before, tables = manifest.read_bytes(), set(living.glob("*.sst"))
    shutil.copytree(living, home / "crashed")
    store.flush_table(Table.CHUNKS)
    for at in range(20):
        broker.enqueue("work", b"second %d" % at)
    flushing = Path(shutil.copytree(living, home / "flushing"))
    broker.close()
    (flushing / manifest.name).write_bytes(before)
    for table in set(flushing.glob("*.sst")) - {flushing / table.name for table in tables}:
        table.unlink()
    closed, last = logs(flushing)[-2:]
    assert last.stat().st_size
    another_start(
        flushing, log=int(closed.stem), sequence=first_sequence(closed, 10) - 1, manifest_bytes=len(before)
    )
    os.truncate(closed, header_of(closed, 15) + 20)
    return Made(home / "crashed", flushing, living)


@pytest.fixture
def damage(made: Made, directory: Path) -> Callable[[Change], Path]:
    def change(how: Change) -> Path:
        path = Path(shutil.copytree(made.crashed, directory / "damaged"))
        how(path)
        return path

    return change


def logs(path: Path) -> list[Path]:
    return sorted(log for log in path.glob("*.log") if log.stat().st_size)


def header_of(log: Path, record: int) -> int:
    return [spans[0][0] - HEADER_BYTES for spans in RecordWalk(log.read_bytes())][record]


def first_sequence(log: Path, record: int) -> int:
    at = header_of(log, record) + HEADER_BYTES
    return int.from_bytes(log.read_bytes()[at : at + 8], "little")


def another_start(path: Path, **changes: int) -> None:
    """As if the machine had restarted since: what was written and not synced may be missing."""
    mark = replace(read_mark(path), boot=bytes(range(16)), **changes)
    (path / MARKS_FILE).unlink()
    write_mark(path, mark)


def zero(file: Path, start: int, end: int) -> None:
    content = bytearray(file.read_bytes())
    content[start:end] = bytes(end - start)
    file.write_bytes(content)


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x10
    file.write_bytes(content)


def cut_power(path: Path) -> None:
    """The last log is synced up to its tenth record; a page behind it is lost, later ones are there."""
    last = logs(path)[-1]
    another_start(path, log=int(last.stem), sequence=first_sequence(last, 10) - 1)
    zero(last, header_of(last, 15) + 20, header_of(last, 16))


def fingerprint(path: Path) -> dict[str, tuple[int, str]]:
    return {
        file.name: (file.stat().st_mtime_ns, hashlib.sha256(file.read_bytes()).hexdigest())
        for file in path.iterdir()
    }


def rows_of(path: Path) -> Rows:
    store = RocksKeyValueStore.open(path, read_only=True)
    try:
        return {table: dict(read_table(store, table)) for table in Table}
    finally:
        store.close()


def payloads(path: Path) -> list[bytes]:
    broker = Broker(RocksKeyValueStore.open(path), clock=ManualClock())
    assert broken_laws(broker.engine) == []
    found = broker.claim("work", limit=1000)
    broker.close()
    return [one.payload for one in found]


def test_everything_up_to_the_first_defect_is_kept(
    made: Made, damage: Callable[[Change], Path], directory: Path
) -> None:
    damaged = damage(cut_power)
    assert not verify(damaged).ok
    before = fingerprint(damaged)
    report = repair(damaged, directory / "new", cut_unsynced=True)
    assert fingerprint(damaged) == before
    assert report.ok
    whole = logs(made.crashed)[-1]
    (dropped,) = report.dropped
    assert (dropped.file, dropped.kept_bytes) == (whole.name, header_of(whole, 15))
    assert dropped.kept_bytes + dropped.dropped_bytes == whole.stat().st_size
    assert dropped.batches > 0
    prefix = Path(shutil.copytree(made.crashed, directory / "prefix"))
    os.truncate(prefix / whole.name, dropped.kept_bytes)
    another_start(prefix, log=int(whole.stem), sequence=first_sequence(whole, 10) - 1)
    assert rows_of(directory / "new") == rows_of(prefix)
    assert payloads(directory / "new")


def test_the_log_behind_an_unsynced_end_is_dropped(made: Made, directory: Path) -> None:
    assert not verify(made.flushing).ok
    closed, last = logs(made.flushing)[-2:]
    report = repair(made.flushing, directory / "new", cut_unsynced=True)
    assert [dropped.file for dropped in report.dropped] == [closed.name, last.name]
    assert (report.dropped[1].kept_bytes, report.dropped[1].batches) == (0, 20)
    found = payloads(directory / "new")
    kept = [payload for payload in found if payload.startswith(b"first")]
    assert kept == [b"first %d" % at for at in range(len(kept))]
    assert 0 < len(kept) < 20
    assert not any(payload.startswith(b"second") for payload in found)


BEFORE_THE_MARK: dict[str, Change] = {
    "a wrong byte in a middle log": lambda path: flip(logs(path)[1], header_of(logs(path)[1], 7) + 40),
    "a wrong byte in the last log": lambda path: flip(logs(path)[-1], header_of(logs(path)[-1], 7) + 40),
    "a page of zeros in a log": lambda path: zero(logs(path)[0], 8192, 12288),
    "the last log is emptied": lambda path: os.truncate(logs(path)[-1], 0),
}


@pytest.mark.parametrize("how", BEFORE_THE_MARK)
def test_damage_before_the_mark_is_refused(
    damage: Callable[[Change], Path], directory: Path, how: str
) -> None:
    damaged = damage(BEFORE_THE_MARK[how])
    with pytest.raises(StoreCorrupt, match="sync confirmed") as refused:
        repair(damaged, directory / "new", cut_unsynced=True)
    assert how == "the last log is emptied" or refused.value.where.endswith(".log")
    assert not (directory / "new").exists()


def test_a_healthy_directory_is_copied(made: Made, directory: Path) -> None:
    report = repair(made.closed, directory / "new", cut_unsynced=True)
    assert (report.dropped, report.ok) == ([], True)
    assert rows_of(directory / "new") == rows_of(made.closed)


# Any repair


def test_a_directory_in_use_and_a_target_with_content_are_refused(
    damage: Callable[[Change], Path], directory: Path
) -> None:
    damaged = damage(lambda path: None)
    in_use = RocksKeyValueStore.open(damaged)
    with pytest.raises(StoreLocked):
        repair(damaged, directory / "new")
    in_use.close()
    (directory / "full").mkdir()
    (directory / "full" / "file").write_text("")
    (directory / "empty").mkdir()
    for target in (directory / "full", damaged / "inside", directory / "full" / "file"):
        with pytest.raises(InvalidRequest):
            repair(damaged, target)
    for source in (directory / "empty", directory / "full", directory / "nothing"):
        with pytest.raises(InvalidRequest):
            repair(source, directory / "new")
    assert not (directory / "new").exists()


KILLED_REPAIR = """
import os, signal, sys
from fairlead.salvage.repair import repair
left = int(sys.argv[3])
def progress(*what):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
repair(sys.argv[1], sys.argv[2], progress=progress)
"""


def test_a_repair_that_is_killed_leaves_the_damaged_directory_as_it_was_and_no_new_one(
    damage: Callable[[Change], Path], directory: Path
) -> None:
    damaged, new = damage(BEFORE_THE_MARK["a wrong byte in a middle log"]), directory / "new"
    before = fingerprint(damaged)
    for steps in (4, 30):
        command = [sys.executable, "-c", KILLED_REPAIR, str(damaged), str(new), str(steps)]
        victim = subprocess.run(command, check=False)
        assert victim.returncode == -signal.SIGKILL
        assert not new.exists()
        assert fingerprint(damaged) == before
    report = repair(damaged, new)
    assert verify(new).problems == []
    assert not report.ok
    assert not list(directory.glob(".*")), "nothing is left beside the new directory"


def test_tables_that_stand_in_each_others_place_are_read_as_what_they_are(
    made: Made, directory: Path
) -> None:
    damaged = Path(shutil.copytree(made.closed, directory / "damaged"))
    tables = sorted(damaged.glob("*.sst"))
    first, last = tables[0], tables[-1]
    one, other = first.read_bytes(), last.read_bytes()
    first.write_bytes(other)
    last.write_bytes(one)
    with pytest.raises(StoreCorrupt):
        RocksKeyValueStore.open(damaged)
    report = repair(damaged, directory / "new")
    assert {hurt.file for hurt in report.damages} == {first.name, last.name}
    assert report.gone == []
    assert sorted(payloads(directory / "new")) == sorted(payloads(made.closed))
