"""Batches of the RocksDB backend: each wraps RocksDB's own write batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocksdict import ColumnFamily, WriteBatch

from fairlead.store.kv.port import Table

#: Lists the keys of a range, at most so many.
FindKeys = Callable[[Table, bytes, bytes, int], list[bytes]]
#: A longer range is deleted as a range also on a low disk: its list of keys would need too much room itself.
MAX_LISTED_KEYS = 20_000


class RocksBatch:
    """`families` is the store's own list, so a batch stays usable when the database is opened again."""

    __slots__ = ("_families", "deletes", "put_keys", "raw", "written")

    def __init__(self, families: list[ColumnFamily]) -> None:
        self.raw = WriteBatch(raw_mode=True)
        self._families = families
        self.put_keys: list[tuple[Table, bytes]] = []
        self.deletes = False
        self.written = False

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self.put_keys.append((table, key))
        self.raw.put(key, value, self._families[table])

    def delete(self, table: Table, key: bytes) -> None:
        self.deletes = True
        self.raw.delete(key, self._families[table])

    def delete_range(self, table: Table, start: bytes, end: bytes) -> None:
        # RocksDB fails a write with a range that ends before it starts.
        if start < end:
            self.deletes = True
            self.raw.delete_range(start, end, self._families[table])


class RepeatableBatch(RocksBatch):
    """The batch for a disk that is low. It costs more, and differs in two ways.

    It remembers its changes, because RocksDB consumes a batch even when its write finds the disk full.
    It deletes the rows of a range one by one: RocksDB's count of deleted rows, which tells how large the
    output of a compaction will be, does not include those that a range deletes.
    """

    __slots__ = ("_changes", "_find_keys")

    def __init__(self, families: list[ColumnFamily], find_keys: FindKeys) -> None:
        super().__init__(families)
        self._changes: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._find_keys = find_keys

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self._changes.append((RocksBatch.put, (table, key, value)))
        super().put(table, key, value)

    def delete(self, table: Table, key: bytes) -> None:
        self._changes.append((RocksBatch.delete, (table, key)))
        super().delete(table, key)

    def delete_range(self, table: Table, start: bytes, end: bytes) -> None:
        keys = self._find_keys(table, start, end, MAX_LISTED_KEYS + 1)
        if len(keys) > MAX_LISTED_KEYS:
            self._changes.append((RocksBatch.delete_range, (table, start, end)))
            super().delete_range(table, start, end)
            return
        for key in keys:
            self.delete(table, key)

    def renew(self) -> None:
        """Build the batch anew after a failed write."""
        self.raw = WriteBatch(raw_mode=True)
        for change, arguments in self._changes:
            change(self, *arguments)
