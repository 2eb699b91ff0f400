"""A backend on RocksDB: a column family per table, a write batch per commit, one process per directory.

The fence (epoch and last commit) is a row of the default family, in the same batch as the rows it belongs to.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import cast

from rocksdict import Checkpoint, WriteBatch

from fairlead.errors import (
    BrokerClosed,
    FairleadError,
    InvalidRequest,
    StoreCorrupt,
    StoreFull,
)
from fairlead.store.kv import rocks_files as files
from fairlead.store.kv.fence import Fence, read_fence
from fairlead.store.kv.port import SUFFIX_BYTES, Batch, Row, Table, behind_group
from fairlead.store.kv.rocks_database import Database, first_of_groups, scan, scan_back
from fairlead.store.rocks import faults
from fairlead.store.rocks.format import check_format
from fairlead.store.rocks.marks import Marks
from fairlead.store.rocks.options import CACHE_BYTES
from fairlead.store.rocks.reserve import DISK_RESERVE_BYTES, REOPEN_BYTES, check_reserve

FENCE_KEY = b"fence"
#: A longer range is deleted as a range even on a low disk: its list of keys would need too much room itself.
MAX_LISTED_KEYS = 20_000


class RocksKeyValueStore:
    """`open` creates it. The directory belongs to one process; a second one gets `StoreLocked`.

    A write that finds the disk full reopens the database and is written again if possible, or raises
    `StoreFull` and stores nothing; a later write tries again. Any other failed write or sync is final:
    `StoreFailed`. Reads continue in both cases.
    """

    def __init__(self, database: Database, marks: Marks | None) -> None:
        """Without `marks` it is read-only."""
        self._database = database
        self._space = database.space
        self._path = database.path
        self._marks = marks
        #: A write found the disk full: RocksDB accepts no more before it is reopened.
        self._needs_reopen = False
        self._sync_mutex = threading.Lock()
        #: Numbers of writes. A newly opened database may hold unsynced writes of a killed process.
        self._written, self._synced = 0, -1
        #: How many syncs reached the disk: callers of `sync` that came together share one.
        self.syncs = 0
        self._connect(read_only=marks is None)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        disk_reserve_bytes: int = DISK_RESERVE_BYTES,
        cache_bytes: int = CACHE_BYTES,
        read_only: bool = False,
    ) -> RocksKeyValueStore:
        """Open or create the data directory. Raises `StoreLocked`, `StoreCorrupt`, `FormatTooNew`,
        `StoreFull`, `InvalidRequest`.

        Read-only answers reads from the state that a crash left, without changing the directory; it is for a
        directory that no process writes to.
        """
        directory = Path(path).absolute()
        check_reserve(disk_reserve_bytes)
        marks = None
        try:
            if read_only:
                check_format(directory)
            else:
                marks = files.hold(directory)
            return cls(Database(directory, disk_reserve_bytes, cache_bytes), marks)
        except BaseException as trouble:
            if marks is not None:
                marks.forget()
            if isinstance(trouble, OSError):
                raise faults.named(trouble, directory) from trouble
            raise

    @property
    def last_commit(self) -> int:
        self._check_open()
        return self._fence.commit

    def acquire(self) -> int:
        self._make_writable()
        self._store(Batch(), self._fence.acquired())
        self.sync()
        return self._fence.epoch

    def continue_behind(self, epoch: int, commit: int) -> None:
        """For a repair, in place of the first `acquire`: later epochs and commits have higher numbers."""
        self._make_writable()
        self._store(Batch(), Fence(epoch, commit, epoch))

    def write(self, batch: Batch, epoch: int, commit: int) -> bool:
        if not self._space.is_writable:
            self._make_writable()
        fence = self._fence
        if (epoch != fence.epoch or commit <= fence.commit) and fence.is_repeat(epoch, commit):
            return False
        if self._space.is_low:
            self._store(batch, Fence(epoch, commit, epoch))
        else:
            self._write_once(batch, Fence(epoch, commit, epoch))
        return True

    def _store(self, batch: Batch, fence: Fence) -> None:
        """Write the batch while the disk is low. RocksDB estimates the output of a compaction from its count
        of deleted rows, which does not include those that a range deletes: so they are deleted one by one.
        """
        self._list_ranges(batch)
        try:
            self._write_once(batch, fence)
        except StoreFull:
            if not self._needs_reopen:
                raise
            # The reserve is kept for writes that must fit, but a compaction may have taken it for its output.
            # Closing the database ends the compaction and releases its output.
            self._make_writable()
            self._write_once(batch, fence)

    def _list_ranges(self, batch: Batch) -> None:
        for number, (table, start, end) in reversed([*enumerate(batch.ranges)]):
            rows = self.scan(table, start, end, limit=MAX_LISTED_KEYS + 1)
            if len(rows) <= MAX_LISTED_KEYS:
                batch.deletes += [(table, key) for key, _ in rows]
                del batch.ranges[number]

    def _write_once(self, batch: Batch, fence: Fence) -> None:
        database, space = self._database, self._space
        db, families = database.opened, database.families
        assert db is not None
        raw = WriteBatch(True)
        put = raw.put
        for table, key, value in batch.puts:
            put(key, value, families[table])
        if batch.deletes or batch.ranges:
            space.deleted_since_flush = True
            for table, key in batch.deletes:
                raw.delete(key, families[table])
            for table, start, end in batch.ranges:
                raw.delete_range(start, end, families[table])
        put(FENCE_KEY, fence.packed())
        size = raw.size_in_bytes()
        space.quiet_bytes -= size
        if space.quiet_bytes <= 0:
            space.before_write(size)
        try:
            db.write(raw)
        except Exception as trouble:
            # The rows may have been stored, so nothing that is known of them counts.
            database.forget_reads()
            raise self._failed_write(trouble) from trouble
        database.note_write(batch.puts)
        self._fence = fence
        self._written += 1
        marks = self._marks
        if marks is not None and monotonic() >= marks.keeps_next_at:
            marks.keep_written(db.latest_sequence_number)

    def sync(self) -> None:
        wanted = self._written
        with self._sync_mutex:
            self._database.check_usable()
            # The thread that held the mutex may have synced these writes too; then this caller shared its
            # sync.
            if wanted <= self._synced or self._marks is None:
                return
            covered = self._written
            try:
                self._sync_logs(self._marks)
            except Exception as trouble:
                raise self._failed(f"a sync of the write-ahead log failed: {trouble}", trouble) from trouble
            self.syncs += 1
            self._synced = covered

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._database.read(table, lambda rows: cast("bytes | None", rows.get(key)))

    def get_many(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._database.read(table, lambda rows: cast("list[bytes | None]", rows.get([*keys])))

    def scan(
        self,
        table: Table,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int,
        reverse: bool = False,
    ) -> list[Row]:
        if limit < 1 or (end is not None and end <= start):
            self._check_open()
            return []
        if reverse:
            return self._database.read_by_cursor(table, lambda cursor: scan_back(cursor, start, end, limit))
        return self._database.read_by_cursor(table, lambda cursor: scan(cursor, start, limit), end)

    def scan_many(
        self,
        table: Table,
        ranges: Sequence[tuple[bytes, bytes]],
        *,
        limit: int,
        reverse: bool = False,
    ) -> list[list[Row]]:
        # Each with a cursor of its own, which stops at the end of its range.
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
        start = prefix if after is None else max(prefix, behind_group(after, suffix_length))
        return self._database.read_by_cursor(
            table, lambda cursor: first_of_groups(cursor, start, prefix, suffix_length, limit)
        )

    def room(self, *, in_reserve: bool = False) -> int:
        if self._database.closed:
            raise BrokerClosed
        return self._space.room(in_reserve)

    def check_room(self, incoming_bytes: int, *, in_reserve: bool = False) -> None:
        if self._database.closed:
            raise BrokerClosed
        self._space.check(incoming_bytes, in_reserve)

    def checkpoint(self, path: Path) -> None:
        self._check_open()
        target = Path(path).absolute()
        try:
            if target.exists():
                raise InvalidRequest("path", "a path that does not exist yet", str(path))
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as trouble:
            raise InvalidRequest(
                "path", f"a path that can be made ({trouble.strerror})", str(path)
            ) from trouble
        if os.stat(target.parent).st_dev == os.stat(self._path).st_dev:
            self.check_room(0)
        try:
            files.make_copy(target, Checkpoint(self._database.db).create_checkpoint)
        except Exception as trouble:
            raise files.named_fault(trouble, self._path, "checkpoint") from trouble

    def flush_table(self, table: Table, *, wait: bool = True) -> None:
        """For tests: RocksDB writes the table's rows to a file and starts a new log."""
        self._database.rows_of(table).flush(wait)

    def close(self) -> None:
        with self._sync_mutex, self._database.swapping:
            if self._database.closed:
                return
            self._database.closed = True
            self._space.is_writable = False
            last = self._sync_to_close()
            self._database.disconnect()
            if self._marks is not None:
                self._marks.close(last)

    def _check_open(self) -> None:
        if self._database.closed:
            raise BrokerClosed

    def _connect(self, *, read_only: bool) -> None:
        if self._needs_reopen and not read_only:
            self._database.connect_after_reads()
        else:
            self._database.connect(read_only=read_only)
        try:
            self._fence = self._load_fence()
        except BaseException:
            self._database.disconnect()
            raise

    def _load_fence(self) -> Fence:
        try:
            packed = cast("bytes | None", self._database.db.get(FENCE_KEY))
            return Fence() if packed is None else read_fence(packed)
        except ValueError as trouble:
            raise StoreCorrupt(f"row {FENCE_KEY.decode()} of {self._path}", str(trouble)) from trouble
        except Exception as trouble:
            raise files.named_fault(trouble, self._path, str(self._path)) from trouble

    def _sync_logs(self, marks: Marks) -> None:
        mark = marks.before_sync(self._database.db.latest_sequence_number())
        if not self._flush_log():
            # The disk was full for a later write; this one is in the log, which RocksDB no longer touches.
            for log in self._path.glob("*.log"):
                with open(log, "rb") as file:
                    os.fsync(file.fileno())
        marks.keep(mark)

    def _flush_log(self) -> bool:
        """False if RocksDB no longer writes to its log because the disk was full."""
        if self._database.is_mirror:
            return False
        try:
            self._database.db.flush_wal(True)
        except Exception as trouble:
            if not faults.is_refused_after_full(trouble):
                raise
            return False
        return True

    def _sync_to_close(self) -> int | None:
        """The sequence number that the closed directory must reach; None if the store cannot tell."""
        is_known = self._database.failure is None and not self._needs_reopen and self._database.is_connected
        if self._marks is None or not is_known:
            return None
        try:
            sequence = self._database.db.latest_sequence_number()
            self._sync_logs(self._marks)
        except Exception:
            # Closing must continue. The last stored mark still holds.
            return None
        return sequence

    def _failed_write(self, trouble: Exception) -> FairleadError:
        if not faults.is_full(trouble):
            return self._failed(str(trouble), trouble)
        self._needs_reopen = True
        self._space.is_writable = False
        self._space.is_low = True
        free, logs = self._space.free_bytes(), self._space.unflushed_bytes()
        return StoreFull(str(self._path), free, reserve=REOPEN_BYTES, logs=logs)

    def _failed(self, what: str, trouble: Exception) -> FairleadError:
        """The error to raise; the store accepts no more writes. A background compaction may have met a
        damaged table: then RocksDB refuses the next write, and the error names the table.
        """
        failure = self._database.fail(what)
        fault = files.named_fault(trouble, self._path, str(self._path))
        return fault if isinstance(fault, StoreCorrupt) else failure

    def _make_writable(self) -> None:
        self._database.check_usable()
        if self._marks is None:
            raise InvalidRequest("store", "open for writing", "a store opened read-only")
        if not self._needs_reopen:
            return
        if self._database.is_mirror:
            # The database was closed and could not be opened: no compaction holds space that closing would
            # release.
            self._space.check_reopening(faults.log_bytes(self._path))
        self._reopen()

    def _reopen(self) -> None:
        """After a full disk RocksDB refuses writes until it is reopened; its log holds everything that it has
        confirmed.
        """
        confirmed = self._fence
        with self._sync_mutex, self._database.swapping:
            is_mirror = self._database.is_mirror
            logs = faults.log_bytes(self._path) if is_mirror else self._space.unflushed_bytes()
            self._database.disconnect()
            try:
                self._space.check_reopening(logs)
                self._connect(read_only=False)
            except StoreFull:
                self._answer_only()
                raise
            except Exception as trouble:
                raise self._cannot_reopen(trouble) from trouble
            if self._fence != confirmed:
                raise self._database.fail(
                    f"expected {confirmed} to be the last after a full disk, got {self._fence}"
                )
            self._needs_reopen = False

    def _answer_only(self) -> None:
        """Continue to answer reads while there is too little room even to open."""
        try:
            self._connect(read_only=True)
        except Exception as trouble:
            raise self._cannot_reopen(trouble) from trouble

    def _cannot_reopen(self, trouble: Exception) -> FairleadError:
        return self._database.fail(f"could not be opened again after a full disk: {trouble}")
