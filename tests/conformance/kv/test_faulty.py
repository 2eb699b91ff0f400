"""The wrapper that fails at a chosen step: each fault does what its name says, on both backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.errors import StoreFailed, StoreFull
from fairlead.store.kv.port import Batch, KeyValueStore, Table
from fairlead.testing.faulty import FaultyStore, Killed
from tests.conformance.kv.backends import ALL, everything, make_backend, put_all

FIRST = [(Table.META, b"a", b"1"), (Table.OWN, b"b", b"1"), (Table.OWN, b"c", b"1")]
SECOND = [
    (Table.META, b"a", b"2"),
    (Table.OWN, b"d", b"2"),
    (Table.RUNS, b"e", b"2"),
    (Table.RUNS, b"f", b"2"),
]


@pytest.fixture(params=["dictionary", "rocks"])
def inner(request: pytest.FixtureRequest, directory: Path) -> Iterator[KeyValueStore]:
    store = make_backend(request.param, directory).open()
    yield store
    store.close()


@pytest.fixture
def store(inner: KeyValueStore) -> FaultyStore:
    """With one synced write."""
    store = FaultyStore(inner, forgets=True)
    put_all(store, store.acquire(), 1, FIRST)
    store.sync()
    return store


def write_second(store: FaultyStore) -> None:
    put_all(store, 1, 2, SECOND)


def test_a_step_that_fails_changes_nothing_and_the_store_lives_on(store: FaultyStore) -> None:
    before = everything(store.inner)
    store.arm(1, "fail")
    with pytest.raises(StoreFull, match="simulated disk"):
        write_second(store)
    assert store.struck
    assert everything(store.inner) == before
    write_second(store)
    store.arm(2, "fail", error=StoreFailed("told to"))
    store.sync()
    with pytest.raises(StoreFailed, match="told to"):
        store.get(Table.META, b"a")
    assert store.get(Table.META, b"a") == b"2"


@pytest.mark.parametrize(("fault", "is_stored"), [("die_before", False), ("die_after", True)])
def test_a_process_dies_before_or_after_a_write(store: FaultyStore, fault: str, is_stored: bool) -> None:
    store.arm(1, fault)  # type: ignore[arg-type]
    with pytest.raises(Killed):
        write_second(store)
    for call in (store.sync, store.acquire, lambda: store.get(Table.META, b"a"), lambda: store.last_commit):
        with pytest.raises(Killed):
            call()
    again = FaultyStore(store.inner)
    assert again.last_commit == 1 + is_stored
    assert again.get(Table.META, b"a") == (b"2" if is_stored else b"1")


def test_a_power_cut_takes_everything_since_the_last_sync(store: FaultyStore) -> None:
    synced = everything(store.inner)
    write_second(store)
    batch = Batch()
    batch.delete_range(Table.OWN, b"a", b"c")
    batch.delete(Table.RUNS, b"e")
    batch.put(Table.META, b"g", b"3")
    store.arm(1, "power_cut")
    with pytest.raises(Killed):
        store.write(batch, 1, 3)
    assert everything(store.inner) == synced
    assert store.inner.last_commit == 1
    again = FaultyStore(store.inner, forgets=True)
    put_all(again, again.acquire(), 2, SECOND)
    again.sync()
    synced = everything(again)
    put_all(again, again.acquire(), 3, [])
    again.cut_power()
    assert everything(again.inner) == synced
    assert again.inner.last_commit == 2


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_power_cut_may_leave_the_first_of_the_writes_that_were_not_synced(
    inner: KeyValueStore, kept: int
) -> None:
    store = FaultyStore(inner, forgets=True)
    epoch = store.acquire()
    seen = [everything(inner)]
    for commit, value in ((1, b"1"), (2, b"2")):
        put_all(store, epoch, commit, [(Table.META, b"a", value), (Table.OWN, value, value)])
        seen.append(everything(inner))
    assert store.unsynced == 2
    store.cut_power(kept=kept)
    assert everything(inner) == seen[kept]
    assert inner.last_commit == kept


def test_a_power_cut_during_a_sync_keeps_the_synced_writes(store: FaultyStore) -> None:
    write_second(store)
    store.arm(1, "power_cut", only=["sync"])
    with pytest.raises(Killed):
        store.sync()
    assert store.inner.get(Table.META, b"a") == b"2"


def test_only_a_wrapper_that_forgets_can_cut_the_power(inner: KeyValueStore) -> None:
    store = FaultyStore(inner)
    with pytest.raises(ValueError, match="forgets=True"):
        store.arm(1, "power_cut")
    with pytest.raises(ValueError, match="forgets=True"):
        store.cut_power()


def test_a_torn_write_is_noticed_by_a_check_that_writes_are_whole(store: FaultyStore) -> None:
    store.arm(1, "tear")
    with pytest.raises(Killed):
        write_second(store)
    found = [store.inner.get(table, key) == value for table, key, value in SECOND]
    assert any(found)
    assert not all(found)


def test_a_delayed_step_waits_and_then_takes_place(store: FaultyStore) -> None:
    seen: list[tuple[str, int]] = []
    store.on_delay = lambda method: seen.append((method, store.inner.last_commit))
    store.arm(1, "delay", only=["write"])
    store.sync()
    write_second(store)
    assert seen == [("write", 1)]
    assert store.last_commit == 2


def test_the_nth_step_of_chosen_methods_is_counted(store: FaultyStore) -> None:
    store.arm(3, "die_before", only=["write", "sync"])
    write_second(store)
    store.scan(Table.OWN, limit=ALL)
    store.sync()
    assert not store.struck
    with pytest.raises(Killed):
        put_all(store, 1, 3, [])
    assert store.struck
    again = FaultyStore(store.inner)
    again.arm(1, "fail")
    again.arm(0, "fail")
    again.get(Table.META, b"a")


def test_reads_are_counted_by_method_and_nothing_else_is(store: FaultyStore) -> None:
    assert store.reads == Counter()
    store.get(Table.META, b"a")
    store.get_many(Table.META, [b"a"] * 50)
    store.scan(Table.META, limit=5)
    store.scan(Table.META, limit=500)
    store.first_rows(Table.META, limit=5)
    store.check_room(1)
    write_second(store)
    assert store.reads == Counter(get=1, get_many=1, scan=2, first_rows=1)
    assert store.calls["write"] == 2
    assert store.calls["sync"] == 1
