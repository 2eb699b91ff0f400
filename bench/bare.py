"""RocksDB alone: the same ids and bodies through rocksdict with the options of the table that has payloads.

Ids and bodies are made beforehand, and nothing is encoded, indexed, scheduled or counted: no queue can be
faster.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from rocksdict import Cache, Rdict, WriteBatch

from fairlead.store.kv.port import Table
from fairlead.store.kv.rocks_options import family_name, family_options
from fairlead.store.rocks.options import CACHE_BYTES, database_options

FAMILY = family_name(Table.PAGES)


class Bare:
    def __init__(self, path: Path, *, synced: bool) -> None:
        cache = Cache(CACHE_BYTES)
        options = family_options(cache, compacts=True)[FAMILY]
        self._db = Rdict(str(path), database_options(cache), column_families={FAMILY: options})
        self._family = self._db.get_column_family_handle(FAMILY)
        self._column = self._db.get_column_family(FAMILY)
        self._synced = synced

    def __enter__(self) -> Bare:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._column.close()
        self._db.close()

    def lifecycles(self, ids: list[bytes], bodies: list[bytes], batch: int) -> None:
        """Put, get and delete, batch by batch."""
        for at in range(0, len(ids), batch):
            some = ids[at : at + batch]
            self._put(some, bodies[at : at + batch])
            self._get_and_delete(some)

    def fill_and_drain(self, ids: list[bytes], bodies: list[bytes], batch: int) -> None:
        """Put everything, then get and delete everything."""
        for at in range(0, len(ids), batch):
            self._put(ids[at : at + batch], bodies[at : at + batch])
        for at in range(0, len(ids), batch):
            self._get_and_delete(ids[at : at + batch])

    def _put(self, ids: list[bytes], bodies: list[bytes]) -> None:
        writes = WriteBatch(raw_mode=True)
        family, put = self._family, writes.put
        for key, body in zip(ids, bodies, strict=True):
            put(key, body, family)
        self._write(writes)

    def _get_and_delete(self, ids: list[bytes]) -> None:
        bodies: list[bytes | None] = self._column.get(ids)  # type: ignore[arg-type, assignment]  # its stub knows no list of bytes
        if None in bodies:
            raise AssertionError("a body that was put is not there")
        writes = WriteBatch(raw_mode=True)
        family, delete = self._family, writes.delete
        for key in ids:
            delete(key, family)
        self._write(writes)

    def _write(self, writes: WriteBatch) -> None:
        self._db.write(writes)
        if self._synced:
            self._db.flush_wal(True)
