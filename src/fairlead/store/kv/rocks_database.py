"""A RocksDB database that can be reopened while it has readers: tables, cursors and reads.

Nothing here writes a row, except that opening lets RocksDB recover.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from rocksdict import AccessType, Cache, ColumnFamily, Rdict, RdictIter, ReadOptions

from fairlead.errors import BrokerClosed, StoreCorrupt, StoreFailed, StoreLocked
from fairlead.store.kv import rocks_files as files
from fairlead.store.kv.empty_ranges import EmptyRanges
from fairlead.store.kv.port import Row, Table, behind_group
from fairlead.store.kv.rocks_options import family_name, family_options
from fairlead.store.kv.rocks_space import DiskSpace
from fairlead.store.rocks.census import Census
from fairlead.store.rocks.options import database_options

#: How long a reopening after a full disk waits for reads that still use the previous database.
_READS_END_WITHIN_S = 10.0

T = TypeVar("T")


class Database:
    """`connect` opens it. While it is disconnected, reads of other threads wait for `swapping`, which the
    reopening thread holds.
    """

    def __init__(self, path: Path, disk_reserve_bytes: int, cache_bytes: int) -> None:
        self.path = path
        self._cache_bytes = cache_bytes
        self.closed = False
        #: Set once and permanently: the store accepts no more writes.
        self.failure: StoreFailed | None = None
        self.swapping = threading.RLock()
        self.opened: Rdict | None = None
        self._empty: Rdict | None = None
        #: Both by the number of the table, and empty while the database is closed.
        self.families: list[ColumnFamily] = []
        self._tables: list[Rdict] = []
        #: A cursor for each table with the generation it belongs to; each write begins a new generation.
        self._cursors: dict[Table, tuple[int, Raw]] = {}
        self._generation = 0
        self._empty_ranges = [EmptyRanges() for _ in Table]
        #: Held to change the empty ranges. A lock costs more than everything else that a write does with
        #: them, so a write first checks without it whether it has to: it begins its generation before the
        #: check, and a read checks the generation after it has recorded a range. So one of the two sees the
        #: other.
        self._noting = threading.Lock()
        #: A read that walks over more deleted rows fails; 0: no limit. For tests.
        self.max_walked_rows = 0
        self._mirror: tempfile.TemporaryDirectory[str] | None = None
        #: The tables and the default family: a log is deleted when all of them are flushed.
        self._all: list[Rdict] = []
        self.space = DiskSpace(path, disk_reserve_bytes, self._all)

    @property
    def db(self) -> Rdict:
        assert self.opened is not None
        return self.opened

    @property
    def is_connected(self) -> bool:
        return self.opened is not None

    @property
    def is_mirror(self) -> bool:
        """Whether reads are answered from links to the files, because the disk is too full to open."""
        return self._mirror is not None

    def check_usable(self) -> None:
        if self.closed:
            raise BrokerClosed
        if self.failure is not None:
            raise StoreFailed(self.failure.what)

    def fail(self, what: str) -> StoreFailed:
        """The error to raise; from now on `check_usable` raises it too."""
        self.failure = StoreFailed(what)
        self.space.is_writable = False
        return self.failure

    def rows_of(self, table: Table) -> Rdict:
        try:
            return self._tables[table]
        except IndexError:
            # Either closed permanently, or between two lives of a recovery from a full disk.
            with self.swapping:
                if not self._tables:
                    self.check_usable()
                return self._tables[table]

    def read(self, table: Table, question: Callable[[Rdict], T]) -> T:
        rows = self.rows_of(table)
        try:
            return question(rows)
        except Exception as trouble:
            if self._tables and self._tables[table] is rows:
                raise files.named_fault(trouble, self.path, family_name(table)) from trouble
        # The database was reopened or closed meanwhile.
        return self.read(table, question)

    def read_by_cursor(self, table: Table, question: Callable[[Cursor], T], end: bytes | None = None) -> T:
        """One cursor for each table serves until the next write, or a read with another end, because creating
        one costs more than most reads. A thread takes it away while it reads, so no two threads use the
        same.

        A cursor stops at its end. Without one, a step from the last row before it passes over all deleted
        rows after it.
        """

        def ask(rows: Rdict) -> T:
            # Before anything is read: a write that comes meanwhile begins another one.
            generation = self._generation
            kept, raw = self._cursors.pop(table, (-1, None))
            if raw is None or kept != generation or raw.end != end:
                raw = Raw(rows.iter(self._read_options(end)), end)
            cursor = Cursor(raw, partial(self._behind_empty, table))
            found = question(cursor)
            # A cursor also ends at a block that it cannot read: then this raises.
            raw.iterator.status()
            with self._noting:
                if generation != self._generation:
                    return found
                for first, last in cursor.empty:
                    self._empty_ranges[table].note(first, last)
                if generation == self._generation:
                    self._cursors[table] = (generation, raw)
                else:
                    self._empty_ranges[table].clear()
            return found

        return self.read(table, ask)

    def _behind_empty(self, table: Table, start: bytes) -> bytes | None:
        with self._noting:
            return self._empty_ranges[table].behind(start)

    def _read_options(self, end: bytes | None) -> ReadOptions:
        options = ReadOptions()
        # A cursor that outlives a flush or a compaction leaves a memtable to free and files to delete. A
        # thread of RocksDB does that then, and not the thread that drops the cursor, which holds the lock of
        # the engine.
        options.set_background_purge_on_iterator_cleanup(True)
        if end is not None:
            options.set_iterate_upper_bound(end)
        if self.max_walked_rows:
            options.set_max_skippable_internal_keys(self.max_walked_rows)
        return options

    def note_write(self, puts: Iterable[tuple[Table, bytes, bytes]]) -> None:
        """Called after a write: a cursor shows the rows as they were when it was made, and a range with a new
        row is no longer empty.
        """
        self._generation += 1
        if self._cursors:
            self._cursors.clear()
        empty_ranges = self._empty_ranges
        for table, key, _ in puts:
            ranges = empty_ranges[table]
            end = ranges.end
            # Most rows are put after all ranges.
            if end is None or key < end:
                with self._noting:
                    ranges.fill(key)

    def forget_reads(self) -> None:
        """Drop everything that is known from reads."""
        with self._noting:
            self._generation += 1
            self._cursors.clear()
            for ranges in self._empty_ranges:
                ranges.clear()

    def connect(self, *, read_only: bool) -> None:
        """Raises `StoreCorrupt`, `StoreFull`, `StoreLocked`, `StoreFailed`; then it is disconnected."""
        opened = self.path
        if read_only:
            self._mirror = tempfile.TemporaryDirectory(prefix="fairlead-")
            opened = Path(self._mirror.name)
        try:
            census = files.mirror_unchanged(self.path, opened) if read_only else files.take_census(opened)
            compacts = self.space.compacts_at_open()
            self._open(opened, read_only=read_only, compacts=compacts)
        except Exception as trouble:
            self.disconnect()
            raise files.named_open_fault(trouble, self.path) from trouble
        try:
            self._check_reached(census)
            self.space.is_writable = not read_only
            self.space.begin(compacts=compacts or read_only)
        except BaseException:
            self.disconnect()
            raise

    def connect_after_reads(self) -> None:
        """Wait for reads of other threads, which keep the previous database open, and with it RocksDB's own
        lock.
        """
        give_up_at = time.monotonic() + _READS_END_WITHIN_S
        while True:
            try:
                self.connect(read_only=False)
                return
            except StoreLocked:
                if time.monotonic() >= give_up_at:
                    raise
            self._cursors.clear()
            time.sleep(0.005)

    def disconnect(self) -> None:
        """RocksDB releases the directory when nothing refers to it any more: cursors, tables, families and
        database. The lists are cleared in place, because the traceback of a kept error may hold them.
        """
        self.space.is_writable = False
        self.forget_reads()
        databases = [*self._tables, self._empty, self.opened]
        self._all.clear()
        self._tables.clear()
        self.families.clear()
        self.opened = self._empty = None
        for database in databases:
            # Closing flushes, and may find the disk full; the log already has everything.
            with contextlib.suppress(Exception):
                if database is not None:
                    database.close()
        if self._mirror is not None:
            self._mirror.cleanup()
            self._mirror = None

    def _open(self, path: Path, *, read_only: bool, compacts: bool) -> None:
        cache = Cache(self._cache_bytes)
        families = family_options(cache, compacts=compacts)
        missing: set[str] = set()
        if read_only:
            missing = set(families) - set(Rdict.list_cf(str(path), database_options(cache)))
        self.opened = Rdict(
            str(path),
            options=database_options(cache),
            column_families={name: options for name, options in families.items() if name not in missing},
            access_type=AccessType.read_only(False) if read_only else AccessType.read_write(),
        )
        if missing:
            # A crash came before all tables were created, and nothing may be added: an empty database
            # answers.
            self._empty = Rdict(
                str(path / "empty"),
                options=database_options(cache),
                column_families={name: families[name] for name in missing},
            )
        empty = self._empty or self.opened
        holders = {name: empty if name in missing else self.opened for name in families}
        self.families.extend([holder.get_column_family_handle(name) for name, holder in holders.items()])
        self._tables.extend([holder.get_column_family(name) for name, holder in holders.items()])
        self._all.extend([self.opened, *self._tables])

    def _check_reached(self, census: Census | None) -> None:
        reached = self.db.latest_sequence_number()
        if census is not None and reached != census.sequence:
            raise StoreCorrupt(
                str(self.path),
                f"expected RocksDB to come to sequence number {census.sequence}, got {reached}",
            )


class Raw(NamedTuple):
    """A cursor of RocksDB."""

    iterator: RdictIter
    #: It knows no row from here on; None: it knows all. RocksDB reads these bytes, so the tuple keeps them
    #: alive.
    end: bytes | None


class Cursor:
    """Seeks in a table, starting after deleted rows that an earlier seek has walked over."""

    __slots__ = ("_behind_empty", "_end", "empty", "raw")

    def __init__(self, raw: Raw, behind_empty: Callable[[bytes], bytes | None]) -> None:
        self.raw = raw.iterator
        self._end = raw.end
        self._behind_empty = behind_empty
        #: Ranges in which seeks have found no row.
        self.empty: list[tuple[bytes, bytes | None]] = []

    def seek(self, start: bytes) -> bytes | None:
        """The first key from `start` on, where the cursor then is; None if there is none."""
        begin = self._behind_empty(start)
        if begin is None or (self._end is not None and begin >= self._end):
            return None
        self.raw.seek(begin)
        key = self.raw.key() if self.raw.valid() else None
        self.empty.append((start, self._end if key is None else key))
        return key


def scan(cursor: Cursor, start: bytes, limit: int) -> list[Row]:
    found: list[Row] = []
    raw, key = cursor.raw, cursor.seek(start)
    while key is not None:
        found.append((key, raw.value()))
        # Looking one row further than needed may pass over many deleted rows.
        if len(found) == limit:
            break
        raw.next()
        key = raw.key() if raw.valid() else None
    return found


def scan_back(cursor: Cursor, start: bytes, end: bytes | None, limit: int) -> list[Row]:
    found: list[Row] = []
    raw = cursor.raw
    if end is None:
        raw.seek_to_last()
    else:
        raw.seek_for_prev(end)
        if raw.valid() and raw.key() == end:
            raw.prev()
    while raw.valid():
        key = raw.key()
        if key < start:
            break
        found.append((key, raw.value()))
        if len(found) == limit:
            break
        raw.prev()
    return found


def first_of_groups(cursor: Cursor, start: bytes, prefix: bytes, suffix_length: int, limit: int) -> list[Row]:
    found: list[Row] = []
    while len(found) < limit:
        key = cursor.seek(start)
        if key is None or not key.startswith(prefix):
            break
        found.append((key, cursor.raw.value()))
        start = behind_group(key, suffix_length)
    return found
