"""A really full disk: writes say `StoreFull`, nothing written is lost, and the store goes on by itself when
room returns.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import StoreFull
from fairlead.store.kv.port import Batch, KeyValueStore, Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.rocks import faults
from fairlead.store.rocks.marks import read_mark
from fairlead.store.rocks.reserve import FLOOR_BYTES, MIN_DISK_RESERVE_BYTES
from tests.conformance.kv.backends import ALL
from tests.crash.damage.boots import ANOTHER_BOOT, set_boot
from tests.crash.damage.log_writer import batch, frame

MIB = 1 << 20


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    size = getattr(request, "param", "48m")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "fairlead-test", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        why = f"mounting a small tmpfs needs rights: {mounted.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def free(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


class Filling:
    """A store on a small disk, and what it must hold."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk
        self.ballast = disk / "ballast"
        self.ballast.write_bytes(b"x" * (34 * MIB))
        self.chance = random.Random(1)
        self.expected: list[tuple[bytes, bytes]] = []
        self.store = self.opened()
        self.epoch = self.store.acquire()
        self.commit = 0
        self.refused: StoreFull | None = None

    def opened(self) -> RocksKeyValueStore:
        return RocksKeyValueStore.open(self.disk / "data", disk_reserve_bytes=MIN_DISK_RESERVE_BYTES)

    def write(self) -> None:
        batch, rows = Batch(), []
        for row in range(10):
            key = (self.commit + 1).to_bytes(8, "big") + bytes([row])
            rows.append((key, self.chance.randbytes(8000)))
        for key, value in rows:
            batch.put(Table.PAGES, key, value)
        assert self.store.write(batch, self.epoch, self.commit + 1)
        self.commit += 1
        self.expected += rows

    def fill(self) -> None:
        try:
            while True:
                self.write()
        except StoreFull as refused:
            # Kept on purpose: an error somebody holds on to must not keep the old database open.
            self.refused = refused

    def check(self, store: KeyValueStore | None = None) -> None:
        asked = store or self.store
        assert asked.last_commit == self.commit
        assert asked.scan(Table.PAGES, limit=ALL) == self.expected


@pytest.fixture
def filling(disk: Path) -> Iterator[Filling]:
    filling = Filling(disk)
    filling.fill()
    yield filling
    filling.store.close()


def test_a_full_disk_refuses_every_write_and_answers_every_read(filling: Filling) -> None:
    assert filling.refused is not None
    assert filling.refused.free_bytes < filling.refused.needed_bytes
    for _ in range(3):
        with pytest.raises(StoreFull):
            filling.write()
    with pytest.raises(StoreFull):
        filling.store.acquire()
    filling.check()
    assert filling.store.room() < 0
    with pytest.raises(StoreFull):
        filling.store.check_room(1)


def test_writes_before_the_disk_was_full_can_still_be_synced(filling: Filling) -> None:
    filling.store.sync()
    filling.check()


def test_writes_go_on_by_themselves_in_the_same_epoch_when_room_returns(filling: Filling) -> None:
    filling.ballast.unlink()
    filling.write()
    filling.store.sync()
    filling.check()
    filling.store.close()
    filling.store = filling.opened()
    filling.check()
    assert filling.store.acquire() == filling.epoch + 1


def test_a_disk_too_full_to_open_again_still_gets_answers(
    filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        # Room that another program takes between the look and the write.
        patched.setattr(faults, "free_bytes", lambda path: 1 << 40)
        for _ in range(2):
            with pytest.raises(StoreFull):
                filling.write()
            assert filling.store._database.is_mirror, "it answers read-only"
            filling.check()
    filling.ballast.unlink()
    filling.write()
    filling.check()


def test_a_store_can_fill_the_disk_again_and_again(filling: Filling) -> None:
    for _ in range(2):
        filling.ballast.unlink()
        filling.write()
        filling.ballast.write_bytes(b"x" * max(0, free(filling.disk) - 2 * MIB))
        filling.fill()
        filling.check()
    filling.ballast.unlink()
    filling.store.close()
    filling.store = filling.opened()
    filling.check()


def test_a_read_beside_the_opening_after_a_full_disk_is_answered(filling: Filling) -> None:
    wrong: list[object] = []
    stop = threading.Event()
    expected = list(filling.expected)

    def read() -> None:
        try:
            while not stop.is_set():
                if filling.store.scan(Table.PAGES, limit=len(expected)) != expected:
                    wrong.append("scan")
                if filling.store.get(Table.PAGES, expected[0][0]) != expected[0][1]:
                    wrong.append("get")
        except BaseException as trouble:
            wrong.append(trouble)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(3):
        with pytest.raises(StoreFull):
            filling.write()
    filling.ballast.unlink()
    filling.write()
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
    filling.check()


class FullOnce:
    """A database whose next write finds the disk full. RocksDB consumes the batch all the same."""

    def __init__(self, inner: Any, elsewhere: Any) -> None:
        self._inner = inner
        self._elsewhere = elsewhere

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, batch: Any) -> None:
        self._elsewhere.write(batch)
        raise Exception("IO error: No space left on device: While appending to file")


def test_a_write_that_finds_the_reserve_taken_is_written_again_after_an_opening(
    directory: Path,
) -> None:
    store = RocksKeyValueStore.open(directory / "data")
    elsewhere = RocksKeyValueStore.open(directory / "elsewhere")
    epoch = store.acquire()
    old = Batch()
    for key in (b"a", b"b", b"c"):
        old.put(Table.OWN, key, b"old")
    store.write(old, epoch, 1)
    store._space.is_low = True
    batch = Batch()
    batch.put(Table.PAGES, b"new", b"new")
    batch.delete(Table.OWN, b"a")
    batch.delete_range(Table.OWN, b"b", b"c")
    opened = store._database
    opened.opened = FullOnce(opened.opened, elsewhere._database.db)  # type: ignore[assignment]
    assert store.write(batch, epoch, 2)
    assert store.get(Table.PAGES, b"new") == b"new"
    assert store.scan(Table.OWN, limit=ALL) == [(b"c", b"old")]
    assert store.last_commit == 2
    store._space.is_low = False
    plain = Batch()
    plain.put(Table.META, b"plain", b"")
    opened.opened = FullOnce(opened.opened, elsewhere._database.db)  # type: ignore[assignment]
    with pytest.raises(StoreFull):
        store.write(plain, epoch, 3)
    assert store.get(Table.META, b"plain") is None
    assert store._space.is_low, "the next write is repeated if need be"
    again = Batch()
    again.put(Table.META, b"again", b"")
    assert store.write(again, epoch, 3), "the number of a refused write is free"
    elsewhere.close()
    store.close()


def test_an_opening_after_a_full_disk_waits_for_a_read_that_is_under_way(directory: Path) -> None:
    store = RocksKeyValueStore.open(directory / "data")
    elsewhere = RocksKeyValueStore.open(directory / "elsewhere")
    epoch, database, reading = store.acquire(), store._database, threading.Event()

    def read_slowly(cursor: Any) -> list[tuple[bytes, bytes]]:
        cursor.seek(b"")
        reading.set()
        while database.is_connected:
            pass
        # Long enough for an attempt to open: the cursor holds the database of before.
        threading.Event().wait(0.1)
        return []

    reader = threading.Thread(target=database.read_by_cursor, args=(Table.PAGES, read_slowly))
    reader.start()
    reading.wait()
    store._space.is_low = True
    database.opened = FullOnce(database.opened, elsewhere._database.db)  # type: ignore[assignment]
    assert store.write(Batch(), epoch, 1)
    reader.join()
    assert store.last_commit == 1
    elsewhere.close()
    store.close()


def test_a_directory_left_by_a_crash_on_a_full_disk_is_sound(filling: Filling) -> None:
    left = RocksKeyValueStore.open(filling.disk / "data", read_only=True)
    filling.check(left)
    left.close()


def test_a_sync_on_a_full_disk_leaves_a_mark_because_marks_need_no_room(
    filling: Filling, tmp_path: Path
) -> None:
    with filling.ballast.open("ab") as more, contextlib.suppress(OSError):
        while True:
            os.write(more.fileno(), bytes(4096))
    assert free(filling.disk) == 0
    filling.store.sync()
    synced = filling.store._database.db.latest_sequence_number()
    # Only marks of a sync count after a restart.
    elsewhere = Path(shutil.copytree(filling.disk / "data", tmp_path / "restarted"))
    set_boot(elsewhere, ANOTHER_BOOT)
    assert read_mark(elsewhere).sequence == synced


def test_a_write_that_a_full_disk_cut_short_is_dropped_by_the_next_open(
    filling: Filling, tmp_path: Path
) -> None:
    left = Path(shutil.copytree(filling.disk / "data", tmp_path / "left"))
    log = max(left.glob("*.log"))
    whole = log.read_bytes()
    framed = frame(batch(read_mark(left).sequence + 1, bytes(50_000)), len(whole))
    log.write_bytes(whole + framed[:20_000])
    for read_only in (True, False):
        store = RocksKeyValueStore.open(left, read_only=read_only)
        filling.check(store)
        store.close()


class Growing:
    """Asks for room before each write, as the engine does."""

    def __init__(self, store: RocksKeyValueStore) -> None:
        self.store = store
        self.epoch = store.acquire()
        self.commit = 0
        self.value = random.Random(2).randbytes(16_000)

    def grow(self) -> None:
        self.store.check_room(50 * len(self.value))
        batch = Batch()
        for row in range(50):
            batch.put(Table.PAGES, (self.commit + 1).to_bytes(8, "big") + bytes([row]), self.value)
        self.store.write(batch, self.epoch, self.commit + 1)
        self.commit += 1

    def grow_until_refused(self) -> None:
        while True:
            self.grow()

    def free_all(self, way: str) -> None:
        batch = Batch()
        if way == "ranges":
            batch.delete_range(Table.PAGES, bytes(8), self.commit.to_bytes(8, "big") + b"\xff")
        else:
            for key, _ in self.store.scan(Table.PAGES, limit=ALL):
                batch.delete(Table.PAGES, key)
        assert self.store.write(batch, self.epoch, self.commit + 1), "a change that frees space always fits"
        self.commit += 1


@pytest.mark.parametrize("disk", ["160m"], indirect=True)
@pytest.mark.parametrize("way", ["rows", "ranges"])
@pytest.mark.parametrize("left", ["the reserve", "the floor of the reserve"])
def test_below_the_reserve_growth_is_refused_and_deletions_bring_the_room_back(
    disk: Path, left: str, way: str
) -> None:
    store = RocksKeyValueStore.open(disk / "data", disk_reserve_bytes=MIN_DISK_RESERVE_BYTES)
    growing = Growing(store)
    with pytest.raises(StoreFull) as refused:
        growing.grow_until_refused()
    assert refused.value.reserve_bytes == MIN_DISK_RESERVE_BYTES
    assert free(disk) > FLOOR_BYTES
    store.check_room(1000, in_reserve=True)
    if left == "the floor of the reserve":
        (disk / "ballast").write_bytes(b"x" * (free(disk) - FLOOR_BYTES - MIB))
    growing.free_all(way)
    give_up_at = time.monotonic() + 30
    while True:
        try:
            growing.grow()
            break
        except StoreFull:
            assert time.monotonic() < give_up_at, "the room did not come back"
            # Tables are compacted in the background: give that thread its turn.
            time.sleep(0.01)
    assert len(store.scan(Table.PAGES, limit=ALL)) == 50
    store.close()
