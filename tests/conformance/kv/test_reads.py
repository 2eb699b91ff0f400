"""Reads of the key-value port against a plain dictionary."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.store.kv.port import Batch, KeyValueStore, Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from tests.conformance.kv.backends import ALL, BACKENDS, make_backend, put_all
from tests.sampling import sampled

TABLE = Table.RUNS
ENDLESS = b"\xff" * 40

keys = st.binary(max_size=3) | st.lists(st.sampled_from([0, 1, 254, 255]), max_size=4).map(bytes)
changes = st.dictionaries(keys, st.none() | st.binary(max_size=3), max_size=12)


class Numbered:
    """A store that several examples share, each on an empty table."""

    def __init__(self, store: KeyValueStore) -> None:
        self.store = store
        self.epoch = store.acquire()
        self.commit = 0

    def write(self, changed: dict[bytes, bytes | None]) -> None:
        batch = Batch()
        for key, value in changed.items():
            if value is None:
                batch.delete(TABLE, key)
            else:
                batch.put(TABLE, key, value)
        self.commit += 1
        assert self.store.write(batch, self.epoch, self.commit)

    def clear(self) -> None:
        batch = Batch()
        batch.delete_range(TABLE, b"", ENDLESS)
        self.commit += 1
        assert self.store.write(batch, self.epoch, self.commit)


@pytest.fixture(scope="module", params=BACKENDS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Numbered]:
    path: Path = tmp_path_factory.mktemp("kv")
    store = make_backend(request.param, path).open()
    yield Numbered(store)
    store.close()


@settings(max_examples=sampled(20, of=60), deadline=None)
@given(
    rounds=st.lists(changes, min_size=1, max_size=3),
    questions=st.lists(st.tuples(keys, st.none() | keys, st.integers(0, 6), st.booleans()), max_size=6),
)
def test_scans_equal_those_of_a_model(
    shared: Numbered,
    rounds: list[dict[bytes, bytes | None]],
    questions: list[tuple[bytes, bytes | None, int, bool]],
) -> None:
    shared.clear()
    model: dict[bytes, bytes | None] = {}
    for changed in rounds:
        shared.write(changed)
        model |= changed
        rows = sorted((key, value) for key, value in model.items() if value is not None)
        assert shared.store.scan(TABLE, limit=ALL) == rows
        assert shared.store.scan(TABLE, limit=ALL, reverse=True) == rows[::-1]
        stored = [key for key, _ in rows[:4]]
        at_rows = [(low, high, 3, back) for low in stored for high in stored for back in (False, True)]
        for start, end, limit, reverse in [*questions, *at_rows]:
            between = [row for row in rows if start <= row[0] and (end is None or row[0] < end)]
            expected = between[::-1][:limit] if reverse else between[:limit]
            assert shared.store.scan(TABLE, start, end, limit=limit, reverse=reverse) == expected
        ranges = [(start, end) for start, end, _, _ in at_rows]
        for reverse in (False, True):
            found = shared.store.scan_many(TABLE, ranges, limit=3, reverse=reverse)
            assert found == [shared.store.scan(TABLE, *one, limit=3, reverse=reverse) for one in ranges]
        assert shared.store.scan_many(TABLE, ranges, limit=0) == [[] for _ in ranges]
        asked = [*model, b"never there", *model]
        assert shared.store.get_many(TABLE, asked) == [model.get(key) for key in asked]
        assert [shared.store.get(TABLE, key) for key in asked] == [model.get(key) for key in asked]
    assert shared.store.get_many(TABLE, []) == []


@st.composite
def grouped_keys(draw: st.DrawFn, suffix_length: int) -> list[bytes]:
    """Group names all begin with their length, so that none is the beginning of another."""
    names = st.binary(max_size=3).map(lambda name: bytes([len(name)]) + name)
    suffixes = st.lists(
        st.sampled_from([0, 1, 254, 255]), min_size=suffix_length, max_size=suffix_length
    ).map(bytes)
    return draw(st.lists(st.tuples(names, suffixes).map(b"".join), max_size=25, unique=True))


@settings(max_examples=sampled(20, of=60), deadline=None)
@given(data=st.data(), suffix_length=st.integers(1, 9), limit=st.integers(1, 4))
def test_first_rows_of_groups_equal_those_of_a_model(
    shared: Numbered, data: st.DataObject, suffix_length: int, limit: int
) -> None:
    stored = data.draw(grouped_keys(suffix_length))
    prefix = data.draw(st.sampled_from([b"", b"\0", b"\1", b"\2", b"\2\0", b"\xff"]))
    shared.clear()
    shared.write({key: b"v" + key for key in stored})
    firsts: dict[bytes, bytes] = {}
    for key in sorted(stored):
        if key.startswith(prefix):
            firsts.setdefault(key[:-suffix_length], key)
    expected = [(key, b"v" + key) for key in firsts.values()]

    def page(after: bytes | None, size: int) -> list[tuple[bytes, bytes]]:
        return shared.store.first_rows(
            TABLE, suffix_length=suffix_length, prefix=prefix, after=after, limit=size
        )

    assert page(None, ALL) == expected
    paged: list[tuple[bytes, bytes]] = []
    while found := page(paged[-1][0] if paged else None, limit):
        assert len(found) <= limit
        paged += found
    assert paged == expected
    for key in stored[:3]:
        behind = [row for row in expected if row[0][:-suffix_length] > key[:-suffix_length]]
        if key.startswith(prefix):
            assert page(key, ALL) == behind, "any key of a group continues behind it"
    assert page(None, 0) == []


def test_a_scan_after_a_write_sees_it_although_a_cursor_was_kept(store: KeyValueStore) -> None:
    epoch = store.acquire()
    for commit in range(1, 30):
        assert len(store.scan(Table.COLD, limit=99)) == commit - 1
        put_all(store, epoch, commit, [(Table.COLD, bytes([commit]) * 9, b"")])
        assert store.scan(Table.COLD, limit=1, reverse=True) == [(bytes([commit]) * 9, b"")]
        assert store.first_rows(Table.COLD, limit=99)[-1] == (bytes([commit]) * 9, b"")


def test_several_threads_read_beside_one_that_writes(store: KeyValueStore) -> None:
    epoch = store.acquire()
    rows = [(b"%03d" % number + bytes(8), b"x" * 50) for number in range(200)]
    put_all(store, epoch, 1, [(Table.DUE, key, value) for key, value in rows])
    wrong: list[object] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                for found in (
                    store.scan(Table.DUE, limit=ALL),
                    store.scan(Table.DUE, limit=ALL, reverse=True)[::-1],
                    store.first_rows(Table.DUE, limit=ALL),
                ):
                    if found != rows:
                        wrong.append(found)
                if store.get_many(Table.DUE, [key for key, _ in rows]) != [value for _, value in rows]:
                    wrong.append("get_many")
        except BaseException as trouble:
            wrong.append(trouble)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for commit in range(2, 150):
        put_all(store, epoch, commit, [(Table.META, bytes([commit]), b"")])
        if commit % 10 == 0:
            store.sync()
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong


def test_rocksdb_keeps_one_cursor_per_table_until_the_next_write(directory: Path) -> None:
    store = RocksKeyValueStore.open(directory / "data")
    epoch = store.acquire()
    put_all(store, epoch, 1, [(Table.COLD, b"a", b"")])
    store.scan(Table.COLD, limit=1)
    kept = store._database._cursors[Table.COLD]
    store.scan(Table.COLD, b"b", limit=1, reverse=True)
    store.first_rows(Table.COLD, limit=1)
    store.scan(Table.DUE, limit=1)
    assert store._database._cursors[Table.COLD][1] is kept[1]
    put_all(store, epoch, 2, [])
    assert not store._database._cursors
    store.close()


def test_the_end_of_a_kept_cursor_stays_where_it_is(directory: Path) -> None:
    """RocksDB looks for the end in the bytes that the first scan was given."""
    store = RocksKeyValueStore.open(directory / "data")
    put_all(store, store.acquire(), 1, [(Table.COLD, bytes([0, at]), b"row") for at in range(50)])
    for _ in range(3):
        assert len(store.scan(Table.COLD, b"", bytes(bytearray([0, 7])), limit=100)) == 7
        # They take the place of bytes that nobody keeps.
        others = [bytes(bytearray([9, at])) for at in range(200)]
        assert len(others) == 200
    store.close()


def test_a_cursor_that_is_put_back_too_late_is_not_used(directory: Path) -> None:
    store = RocksKeyValueStore.open(directory / "data")
    epoch = store.acquire()
    store.scan(Table.COLD, limit=1)
    before = store._database._cursors[Table.COLD]
    put_all(store, epoch, 1, [(Table.COLD, b"a", b"")])
    # As a reader does that was between its last look and this line while the write went on.
    store._database._cursors[Table.COLD] = before
    assert store.scan(Table.COLD, limit=1) == [(b"a", b"")]
    store.close()


def test_a_read_during_which_a_write_happens_keeps_no_cursor(directory: Path) -> None:
    store = RocksKeyValueStore.open(directory / "data")
    epoch = store.acquire()

    def write_meanwhile(cursor: object) -> list[tuple[bytes, bytes]]:
        put_all(store, epoch, 1, [(Table.COLD, b"a", b"")])
        return []

    store._database.read_by_cursor(Table.COLD, write_meanwhile)
    assert not store._database._cursors
    assert store.scan(Table.COLD, limit=1) == [(b"a", b"")]
    store.close()
