"""How each backend begins, ends, crashes and comes back. A new backend needs one more class, and no new test."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import Batch, KeyValueStore, Row, Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.testing.faulty import FaultyStore

CACHE_BYTES = 4 << 20
#: More rows than any test stores.
ALL = 1_000_000


class Backend(Protocol):
    def open(self) -> KeyValueStore: ...

    def reopen(self, store: KeyValueStore) -> KeyValueStore:
        """After an orderly close."""
        ...

    def crash(self, store: KeyValueStore) -> KeyValueStore:
        """As after a killed process: nothing was closed or flushed."""
        ...

    def open_copy(self, path: Path) -> KeyValueStore:
        """Open a checkpoint."""
        ...


class DictionaryBackend:
    def open(self) -> KeyValueStore:
        return DictionaryStore()

    def reopen(self, store: KeyValueStore) -> KeyValueStore:
        assert isinstance(store, DictionaryStore)
        store.close()
        return DictionaryStore(store.data)

    crash = reopen

    def open_copy(self, path: Path) -> KeyValueStore:
        return DictionaryStore.open_copy(path)


class RocksBackend:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lives = 0

    @property
    def path(self) -> Path:
        return self.directory / f"life-{self.lives}"

    def open(self) -> KeyValueStore:
        return self.open_copy(self.path)

    def reopen(self, store: KeyValueStore) -> KeyValueStore:
        store.close()
        return self.open()

    def crash(self, store: KeyValueStore) -> KeyValueStore:
        left = self.path
        self.lives += 1
        shutil.copytree(left, self.path)
        store.close()
        return self.open()

    def open_copy(self, path: Path) -> KeyValueStore:
        return RocksKeyValueStore.open(path, cache_bytes=CACHE_BYTES)


class FaultyBackend:
    """The wrapper without a fault keeps every promise of the backend inside."""

    def __init__(self, inside: Backend, *, forgets: bool) -> None:
        self.inside = inside
        self.forgets = forgets

    def open(self) -> KeyValueStore:
        return FaultyStore(self.inside.open(), forgets=self.forgets)

    def reopen(self, store: KeyValueStore) -> KeyValueStore:
        assert isinstance(store, FaultyStore)
        return FaultyStore(self.inside.reopen(store.inner), forgets=self.forgets)

    def crash(self, store: KeyValueStore) -> KeyValueStore:
        assert isinstance(store, FaultyStore)
        return FaultyStore(self.inside.crash(store.inner), forgets=self.forgets)

    def open_copy(self, path: Path) -> KeyValueStore:
        return FaultyStore(self.inside.open_copy(path), forgets=self.forgets)


BACKENDS = ("dictionary", "rocks", "faulty dictionary", "faulty rocks")


def make_backend(name: str, directory: Path) -> Backend:
    inside = DictionaryBackend() if name.endswith("dictionary") else RocksBackend(directory)
    return FaultyBackend(inside, forgets=True) if name.startswith("faulty") else inside


def put_all(
    store: KeyValueStore, epoch: int, commit: int, rows: Iterable[tuple[Table, bytes, bytes]]
) -> None:
    batch = Batch()
    for table, key, value in rows:
        batch.put(table, key, value)
    assert store.write(batch, epoch, commit)


def everything(store: KeyValueStore) -> dict[Table, list[Row]]:
    return {table: store.scan(table, limit=ALL) for table in Table}
