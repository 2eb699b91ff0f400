"""A backend in memory: a dictionary and a sorted list of keys for each table. For tests, and for queues that
need not last.

The rows live in a `DictionaryData`, which outlives the stores on it. Two stores on one `DictionaryData` are
two owners of one shard, so that a test can see the first one fenced.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from fairlead.errors import BrokenInvariant, BrokerClosed, InvalidRequest, StoreCorrupt
from fairlead.store.kv.fence import Fence, read_fence
from fairlead.store.kv.port import SUFFIX_BYTES, Batch, Row, Table, behind_group
from fairlead.store.modes import open_private

#: More new keys at once are appended and sorted, which is cheaper than a search and a move for each.
_FEW_KEYS = 8
_ROOM_BYTES = 1 << 62


def _check_keys(batch: Batch) -> None:
    seen: set[tuple[Table, bytes]] = set()
    for table, key in chain([put[:2] for put in batch.puts], batch.deletes):
        if (table, key) in seen:
            raise BrokenInvariant(f"expected key {key.hex()} of {table.name} once in a batch, got it twice")
        seen.add((table, key))
    for ranged, start, end in batch.ranges:
        for table, key, _ in batch.puts:
            if table == ranged and start <= key < end:
                raise BrokenInvariant(
                    f"expected no put in the range {start.hex()} to {end.hex()} of {table.name}, which the"
                    f" same batch deletes, got {key.hex()}"
                )


class _SortedTable:
    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows = dict(rows)
        self.keys = sorted(self.rows)

    def put_many(self, rows: Sequence[Row]) -> None:
        new = [key for key, _ in rows if key not in self.rows]
        self.rows.update(rows)
        if len(new) > _FEW_KEYS:
            self.keys += new
            self.keys.sort()
            return
        for key in new:
            insort(self.keys, key)

    def delete(self, key: bytes) -> None:
        if self.rows.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def delete_range(self, start: bytes, end: bytes) -> None:
        first, last = bisect_left(self.keys, start), bisect_left(self.keys, end)
        for key in self.keys[first:last]:
            del self.rows[key]
        del self.keys[first:last]


class DictionaryData:
    """The counterpart of a directory for RocksDB: the stored rows, the epoch and the last commit."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tables = [_SortedTable() for _ in Table]
        self.fence = Fence()


class DictionaryStore:
    """Nothing survives the process. `sync` does nothing, and there is always room."""

    def __init__(self, data: DictionaryData | None = None) -> None:
        self.data = data or DictionaryData()
        self._closed = False

    @classmethod
    def open_copy(cls, path: Path) -> DictionaryStore:
        """A store with the content of a checkpoint; later changes stay in memory."""
        try:
            packed, tables = msgspec.msgpack.decode(
                path.read_bytes(), type=tuple[bytes, dict[str, list[Row]]]
            )
            data = DictionaryData()
            data.fence = read_fence(packed)
            for name, rows in tables.items():
                data.tables[Table[name]] = _SortedTable(rows)
        except (ValueError, KeyError) as trouble:
            raise StoreCorrupt(str(path), f"expected a checkpoint in memory's format: {trouble}") from trouble
        return cls(data)

    @property
    def last_commit(self) -> int:
        return self._open_data().fence.commit

    def acquire(self) -> int:
        data = self._open_data()
        with data.lock:
            data.fence = data.fence.acquired()
            return data.fence.epoch

    def write(self, batch: Batch, epoch: int, commit: int) -> bool:
        data = self._open_data()
        with data.lock:
            if data.fence.is_repeat(epoch, commit):
                return False
            _check_keys(batch)
            for table, start, end in batch.ranges:
                data.tables[table].delete_range(start, end)
            for table, key in batch.deletes:
                data.tables[table].delete(key)
            puts: dict[Table, list[Row]] = {}
            for table, key, value in batch.puts:
                puts.setdefault(table, []).append((key, value))
            for table, rows in puts.items():
                data.tables[table].put_many(rows)
            data.fence = data.fence.committed(commit)
        return True

    def sync(self) -> None:
        self._open_data()

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._open_data().tables[table].rows.get(key)

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        data = self._open_data()
        with data.lock:
            return [data.tables[table].rows.get(key) for key in keys]

    def scan(
        self,
        table: Table,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int,
        reverse: bool = False,
    ) -> list[Row]:
        data = self._open_data()
        with data.lock:
            rows, keys = data.tables[table].rows, data.tables[table].keys
            first = bisect_left(keys, start)
            last = len(keys) if end is None else max(first, bisect_left(keys, end))
            if reverse:
                found = reversed(keys[max(first, last - limit) : last])
                return [(key, rows[key]) for key in found]
            return [(key, rows[key]) for key in keys[first : min(last, first + limit)]]

    def scan_many(
        self,
        table: Table,
        ranges: Sequence[tuple[bytes, bytes]],
        *,
        limit: int,
        reverse: bool = False,
    ) -> list[list[Row]]:
        return [self.scan(table, start, end, limit=limit, reverse=reverse) for start, end in ranges]

    def first_rows(
        self,
        table: Table,
        *,
        suffix_length: int = SUFFIX_BYTES,
        prefix: bytes = b"",
        after: bytes | None = None,
        limit: int,
    ) -> list[Row]:
        data = self._open_data()
        with data.lock:
            rows, keys = data.tables[table].rows, data.tables[table].keys
            found: list[Row] = []
            start = prefix if after is None else max(prefix, behind_group(after, suffix_length))
            while len(found) < limit:
                at = bisect_left(keys, start)
                if at == len(keys) or not keys[at].startswith(prefix):
                    break
                found.append((keys[at], rows[keys[at]]))
                start = behind_group(keys[at], suffix_length)
            return found

    def room(self, *, in_reserve: bool = False) -> int:
        self._open_data()
        return _ROOM_BYTES

    def check_room(self, incoming_bytes: int, *, in_reserve: bool = False) -> None:
        self._open_data()

    def checkpoint(self, path: Path) -> None:
        """A file in place of a directory; `open_copy` reads it."""
        data = self._open_data()
        if path.exists():
            raise InvalidRequest("path", "a path that does not exist yet", str(path))
        with data.lock:
            tables = {table.name: list(data.tables[table].rows.items()) for table in Table}
            packed = msgspec.msgpack.encode((data.fence.packed(), tables))
        unfinished = path.with_name(f".{path.name}.fairlead-checkpoint")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(unfinished, "wb", opener=open_private) as file:
            file.write(packed)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)

    def close(self) -> None:
        self._closed = True

    def _open_data(self) -> DictionaryData:
        if self._closed:
            raise BrokerClosed
        return self.data
