"""Writes of the key-value port: all or nothing, fenced by epoch, idempotent by commit number, durable."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.errors import BrokenInvariant, BrokerClosed, InvalidRequest, StaleEpoch
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import Batch, KeyValueStore, Table
from tests.conformance.kv.backends import Backend, everything, put_all

ROWS = [(table, b"key %d" % table, b"value %d" % table) for table in Table]


def test_a_new_store_is_empty(store: KeyValueStore) -> None:
    assert everything(store) == {table: [] for table in Table}
    assert store.last_commit == 0
    assert store.get(Table.META, b"fence") is None, "the backend's own rows are in no table"


def test_a_batch_changes_rows_in_all_tables_at_once(store: KeyValueStore) -> None:
    epoch = store.acquire()
    put_all(store, epoch, 1, ROWS)
    assert everything(store) == {table: [(key, value)] for table, key, value in ROWS}
    batch = Batch()
    batch.put(Table.META, b"key 0", b"new")
    batch.delete(Table.QUEUES, b"key 1")
    batch.delete(Table.QUEUES, b"was never there")
    batch.put(Table.RUNS, b"", b"an empty key")
    batch.put(Table.RUNS, b"empty value", b"")
    assert store.write(batch, epoch, 2)
    assert store.get(Table.META, b"key 0") == b"new"
    assert store.scan(Table.QUEUES, limit=9) == []
    assert store.get_many(Table.RUNS, [b"empty value", b""]) == [b"", b"an empty key"]


@pytest.mark.parametrize("way", ["reopen", "crash"])
def test_every_write_survives_a_reopening_and_a_killed_process(backend: Backend, way: str) -> None:
    store = backend.open()
    epoch = store.acquire()
    for commit in range(1, 21):
        put_all(store, epoch, commit, [(Table.CHUNKS, bytes([commit]), b"x" * commit)])
    before = everything(store)
    store = getattr(backend, way)(store)
    assert everything(store) == before
    assert store.last_commit == 20
    assert store.acquire() > epoch
    store.close()


def test_an_empty_batch_leaves_its_number(backend: Backend) -> None:
    store = backend.open()
    assert store.write(Batch(), store.acquire(), 7)
    assert store.last_commit == 7
    store = backend.crash(store)
    assert store.last_commit == 7
    store.close()


def test_the_same_commit_again_stores_nothing(backend: Backend) -> None:
    store = backend.open()
    epoch = store.acquire()
    put_all(store, epoch, 1, ROWS)
    batch = Batch()
    batch.put(Table.META, b"counter", b"1")
    batch.delete(Table.QUEUES, b"key 1")
    assert store.write(batch, epoch, 2)
    before = everything(store)
    assert not store.write(batch, epoch, 2), "the very same batch"
    again = Batch()
    again.put(Table.META, b"counter", b"2")
    assert not store.write(again, epoch, 2)
    assert everything(store) == before
    store = backend.crash(store)
    again = Batch()
    again.put(Table.META, b"counter", b"2")
    assert not store.write(again, epoch, 2), "known after a restart too"
    assert everything(store) == before
    assert store.last_commit == 2
    store.close()


def test_commit_numbers_rise_within_an_epoch_and_may_have_gaps(store: KeyValueStore) -> None:
    epoch = store.acquire()
    put_all(store, epoch, 5, [])
    put_all(store, epoch, 9, ROWS)
    before = everything(store)
    for lower in (8, 5, 1):
        batch = Batch()
        batch.put(Table.META, b"late", b"")
        with pytest.raises(BrokenInvariant, match=f"commit 9 .* got {lower}"):
            store.write(batch, epoch, lower)
    assert everything(store) == before
    put_all(store, store.acquire(), 3, [(Table.META, b"late", b"")])
    assert store.last_commit == 3, "a new owner numbers its commits as it likes"


def test_epochs_rise_and_a_former_owner_is_refused(backend: Backend) -> None:
    store = backend.open()
    former = store.acquire()
    put_all(store, former, 1, ROWS)
    before = everything(store)
    epoch = store.acquire()
    assert epoch > former
    for stale in (former, epoch + 1):
        batch = Batch()
        batch.put(Table.META, b"late", b"")
        with pytest.raises(StaleEpoch) as refused:
            store.write(batch, stale, 2)
        assert (refused.value.epoch, refused.value.current) == (stale, epoch)
    with pytest.raises(StaleEpoch):
        store.write(Batch(), former, 1)
    assert everything(store) == before
    assert store.last_commit == 1
    put_all(store, epoch, 2, [(Table.META, b"in time", b"")])
    for way in (backend.reopen, backend.crash):
        store = way(store)
        former, epoch = epoch, store.acquire()
        assert epoch > former
        with pytest.raises(StaleEpoch):
            store.write(Batch(), former, 99)
    store.close()


def test_a_write_before_any_acquire_is_refused(store: KeyValueStore) -> None:
    with pytest.raises(StaleEpoch):
        store.write(Batch(), 1, 1)


def test_two_owners_of_one_dictionary_see_the_same_rows_and_the_first_is_fenced_off() -> None:
    first = DictionaryStore()
    second = DictionaryStore(first.data)
    former = first.acquire()
    put_all(first, former, 1, ROWS)
    epoch = second.acquire()
    with pytest.raises(StaleEpoch):
        first.write(Batch(), former, 2)
    put_all(second, epoch, 2, [(Table.META, b"second", b"")])
    assert first.get(Table.META, b"second") == b""
    second.close()
    assert first.last_commit == 2


def test_a_deleted_range_includes_its_start_and_not_its_end(store: KeyValueStore) -> None:
    epoch = store.acquire()
    keys = [b"a", b"b", b"b\0", b"bz", b"c", b"d"]
    put_all(store, epoch, 1, [(table, key, b"") for key in keys for table in (Table.PAGES, Table.OWN)])
    batch = Batch()
    batch.delete_range(Table.PAGES, b"b", b"c")
    batch.delete_range(Table.PAGES, b"d", b"d")
    batch.delete_range(Table.PAGES, b"d", b"a")
    batch.put(Table.PAGES, b"c\0", b"")
    assert store.write(batch, epoch, 2)
    assert [key for key, _ in store.scan(Table.PAGES, limit=99)] == [b"a", b"c", b"c\0", b"d"]
    assert store.get_many(Table.PAGES, [b"b", b"bz", b"c"]) == [None, None, b""]
    assert [key for key, _ in store.scan(Table.OWN, limit=99)] == keys


def test_a_deleted_range_stays_deleted_and_can_be_filled_again(backend: Backend) -> None:
    store = backend.open()
    epoch = store.acquire()
    put_all(store, epoch, 1, [(Table.PAGES, bytes([n]), b"old") for n in range(10)])
    batch = Batch()
    batch.delete_range(Table.PAGES, b"\2", b"\7")
    store.write(batch, epoch, 2)
    put_all(store, epoch, 3, [(Table.PAGES, b"\4", b"new")])
    expected = [(bytes([n]), b"old") for n in (0, 1, 7, 8, 9)]
    expected.insert(2, (b"\4", b"new"))
    assert store.scan(Table.PAGES, limit=99) == expected
    for way in (backend.crash, backend.reopen):
        store = way(store)
        assert store.scan(Table.PAGES, limit=99) == expected
    store.close()


def test_the_dictionary_refuses_a_key_that_occurs_twice_in_a_batch() -> None:
    store = DictionaryStore()
    epoch, batch = store.acquire(), Batch()
    batch.put(Table.META, b"a", b"b")
    batch.delete(Table.META, b"a")
    with pytest.raises(BrokenInvariant, match="61 of META once"):
        store.write(batch, epoch, 1)
    batch.deletes.clear()
    batch.delete_range(Table.META, b"", b"b")
    with pytest.raises(BrokenInvariant, match="no put in the range"):
        store.write(batch, epoch, 1)
    assert store.last_commit == 0
    assert everything(store) == everything(DictionaryStore())


def test_a_checkpoint_opens_and_equals_the_store_at_its_moment(backend: Backend, directory: Path) -> None:
    store = backend.open()
    epoch = store.acquire()
    put_all(store, epoch, 4, ROWS)
    expected = everything(store)
    copies = directory / "new folder"
    store.checkpoint(copies / "copy")
    put_all(store, epoch, 5, [(Table.META, b"later", b"")])
    copy = backend.open_copy(copies / "copy")
    assert everything(copy) == expected
    assert copy.last_commit == 4
    assert copy.acquire() > epoch
    put_all(copy, epoch + 1, 5, [(Table.META, b"of the copy", b"")])
    copy.close()
    assert store.get(Table.META, b"of the copy") is None
    assert store.get(Table.META, b"later") == b""
    assert [path.name for path in copies.iterdir()] == ["copy"], "nothing is left beside it"
    with pytest.raises(InvalidRequest, match="does not exist yet"):
        store.checkpoint(copies / "copy")
    store.close()


def test_a_closed_store_refuses_everything_and_closes_again_quietly(
    store: KeyValueStore, directory: Path
) -> None:
    epoch, batch = store.acquire(), Batch()
    store.scan(Table.META, limit=1)
    store.close()
    store.close()
    for call in (
        lambda: store.last_commit,
        store.acquire,
        lambda: store.write(batch, epoch, 1),
        store.sync,
        lambda: store.get(Table.META, b"a"),
        lambda: store.get_many(Table.META, [b"a"]),
        lambda: store.scan(Table.META, limit=1),
        lambda: store.scan(Table.META, b"b", b"a", limit=1),
        lambda: store.first_rows(Table.META, limit=1),
        store.room,
        lambda: store.check_room(1),
        lambda: store.checkpoint(directory / "copy"),
    ):
        with pytest.raises(BrokerClosed):
            call()
    assert not (directory / "copy").exists()


def test_there_is_room_on_a_disk_that_is_not_full(store: KeyValueStore) -> None:
    assert store.room(in_reserve=True) >= store.room()
    store.check_room(1, in_reserve=True)
