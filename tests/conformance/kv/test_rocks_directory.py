"""The directory of the RocksDB backend: who may open it, a killed process, damage, syncs that fail."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import (
    BrokenInvariant,
    FormatTooNew,
    FormatTooOld,
    InvalidRequest,
    StoreCorrupt,
    StoreFailed,
    StoreLocked,
)
from fairlead.store.kv.port import Batch, KeyValueStore, Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.rocks.format import FORMAT, FORMAT_FILE
from fairlead.store.rocks.log_format import HEADER_BYTES, RecordWalk
from fairlead.store.rocks.marks import MARKS_FILE, Mark, write_mark
from tests.conformance.kv.backends import ALL, CACHE_BYTES, RocksBackend, everything, put_all
from tests.conformance.kv.writing import TABLES, row_key
from tests.crash.damage.boots import ANOTHER_BOOT, set_boot


def opened(path: Path) -> RocksKeyValueStore:
    return RocksKeyValueStore.open(path, cache_bytes=4 << 20)


@pytest.mark.parametrize(("rows", "seed"), [(1, 1), (1, 2), (60, 3), (60, 4)])
def test_a_killed_process_leaves_whole_writes_and_every_one_that_returned(
    directory: Path, rows: int, seed: int
) -> None:
    path = directory / "data"
    chance, epochs = random.Random(seed), set()
    for _ in range(2):
        command = [sys.executable, "-m", "tests.conformance.kv.writing", str(path), str(rows)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writing:
            assert writing.stdout is not None
            for _ in range(chance.randrange(1, 300)):
                told = int(writing.stdout.readline())
            writing.kill()
            told = max([told, *map(int, writing.stdout.read().split())])
        store = opened(path)
        last = store.last_commit
        assert last in (told, told + 1), "at most one write was under way"
        assert store.get(Table.META, b"commit") == str(last).encode()
        for table in TABLES:
            assert [key for key, _ in store.scan(table, limit=ALL)] == [
                row_key(last, row) for row in range(rows)
            ]
        epochs.add(store.acquire())
        store.close()
    assert len(epochs) == 2


def test_a_power_cut_after_a_sync_keeps_every_write_before_it(rocks: RocksBackend) -> None:
    store = rocks.open()
    epoch = store.acquire()
    put_all(store, epoch, 1, [(Table.META, b"synced", b"")])
    store.sync()
    synced = {log.name: log.stat().st_size for log in rocks.path.glob("*.log")}
    put_all(store, epoch, 2, [(Table.META, b"not synced", b"x" * 100)])
    left = Path(shutil.copytree(rocks.path, rocks.directory / "left"))
    store.close()
    set_boot(left, ANOTHER_BOOT)
    for name, size in synced.items():
        (left / name).write_bytes((left / name).read_bytes()[:size])
    again = opened(left)
    assert [key for key, _ in again.scan(Table.META, limit=9)] == [b"synced"]
    assert again.last_commit == 1
    assert again.acquire() == epoch + 1
    again.close()


def test_an_epoch_is_synced_before_it_is_given(rocks: RocksBackend) -> None:
    store = rocks.open()
    store.acquire()
    left = Path(shutil.copytree(rocks.path, rocks.directory / "left"))
    store.close()
    set_boot(left, ANOTHER_BOOT)
    (log,) = [log for log in left.glob("*.log") if log.stat().st_size]
    log.write_bytes(b"")
    with pytest.raises(StoreCorrupt, match=log.name):
        opened(left)


def test_a_log_shorter_than_what_was_synced_is_refused(rocks: RocksBackend) -> None:
    store = rocks.open()
    put_all(store, store.acquire(), 1, [(Table.META, b"synced", b"x" * 100)])
    store.sync()
    left = Path(shutil.copytree(rocks.path, rocks.directory / "left"))
    store.close()
    (log,) = [log for log in left.glob("*.log") if log.stat().st_size]
    log.write_bytes(log.read_bytes()[:-20])
    with pytest.raises(StoreCorrupt, match=log.name):
        opened(left)


def test_a_second_store_on_a_directory_is_refused_until_the_first_is_closed(rocks: RocksBackend) -> None:
    store = rocks.open()
    with pytest.raises(StoreLocked, match="life-0"):
        rocks.open()
    program = (
        "import sys; from fairlead.store.kv.rocks import RocksKeyValueStore as S; S.open(sys.argv[1]).close()"
    )
    command = [sys.executable, "-c", program, str(rocks.path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "StoreLocked" in refused.stderr
    assert store.acquire() == 1
    store.close()
    assert subprocess.run(command, check=False).returncode == 0


def test_an_error_that_somebody_keeps_does_not_keep_the_directory_open(rocks: RocksBackend) -> None:
    store = rocks.open()
    epoch, batch = store.acquire(), Batch()
    batch.put(Table.META, b"a", b"b")
    store.write(batch, epoch, 5)
    store.scan(Table.META, limit=1)
    with pytest.raises(BrokenInvariant) as kept:
        store.write(batch, epoch, 4)
    store.close()
    rocks.open().close()
    assert kept.value.code == "broken_invariant"


def test_a_directory_from_before_the_first_release_is_refused_and_left_alone(rocks: RocksBackend) -> None:
    rocks.open().close()
    (rocks.path / FORMAT_FILE).write_bytes(b"1 %08x\n" % zlib.crc32(b"1"))
    before = {file.name: file.read_bytes() for file in rocks.path.iterdir()}
    for read_only in (False, True):
        with pytest.raises(FormatTooOld, match="from before the first release") as refused:
            RocksKeyValueStore.open(rocks.path, read_only=read_only)
        assert str(rocks.path) in str(refused.value)
    assert {file.name: file.read_bytes() for file in rocks.path.iterdir()} == before


def test_a_newer_damaged_or_missing_format_is_refused(rocks: RocksBackend) -> None:
    rocks.open().close()
    file = rocks.path / FORMAT_FILE
    newer = b"fairlead %d" % (FORMAT + 1)
    file.write_bytes(newer + b" %08x\n" % zlib.crc32(newer))
    with pytest.raises(FormatTooNew, match=f"got {FORMAT + 1}"):
        rocks.open()
    file.write_bytes(newer + b" 00000000\n")
    with pytest.raises(StoreCorrupt, match=FORMAT_FILE):
        rocks.open()
    file.unlink()
    with pytest.raises(StoreCorrupt, match=FORMAT_FILE):
        rocks.open()


@pytest.mark.parametrize("garbage", [b"", b"one", b"\xff\xfe", b"-1", b"0", b"%d" % FORMAT])
def test_a_format_file_that_makes_no_sense_is_corrupt(rocks: RocksBackend, garbage: bytes) -> None:
    rocks.path.mkdir()
    (rocks.path / FORMAT_FILE).write_bytes(garbage)
    with pytest.raises(StoreCorrupt, match=FORMAT_FILE):
        rocks.open()
    assert [file.name for file in rocks.path.iterdir()] == [FORMAT_FILE]


@pytest.mark.parametrize("cut_short", ["before its format was written", "before its database was made"])
def test_a_directory_whose_making_was_cut_short_is_made_again(
    rocks: RocksBackend, directory: Path, cut_short: str
) -> None:
    left = directory / "left"
    left.mkdir()
    if cut_short == "before its format was written":
        (left / (FORMAT_FILE + ".tmp")).write_bytes(b"")
    else:
        rocks.open().close()
        write_mark(left, Mark())
        for name in (FORMAT_FILE, "IDENTITY", "LOCK", "rocksdict-config.json"):
            (left / name).write_bytes((rocks.path / name).read_bytes())
        (left / "MANIFEST-000001").write_bytes(b"half a manife")
        (left / "000001.dbtmp").write_bytes(b"MANIFEST-000001\n")
    store = opened(left)
    put_all(store, store.acquire(), 1, [(Table.META, b"a", b"b")])
    store.close()
    store = opened(left)
    assert (store.last_commit, store.get(Table.META, b"a")) == (1, b"b")
    store.close()


def test_a_foreign_directory_or_file_is_refused(directory: Path) -> None:
    folder = directory / "photos"
    folder.mkdir()
    (folder / "cat.jpg").write_bytes(b"")
    with pytest.raises(InvalidRequest, match="photos"):
        opened(folder)
    with pytest.raises(InvalidRequest, match=r"cat\.jpg"):
        opened(folder / "cat.jpg")
    with pytest.raises(InvalidRequest, match="data directory"):
        RocksKeyValueStore.open(directory / "nothing", read_only=True)
    assert [file.name for file in folder.iterdir()] == ["cat.jpg"]


@pytest.mark.parametrize("name", ["CURRENT", MARKS_FILE])
def test_a_directory_without_one_of_its_files_is_refused_with_the_files_name(
    rocks: RocksBackend, name: str
) -> None:
    store = rocks.open()
    put_all(store, store.acquire(), 1, [(Table.META, b"a", b"b")])
    store.close()
    (rocks.path / name).unlink()
    with pytest.raises(StoreCorrupt, match=name):
        rocks.open()


def test_only_the_owner_may_read_a_new_directory(rocks: RocksBackend) -> None:
    store = rocks.open()
    store.checkpoint(rocks.directory / "copy")
    store.close()
    assert rocks.path.stat().st_mode & 0o777 == 0o700
    assert (rocks.directory / "copy").stat().st_mode & 0o777 == 0o700


def filled(store: KeyValueStore) -> None:
    epoch = store.acquire()
    chance = random.Random(5)
    for commit in range(1, 61):
        rows = [(table, commit.to_bytes(8, "big"), chance.randbytes(700)) for table in TABLES]
        put_all(store, epoch, commit, rows)
    store.sync()


@pytest.fixture
def crashed(rocks: RocksBackend) -> Path:
    """Sixty writes in the log, nothing flushed."""
    store = rocks.open()
    filled(store)
    shutil.copytree(rocks.path, rocks.directory / "crashed")
    store.close()
    return rocks.directory / "crashed"


@pytest.fixture
def flushed(rocks: RocksBackend) -> Path:
    """The same in tables: opening after a crash turns logs into tables."""
    store = rocks.open()
    filled(store)
    rocks.crash(store).close()
    return rocks.path


def flip(file: Path, at: int, mask: int = 0x10) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= mask
    file.write_bytes(content)


@pytest.mark.parametrize("tenth", range(10))
def test_a_flipped_byte_in_the_log_stops_the_opening_and_names_the_file(crashed: Path, tenth: int) -> None:
    log = max(crashed.glob("*.log"))
    flip(log, log.stat().st_size * tenth // 10 + 13)
    for read_only in (True, False):
        with pytest.raises(StoreCorrupt, match=log.name):
            RocksKeyValueStore.open(crashed, read_only=read_only)


def test_a_flipped_length_at_the_end_of_the_log_is_not_taken_for_a_torn_write(crashed: Path) -> None:
    log = max(crashed.glob("*.log"))
    whole = log.read_bytes()
    for spans in list(RecordWalk(whole))[-3:]:
        flip(log, spans[0][0] - HEADER_BYTES + 5, 0x40)
        with pytest.raises(StoreCorrupt, match=log.name):
            opened(crashed)
        log.write_bytes(whole)


def test_a_write_that_is_torn_anywhere_is_dropped_and_those_before_it_stay(rocks: RocksBackend) -> None:
    store = rocks.open()
    filled(store)
    (synced,) = [log for log in rocks.path.glob("*.log") if log.stat().st_size]
    size = synced.stat().st_size
    put_all(store, 1, 61, [(Table.META, b"torn", b"x" * 500)])
    left = Path(shutil.copytree(rocks.path, rocks.directory / "left"))
    store.close()
    set_boot(left, ANOTHER_BOOT)
    log = left / synced.name
    whole = log.read_bytes()
    for kept in (size + 3, size + 200, len(whole) - 1):
        log.write_bytes(whole[:kept])
        torn = RocksKeyValueStore.open(left, read_only=True)
        assert (torn.last_commit, torn.get(Table.META, b"torn")) == (60, None)
        assert len(torn.scan(TABLES[0], limit=ALL)) == 60
        torn.close()


@pytest.mark.parametrize("name", ["MANIFEST-*", "CURRENT"])
def test_a_damaged_administration_file_stops_the_opening_and_is_named(flushed: Path, name: str) -> None:
    (file,) = flushed.glob(name)
    flip(file, file.stat().st_size // 2)
    with pytest.raises(StoreCorrupt, match=file.name):
        opened(flushed)


def test_a_damaged_table_is_named_and_never_read_as_data(flushed: Path) -> None:
    store = opened(flushed)
    expected = everything(store)
    store.close()
    named: list[tuple[str, str]] = []
    for table in sorted(flushed.glob("*.sst")):
        size = table.stat().st_size
        for at in (size // 5, size // 2, size - 20):
            broken = Path(shutil.copytree(flushed, flushed.with_name("broken")))
            flip(broken / table.name, at)
            try:
                store = opened(broken)
                try:
                    assert everything(store) == expected
                    assert store.scan(TABLES[0], limit=ALL, reverse=True) == expected[TABLES[0]][::-1]
                finally:
                    store.close()
            except StoreCorrupt as damage:
                named.append((damage.where, str(broken / table.name)))
            shutil.rmtree(broken)
    assert len(named) >= 4
    assert [where for where, _ in named] == [damaged for _, damaged in named]


QUESTIONS: dict[str, Callable[[KeyValueStore, Table, list[bytes]], object]] = {
    "get": lambda store, table, keys: [store.get(table, key) for key in keys],
    "get_many": lambda store, table, keys: store.get_many(table, keys),
    "scan": lambda store, table, keys: store.scan(table, limit=ALL),
    "scan back": lambda store, table, keys: store.scan(table, limit=ALL, reverse=True),
    "first_rows": lambda store, table, keys: store.first_rows(table, suffix_length=0, limit=ALL),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_damaged_block_is_refused_by_every_question_that_meets_it(flushed: Path, question: str) -> None:
    table_file = max(flushed.glob("*.sst"), key=lambda file: file.stat().st_size)
    flip(table_file, table_file.stat().st_size // 2)
    store = opened(flushed)
    named = []
    keys = [commit.to_bytes(8, "big") for commit in range(1, 61)]
    for table in TABLES:
        try:
            QUESTIONS[question](store, table, keys)
        except StoreCorrupt as damage:
            named.append(damage.where)
    assert named == [str(table_file)]
    store.close()


def test_a_damage_that_rocksdb_reports_without_a_name_is_named(flushed: Path) -> None:
    for table in sorted(flushed.glob("*.sst")):
        broken = Path(shutil.copytree(flushed, flushed.with_name("broken")))
        # RocksDB then says "properties unsorted", and not of which table.
        flip(broken / table.name, table.read_bytes().index(b"column.family.id"))
        with pytest.raises(StoreCorrupt) as damage:
            everything(opened(broken))
        assert damage.value.where == str(broken / table.name)
        shutil.rmtree(broken)


def test_a_lost_table_is_refused_with_its_name(flushed: Path) -> None:
    lost = max(flushed.glob("*.sst"))
    lost.unlink()
    with pytest.raises(StoreCorrupt, match=lost.name):
        opened(flushed)


def test_read_only_answers_without_changing_the_directory(crashed: Path) -> None:
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in crashed.iterdir()}
    store = RocksKeyValueStore.open(crashed, read_only=True)
    assert len(store.scan(TABLES[0], limit=ALL)) == 60
    assert store.last_commit == 60
    for refused in (store.acquire, lambda: store.write(Batch(), 1, 61)):
        with pytest.raises(InvalidRequest, match="read-only"):
            refused()
    store.sync()
    store.close()
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in crashed.iterdir()} == before


def test_a_torn_write_is_a_crash_and_opens_with_the_writes_before_it(crashed: Path) -> None:
    set_boot(crashed, ANOTHER_BOOT)
    log = max(crashed.glob("*.log"))
    with log.open("ab") as more:
        # A record that promises more bytes than there are.
        more.write(bytes(4) + (900).to_bytes(2, "little") + b"\1" + bytes(100))
    store = opened(crashed)
    assert store.last_commit == 60
    store.close()


def sync_beside_each_other(store: KeyValueStore, count: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=store.sync) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_callers_that_come_during_a_sync_share_the_next_one(
    rocks: RocksBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(rocks.path)
    epoch = store.acquire()
    entered, go_on, sync_logs = threading.Event(), threading.Event(), store._sync_logs

    def slow_disk(marks: object) -> None:
        entered.set()
        go_on.wait()
        sync_logs(marks)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_sync_logs", slow_disk)
    syncs = store.syncs
    put_all(store, epoch, 1, [])
    threads = sync_beside_each_other(store, 1)
    entered.wait()
    put_all(store, epoch, 2, [])
    threads += sync_beside_each_other(store, 7)
    go_on.set()
    for thread in threads:
        thread.join()
    store.sync()
    assert store.syncs == syncs + 2
    store.close()


def test_a_failed_sync_is_final_and_loses_nothing(
    rocks: RocksBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(rocks.path)
    epoch = store.acquire()
    put_all(store, epoch, 1, [(Table.META, b"a", b"b")])

    def broken_disk(marks: object) -> None:
        raise OSError("While fdatasync: Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(store, "_sync_logs", broken_disk)
        with pytest.raises(StoreFailed, match="Input/output"):
            store.sync()
    for call in (store.sync, store.acquire, lambda: store.write(Batch(), epoch, 2)):
        with pytest.raises(StoreFailed, match="Input/output"):
            call()
    assert store.get(Table.META, b"a") == b"b", "reads go on"
    store.close()
    again = opened(rocks.path)
    assert (again.last_commit, again.acquire()) == (1, epoch + 1)
    again.close()


def test_a_mark_that_cannot_be_written_fails_a_sync_and_not_a_write(rocks: RocksBackend) -> None:
    store = opened(rocks.path)
    epoch = store.acquire()
    assert store._marks is not None
    os.close(store._marks._file)
    put_all(store, epoch, 1, [(Table.META, b"a", b"b")])
    with pytest.raises(StoreFailed, match="Bad file descriptor"):
        store.sync()
    assert store.get(Table.META, b"a") == b"b"


def test_a_store_whose_directory_is_gone_can_be_closed(rocks: RocksBackend) -> None:
    store = rocks.open()
    put_all(store, store.acquire(), 1, [(Table.META, b"a", b"b")])
    shutil.rmtree(rocks.path)
    store.close()
    new = rocks.open()
    assert (new.last_commit, new.acquire()) == (0, 1)
    new.close()


def test_a_write_that_fails_otherwise_than_by_a_full_disk_is_final(
    rocks: RocksBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(rocks.path)
    epoch = store.acquire()
    database = store._database.opened

    class Broken:
        def write(self, batch: object) -> None:
            raise Exception("IO error: While pwrite: Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(store._database, "opened", Broken())
        with pytest.raises(StoreFailed, match="pwrite"):
            store.write(Batch(), epoch, 1)
    del database
    with pytest.raises(StoreFailed, match="pwrite"):
        store.write(Batch(), epoch, 1)
    store.close()
    again = opened(rocks.path)
    assert again.last_commit == 0
    again.close()


def test_a_write_after_a_compaction_met_a_damaged_table_names_the_table(directory: Path) -> None:
    path = directory / "data"
    store = RocksKeyValueStore.open(path, cache_bytes=CACHE_BYTES)
    epoch = store.acquire()
    for commit in range(1, 4):
        put_all(store, epoch, commit, [(Table.OWN, b"%03d" % row, bytes(100)) for row in range(200)])
        store.flush_table(Table.OWN)
    store.close()
    damaged = sorted(path.glob("*.sst"))[1]
    content = bytearray(damaged.read_bytes())
    content[50] ^= 0x10
    damaged.write_bytes(content)
    store = RocksKeyValueStore.open(path, cache_bytes=CACHE_BYTES)
    epoch = store.acquire()
    put_all(store, epoch, 4, [(Table.OWN, b"%03d" % row, bytes(100)) for row in range(200)])
    # The compaction that it starts may fail before it returns.
    with suppress(Exception):
        store.flush_table(Table.OWN)

    def write_until_the_compaction_has_failed() -> None:
        for commit in range(5, 2000):
            put_all(store, epoch, commit, [(Table.META, b"a", b"")])
            threading.Event().wait(0.005)

    with pytest.raises(StoreCorrupt) as refused:
        write_until_the_compaction_has_failed()
    assert refused.value.where == str(damaged)
    with pytest.raises(StoreFailed):
        put_all(store, epoch, 3000, [(Table.META, b"", b"")])
    store.close()


class Watched:
    """A database that notes what it is asked for."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.asked: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, batch: Any) -> None:
        self.asked.append(("write", None))
        self._inner.write(batch)

    def flush_wal(self, sync: bool) -> None:
        self.asked.append(("flush_wal", sync))
        self._inner.flush_wal(sync)


def test_a_sync_lets_rocksdb_sync_its_log_after_the_write_that_it_covers(rocks: RocksBackend) -> None:
    store = RocksKeyValueStore.open(rocks.path, cache_bytes=CACHE_BYTES)
    epoch, database = store.acquire(), store._database
    watched = database.opened = Watched(database.opened)  # type: ignore[assignment]
    put_all(store, epoch, 1, [(Table.META, b"a", b"")])
    assert watched.asked == [("write", None)]
    store.sync()
    assert watched.asked == [("write", None), ("flush_wal", True)]
    store.sync()
    assert len(watched.asked) == 2, "nothing to sync"
    database.opened = watched._inner
    store.close()
