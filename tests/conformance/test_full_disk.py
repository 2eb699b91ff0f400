"""A really full disk: writes say `StoreFull`, nothing confirmed is lost, and the store goes on by itself when
room returns.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.errors import StoreFull
from fairlead.store.laws import check_laws
from fairlead.store.rocks import RocksStore, faults
from fairlead.store.rocks.marks import read_mark
from fairlead.store.rocks.reserve import MIN_DISK_RESERVE_BYTES
from fairlead.store.verify import verify
from tests.conformance.scene import WORK, RocksFactory, Scene
from tests.crash.damage.boots import ANOTHER_BOOT, set_boot
from tests.crash.damage.log_writer import batch, frame

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "fairlead-test", str(disk)],
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


class SmallDiskFactory(RocksFactory):
    def open(self) -> RocksStore:
        return RocksStore.open(self.path, disk_reserve_bytes=MIN_DISK_RESERVE_BYTES)


def fill(scene: Scene) -> int:
    """Enqueue until the disk is full; how many were confirmed."""
    confirmed = 0
    try:
        while True:
            scene.enqueue(100, payload=b"x" * 1000)
            confirmed += 100
    except StoreFull as refused:
        # Kept on purpose: an error somebody holds on to must not keep the old database open.
        scene.refused = refused  # type: ignore[attr-defined]
    return confirmed


@pytest.fixture
def full(small_disk: Path) -> Iterator[tuple[Scene, Path, int]]:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (34 * MIB))
    scene = Scene(SmallDiskFactory(small_disk))
    scene.make_queues()
    yield scene, ballast, fill(scene)
    scene.store.close()


def test_a_full_disk_refuses_every_write_and_keeps_answering(full: tuple[Scene, Path, int]) -> None:
    scene, _, confirmed = full
    assert scene.refused.free_bytes < 2 * MIB  # type: ignore[attr-defined]
    before = scene.store.last_commit
    for _ in range(3):
        with pytest.raises(StoreFull):
            scene.enqueue()
    assert scene.store.last_commit == before
    assert scene.store.counters(WORK).ready == confirmed
    assert len(scene.store.ready(WORK, b"", None, 1_000_000)) == confirmed
    assert check_laws(scene.store) == []


def test_what_was_committed_before_the_disk_was_full_can_still_be_synced(
    full: tuple[Scene, Path, int],
) -> None:
    scene, _, confirmed = full
    scene.store.sync(scene.store.last_commit)
    assert scene.store.counters(WORK).ready == confirmed


def test_commits_go_on_by_themselves_when_room_returns(full: tuple[Scene, Path, int]) -> None:
    scene, ballast, confirmed = full
    boot = scene.store.boot
    ballast.unlink()
    scene.enqueue(100)
    scene.store.sync(scene.store.last_commit)
    assert scene.store.boot == boot
    assert scene.store.counters(WORK).ready == confirmed + 100
    assert check_laws(scene.store) == []
    scene.reopen()
    assert scene.store.counters(WORK).ready == confirmed + 100
    assert check_laws(scene.store) == []


def test_a_disk_too_full_to_open_again_still_gets_answers(
    full: tuple[Scene, Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, ballast, confirmed = full
    with monkeypatch.context() as patched:
        # Room that somebody else takes between our look and our write.
        patched.setattr(faults, "free_bytes", lambda path: 1 << 40)
        for _ in range(2):
            with pytest.raises(StoreFull):
                scene.enqueue()
            assert scene.store._mirror is not None, "it answers read-only"  # type: ignore[attr-defined]
            assert len(scene.store.ready(WORK, b"", None, 1_000_000)) == confirmed
    ballast.unlink()
    scene.enqueue(10)
    assert scene.store.counters(WORK).ready == confirmed + 10
    assert check_laws(scene.store) == []


def test_a_store_can_fill_the_disk_again_and_again(full: tuple[Scene, Path, int]) -> None:
    scene, ballast, confirmed = full
    for _ in range(2):
        ballast.unlink()
        scene.enqueue(10)
        ballast.write_bytes(b"x" * max(0, free(ballast.parent) - 2 * MIB))
        confirmed += 10 + fill(scene)
        assert scene.store.counters(WORK).ready == confirmed
    ballast.unlink()
    scene.reopen()
    assert scene.store.counters(WORK).ready == confirmed
    assert check_laws(scene.store) == []


def test_a_directory_left_by_a_crash_on_a_full_disk_is_sound(full: tuple[Scene, Path, int]) -> None:
    scene, _, confirmed = full
    report = verify(scene.factory.path)  # type: ignore[attr-defined]
    assert report.problems == []
    assert report.messages == confirmed


def test_a_sync_on_a_full_disk_leaves_a_mark_because_marks_need_no_room(
    full: tuple[Scene, Path, int], tmp_path: Path
) -> None:
    scene, ballast, _ = full
    path = scene.factory.path  # type: ignore[attr-defined]
    with ballast.open("ab") as more, contextlib.suppress(OSError):
        while True:
            os.write(more.fileno(), bytes(4096))
    assert free(path) == 0
    scene.store.sync(scene.store.last_commit)
    synced = scene.store._db.latest_sequence_number()  # type: ignore[attr-defined]
    # Only marks of a sync count after a restart.
    elsewhere = Path(shutil.copytree(path, tmp_path / "restarted"))
    set_boot(elsewhere, ANOTHER_BOOT)
    assert read_mark(elsewhere).sequence == synced


def test_a_write_that_a_full_disk_cut_short_is_dropped_by_the_next_open(
    full: tuple[Scene, Path, int], tmp_path: Path
) -> None:
    scene, _, confirmed = full
    left = Path(shutil.copytree(scene.factory.path, tmp_path / "left"))  # type: ignore[attr-defined]
    log = max(left.glob("*.log"))
    whole = log.read_bytes()
    framed = frame(batch(read_mark(left).sequence + 1, bytes(50_000)), len(whole))
    log.write_bytes(whole + framed[:20_000])
    assert verify(left).problems == []
    store = RocksStore.open(left)
    assert store.counters(WORK).ready == confirmed
    assert check_laws(store) == []
    store.close()


def free(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
