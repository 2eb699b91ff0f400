"""What only a store on disk can show: shared syncs, a sync that fails, and who may open a directory."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import threading
import zlib
from pathlib import Path

import pytest

from fairlead.errors import (
    BrokenInvariant,
    BrokerClosed,
    FormatTooNew,
    InvalidRequest,
    StoreCorrupt,
    StoreFailed,
    StoreLocked,
)
from fairlead.model.facts import ConfigSet, Enqueued, QueueSaved, QueueUnlinked
from fairlead.model.queue import Counters, QueueConfig, QueueRecord
from fairlead.store.laws import check_laws
from fairlead.store.rocks import RocksStore
from fairlead.store.rocks.format import FORMAT_FILE
from fairlead.store.rocks.marks import Mark, write_mark
from fairlead.store.verify import verify
from tests.conformance.scene import WORK, RocksFactory, Scene


def commit_some(store: RocksStore, count: int) -> list[int]:
    return [store.commit([ConfigSet("n", str(n))]) for n in range(count)]


def sync_beside_each_other(store: RocksStore, commits: list[int]) -> list[threading.Thread]:
    threads = [threading.Thread(target=store.sync, args=(commit,)) for commit in commits]
    for thread in threads:
        thread.start()
    return threads


def test_callers_that_come_together_share_one_sync(rocks: RocksFactory) -> None:
    store = RocksStore.open(rocks.path)
    for thread in sync_beside_each_other(store, commit_some(store, 8)):
        thread.join()
    assert store.syncs == 1
    store.close()


def test_callers_that_come_during_a_sync_share_the_next_one(
    rocks: RocksFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RocksStore.open(rocks.path)
    entered, go_on, sync_logs = threading.Event(), threading.Event(), store._sync_logs

    def slow_disk() -> None:
        entered.set()
        go_on.wait()
        sync_logs()

    monkeypatch.setattr(store, "_sync_logs", slow_disk)
    threads = sync_beside_each_other(store, commit_some(store, 1))
    entered.wait()
    threads += sync_beside_each_other(store, commit_some(store, 7))
    go_on.set()
    for thread in threads:
        thread.join()
    assert store.syncs == 2
    store.close()


def test_a_failed_sync_stops_the_store_and_loses_nothing(
    rocks: RocksFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RocksStore.open(rocks.path)
    (commit,) = commit_some(store, 1)

    def broken_disk() -> None:
        raise OSError("While fdatasync: Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(store, "_sync_logs", broken_disk)
        with pytest.raises(StoreFailed, match="Input/output"):
            store.sync(commit)
    for call in (lambda: store.sync(commit), lambda: store.commit([ConfigSet("n", "again")])):
        with pytest.raises(StoreFailed, match="Input/output"):
            call()
    store.close()
    with RocksFactoryOpened(rocks.path) as again:
        assert again.last_commit == commit
        assert again.config() == {"n": "0"}


def test_a_mark_that_cannot_be_written_fails_a_sync_and_not_a_commit(rocks: RocksFactory) -> None:
    store = RocksStore.open(rocks.path)
    assert store._marks is not None
    os.close(store._marks._file)
    (commit,) = commit_some(store, 1)
    with pytest.raises(StoreFailed, match="Bad file descriptor"):
        store.sync(commit)


def test_a_store_whose_directory_is_gone_can_be_closed(rocks: RocksFactory) -> None:
    store = RocksStore.open(rocks.path)
    commit_some(store, 1)
    shutil.rmtree(rocks.path)
    store.close()
    with RocksFactoryOpened(rocks.path) as new:
        assert new.boot == 1


class RocksFactoryOpened:
    def __init__(self, path: Path) -> None:
        self.store = RocksStore.open(path)

    def __enter__(self) -> RocksStore:
        return self.store

    def __exit__(self, *_: object) -> None:
        self.store.close()


def test_the_same_process_cannot_open_a_directory_twice(rocks: RocksFactory) -> None:
    with RocksFactoryOpened(rocks.path) as store:
        with pytest.raises(StoreLocked, match=r"life-0"):
            RocksStore.open(rocks.path)
        assert store.commit([ConfigSet("a", "b")])


def test_an_error_that_somebody_keeps_does_not_keep_the_directory_open(rocks: RocksFactory) -> None:
    store = RocksStore.open(rocks.path)
    with pytest.raises(BrokenInvariant) as kept:
        store.commit([ConfigSet("a", "b"), QueueUnlinked(77, "nobody")])
    with pytest.raises(BrokenInvariant) as also_kept:
        store.commit(
            [QueueSaved(QueueRecord(1, "q", QueueConfig(), 0)), ConfigSet("a", "b"), Enqueued(77, [])]
        )
    store.close()
    RocksStore.open(rocks.path).close()
    assert kept.value is not also_kept.value


def _try_to_open(path: Path, answer: multiprocessing.Queue[str]) -> None:
    try:
        RocksStore.open(path).close()
        answer.put("opened")
    except StoreLocked as refused:
        answer.put(refused.code)


def test_a_second_process_is_refused_until_the_first_has_closed(rocks: RocksFactory) -> None:
    # Spawned: a forked child would inherit the first process's locks and threads.
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    with RocksFactoryOpened(rocks.path):
        child = context.Process(target=_try_to_open, args=(rocks.path, answer))
        child.start()
        child.join()
        assert answer.get(timeout=10) == "store_locked"
    child = context.Process(target=_try_to_open, args=(rocks.path, answer))
    child.start()
    child.join()
    assert answer.get(timeout=10) == "opened"


def test_a_newer_format_is_refused_before_anything_is_touched(rocks: RocksFactory) -> None:
    RocksStore.open(rocks.path).close()
    (rocks.path / FORMAT_FILE).write_bytes(b"2 %08x\n" % zlib.crc32(b"2"))
    before = fingerprints(rocks.path)
    with pytest.raises(FormatTooNew, match="format 1 or older, got 2"):
        RocksStore.open(rocks.path)
    with pytest.raises(FormatTooNew):
        verify(rocks.path)
    assert fingerprints(rocks.path) == before


@pytest.mark.parametrize("garbage", [b"", b"one", b"\xff\xfe", b"-1", b"0", b"1", b"2 00000000\n"])
def test_a_format_file_that_makes_no_sense_is_corrupt(rocks: RocksFactory, garbage: bytes) -> None:
    RocksStore.open(rocks.path).close()
    (rocks.path / FORMAT_FILE).write_bytes(garbage)
    with pytest.raises(StoreCorrupt, match=FORMAT_FILE):
        RocksStore.open(rocks.path)


def test_a_directory_with_somebody_elses_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(InvalidRequest, match="path"):
        RocksStore.open(tmp_path)
    with pytest.raises(InvalidRequest, match="path"):
        RocksStore.open(tmp_path / "thesis.tex")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_directory_whose_making_was_cut_short_is_made_again(tmp_path: Path) -> None:
    (tmp_path / (FORMAT_FILE + ".tmp")).write_bytes(b"")
    with RocksFactoryOpened(tmp_path) as store:
        assert store.boot == 1


def test_a_directory_whose_database_was_still_being_made_is_made_again(tmp_path: Path) -> None:
    made, cut_short = tmp_path / "made", tmp_path / "cut short"
    RocksStore.open(made).close()
    cut_short.mkdir()
    write_mark(cut_short, Mark())
    for name in (FORMAT_FILE, "IDENTITY", "LOCK", "rocksdict-config.json"):
        (cut_short / name).write_bytes((made / name).read_bytes())
    (cut_short / "MANIFEST-000001").write_bytes(b"half a manife")
    (cut_short / "000001.dbtmp").write_bytes(b"MANIFEST-000001\n")
    with RocksFactoryOpened(cut_short) as store:
        assert store.boot == 1


def test_a_directory_without_its_current_file_is_not_taken_for_a_new_one(rocks: RocksFactory) -> None:
    with RocksFactoryOpened(rocks.path) as store:
        store.commit([ConfigSet("a", "b")])
    (rocks.path / "CURRENT").unlink()
    with pytest.raises(StoreCorrupt, match="CURRENT"):
        RocksStore.open(rocks.path)


def test_a_checkpoint_is_a_consistent_copy_that_opens_by_itself(rocks_scene: Scene, tmp_path: Path) -> None:
    store, copy = rocks_scene.store, tmp_path / "backups" / "monday"
    rocks_scene.enqueue(50)
    rocks_scene.lease(rocks_scene.enqueue(5))
    store.checkpoint(copy)
    rocks_scene.enqueue(10)
    assert verify(copy).problems == []
    with RocksFactoryOpened(copy) as copied:
        assert copied.counters(WORK).messages == 55
        assert check_laws(copied) == []
        assert copied.commit([]) == copied.last_commit
    assert store.counters(WORK).messages == 65


def test_a_checkpoint_never_overwrites(rocks_scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="path"):
        rocks_scene.store.checkpoint(tmp_path)


def test_a_read_only_store_answers_but_takes_no_commits_and_changes_no_byte(
    rocks_scene: Scene, rocks: RocksFactory
) -> None:
    rocks_scene.enqueue(20)
    rocks_scene.crash()
    rocks_scene.store.close()
    before = fingerprints(rocks.path)
    store = RocksStore.open(rocks.path, read_only=True)
    assert store.counters(WORK).ready == 20
    assert store.boot == 2
    with pytest.raises(InvalidRequest):
        store.commit([])
    store.close()
    assert fingerprints(rocks.path) == before


def test_verify_reads_what_a_crash_left_and_changes_no_byte(rocks_scene: Scene, rocks: RocksFactory) -> None:
    rocks_scene.enqueue(20, expires_ms=5, dedup_key="d", dedup_until_ms=9)
    rocks_scene.lease(rocks_scene.enqueue(4))
    live = rocks.path
    before = fingerprints(live)
    report = verify(live)
    assert fingerprints(live) == before
    assert (report.ok, report.problems, report.messages, report.queues, report.leases) == (True, [], 24, 3, 4)


def test_verify_refuses_what_is_not_a_data_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        verify(tmp_path)
    with pytest.raises(InvalidRequest):
        verify(tmp_path / "nothing")


def test_a_closed_store_answers_no_questions(rocks: RocksFactory) -> None:
    store = RocksStore.open(rocks.path)
    store.close()
    with pytest.raises(BrokerClosed):
        store.messages([b"\1" * 16])
    with pytest.raises(BrokerClosed):
        store.sync(1)


def test_bodies_can_be_read_beside_commits(rocks_scene: Scene) -> None:
    messages = rocks_scene.enqueue(100)
    ids, wrong = [message.id for message in messages], []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            if rocks_scene.store.messages(ids) != messages:
                wrong.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        rocks_scene.enqueue(10, key="other")
    stop.set()
    reader.join()
    assert not wrong
    assert rocks_scene.store.counters(WORK) == Counters(ready=600, bytes=600 * 6 + 90)


def fingerprints(path: Path) -> dict[str, tuple[str, int]]:
    return {
        file.name: (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns)
        for file in path.iterdir()
    }
