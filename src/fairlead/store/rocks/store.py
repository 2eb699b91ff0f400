"""Open, commit, sync, recover, close. Rows are made in `commit.py` and read in `questions.py`."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocksdict import AccessType, Cache, Checkpoint, ColumnFamily, Rdict, WriteBatch

from fairlead.errors import BrokerClosed, FairleadError, InvalidRequest, StoreCorrupt, StoreFailed, StoreFull
from fairlead.model.facts import Fact
from fairlead.model.queue import Counters, QueueRecord
from fairlead.store.modes import DIRECTORY_MODE
from fairlead.store.port import NO_EPOCHS
from fairlead.store.rocks import codec, faults
from fairlead.store.rocks.commit import Draft
from fairlead.store.rocks.format import check_format, mirror, prepare_directory, sync_directory, write_format
from fairlead.store.rocks.layout import FAMILIES
from fairlead.store.rocks.logfile import check_logs, find_damage
from fairlead.store.rocks.options import CACHE_BYTES, MIB, database_options, family_options
from fairlead.store.rocks.questions import EVERYTHING, Questions

DISK_RESERVE_BYTES = 64 * MIB


class RocksStore(Questions):
    """One directory, one process. `open` makes it; two threads may `sync` or read bodies beside the one that commits.

    A commit that finds the disk full raises `StoreFull` and changes nothing; a later one reopens the database by itself
    once there is room for what its log holds and the reserve. Any other failed write or sync is final: `StoreFailed`.
    """

    def __init__(self, path: Path, disk_reserve_bytes: int, cache_bytes: int, read_only: bool) -> None:
        self._path = path
        self._reserve = disk_reserve_bytes
        self._cache_bytes = cache_bytes
        self._read_only = read_only
        self._closed = False
        self._needs_reopen = False
        self._failure: StoreFailed | None = None
        self._swapping = threading.RLock()
        self._sync_mutex = threading.Lock()
        self._synced = 0
        #: How many syncs reached the disk: callers of `sync` that came together share one.
        self.syncs = 0
        self._boot = self._last_commit = self._last_queue_id = 0
        self._counters: dict[int, list[int]] = {}
        self._queues: dict[int, QueueRecord] = {}
        self._floors = {}
        self._handles: dict[str, ColumnFamily] = {}
        self._tables: dict[str, Rdict] = {}
        self._mirror: tempfile.TemporaryDirectory[str] | None = None
        self._connect(read_only)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, disk_reserve_bytes: int = DISK_RESERVE_BYTES, cache_bytes: int = CACHE_BYTES, read_only: bool = False
    ) -> RocksStore:
        """Open or make the data directory. Raises `StoreLocked`, `StoreCorrupt`, `FormatTooNew`, `StoreFull`, `InvalidRequest`.

        Read-only answers questions from what a crash left, without a boot number and without changing the directory; it
        is for a directory that nobody writes to.
        """
        directory = Path(path).absolute()
        if read_only:
            check_format(directory)
        else:
            prepare_directory(directory)
        check_logs(directory)
        store = cls(directory, disk_reserve_bytes, cache_bytes, read_only)
        if not read_only:
            store._count_boot()
        return store

    @property
    def boot(self) -> int:
        return self._boot

    @property
    def last_commit(self) -> int:
        return self._last_commit

    @property
    def last_queue_id(self) -> int:
        return self._last_queue_id

    def acquire(self, queue_id: int) -> int:
        return self._boot

    def commit(self, facts: Sequence[Fact], epochs: Mapping[int, int] = NO_EPOCHS) -> int:
        if self._closed or self._failure is not None or self._needs_reopen or self._read_only:
            self._make_writable()
        number = self._last_commit + 1
        draft = Draft(self._handles, self._counters, self._queues, self.dedup, self._floors)
        try:
            draft.add(facts)
            last_queue_id = max(self._last_queue_id, *draft.queues) if draft.queues else self._last_queue_id
            draft.finish(number, last_queue_id)
        except BaseException:
            draft.let_go()
            raise
        try:
            self._db.write(draft.batch)
        except Exception as trouble:
            raise self._failed_write(trouble) from trouble
        self._last_commit, self._last_queue_id = number, last_queue_id
        for queue_id, counts in draft.counters.items():
            if counts is None:
                del self._counters[queue_id]
            else:
                self._counters[queue_id] = counts
        for queue_id, record in draft.queues.items():
            if record is None:
                self._queues.pop(queue_id, None)
            else:
                self._queues[queue_id] = record
        return number

    def sync(self, commit: int) -> None:
        if commit <= self._synced:
            return
        with self._sync_mutex:
            # Whoever held the mutex may have synced this commit too: then its sync was shared.
            if commit <= self._synced:
                return
            if self._closed:
                raise BrokerClosed
            if self._failure is not None:
                raise StoreFailed(self._failure.what)
            covered = self._last_commit
            try:
                self._sync_logs()
            except Exception as trouble:
                self._failure = StoreFailed(f"a sync of the write-ahead log failed: {trouble}")
                raise self._failure from trouble
            self.syncs += 1
            self._synced = max(self._synced, covered)

    def check_room(self, incoming_bytes: int) -> None:
        free = faults.free_bytes(self._path)
        if free - incoming_bytes < self._reserve:
            raise StoreFull(str(self._path), free, self._reserve)

    def checkpoint(self, path: Path) -> None:
        target = Path(path).absolute()
        if self._closed:
            raise BrokerClosed
        try:
            if target.exists():
                raise InvalidRequest("path", "a path that does not exist yet", str(path))
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as trouble:
            raise InvalidRequest("path", f"a path that can be made ({trouble.strerror})", str(path)) from trouble
        # RocksDB makes a directory that everybody may enter: here nobody gets to it before that is mended.
        private = target.with_name(f".{target.name}.fairlead-checkpoint")
        unfinished = private / target.name
        shutil.rmtree(private, ignore_errors=True)
        try:
            private.mkdir(mode=DIRECTORY_MODE)
            Checkpoint(self._db).create_checkpoint(str(unfinished))
            unfinished.chmod(DIRECTORY_MODE)
            write_format(unfinished)
            os.replace(unfinished, target)
        except Exception as trouble:
            raise self._fault(trouble, "checkpoint") from trouble
        finally:
            shutil.rmtree(private, ignore_errors=True)
        sync_directory(target.parent)

    def close(self) -> None:
        """Everything committed survives, also when this finds the disk full. Safe to call twice."""
        with self._sync_mutex, self._swapping:
            if not self._closed:
                self._closed = True
                self._disconnect()

    def queues(self) -> list[QueueRecord]:
        return [self._queues[queue_id] for queue_id in sorted(self._queues)]

    def counters(self, queue_id: int) -> Counters:
        counts = self._counters.get(queue_id)
        return Counters() if counts is None else Counters(*counts)

    def _family(self, name: str) -> Rdict:
        table = self._tables.get(name)
        if table is None:
            # Either closed for good, or between two lives of a recovery from a full disk.
            with self._swapping:
                if self._closed:
                    raise BrokerClosed
                if self._failure is not None and not self._tables:
                    raise StoreFailed(self._failure.what)
                table = self._tables[name]
        return table

    def _fault(self, trouble: BaseException, family: str) -> FairleadError:
        if isinstance(trouble, FairleadError):
            return trouble
        return faults.named(trouble, self._path, self._reserve, family)

    def _open_fault(self, trouble: Exception) -> FairleadError:
        fault = self._fault(trouble, str(self._path))
        if isinstance(fault, StoreCorrupt) and fault.where == str(self._path) and (damage := find_damage(self._path)):
            return StoreCorrupt(str(damage[0]), f"the record at byte {damage[1]}: {trouble}")
        return fault

    def _connect(self, read_only: bool) -> None:
        cache = Cache(self._cache_bytes)
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        opened = str(self._path)
        if read_only:
            self._mirror = tempfile.TemporaryDirectory(prefix="fairlead-")
            opened = self._mirror.name
            mirror(self._path, Path(opened))
        try:
            families = family_options(cache)
            missing = set(FAMILIES) - set(Rdict.list_cf(opened, database_options(cache))) if read_only else set()
            known = {name: options for name, options in families.items() if name not in missing}
            self._db = Rdict(opened, options=database_options(cache), column_families=known, access_type=access)
            self._handles = {name: self._db.get_column_family_handle(name) for name in known}
            self._tables = {name: self._db.get_column_family(name) for name in known}
            if missing:
                # Written before there were such rows, and nothing may be added to it: they are answered from an empty database.
                empty = Rdict(opened + "/empty", options=database_options(cache), column_families={name: families[name] for name in missing})
                self._tables |= {name: empty.get_column_family(name) for name in missing} | {"default of the empty": empty}
        except Exception as trouble:
            self._drop_mirror()
            raise self._open_fault(trouble) from trouble
        try:
            self._load()
        except BaseException:
            self._disconnect()
            raise

    def _load(self) -> None:
        self._floors.clear()
        meta = {key: codec.decode_fixed("meta", key, raw, codec.META)[0] for key, raw in self._scan("meta", b"", None, EVERYTHING)}
        self._boot = meta.get(b"boot", 0)
        self._last_commit = meta.get(b"last_commit", 0)
        self._last_queue_id = meta.get(b"last_queue_id", 0)
        counted, queues = self._scan("counters", b"", None, EVERYTHING), self._scan("queues", b"", None, EVERYTHING)
        self._counters = {int.from_bytes(key, "big"): list(codec.decode_fixed("counters", key, raw, codec.COUNTERS)) for key, raw in counted}
        self._queues = {int.from_bytes(key, "big"): codec.decode_queue(key, raw) for key, raw in queues}

    def _count_boot(self) -> None:
        """Synced before anything else, so that no lease token of a lost life can come again."""
        batch = WriteBatch(raw_mode=True)
        batch.put(b"boot", codec.META.pack(codec.VERSION, self._boot + 1), self._handles["meta"])
        try:
            self._db.write(batch)
            self._db.flush_wal(True)
        except Exception as trouble:
            self.close()
            raise self._fault(trouble, "meta") from trouble
        self._boot += 1
        self._synced = self._last_commit

    def _disconnect(self) -> None:
        """RocksDB lets go of the directory only when nothing refers to it any more: tables, handles and database.

        The handles are cleared in place, because the traceback of an error somebody keeps may still hold the mapping.
        """
        tables = [*self._tables.values(), *([self.__dict__.pop("_db")] if "_db" in self.__dict__ else [])]
        self._tables.clear()
        self._handles.clear()
        for table in tables:
            # Closing flushes, and may find the disk full; the log already has it all.
            with contextlib.suppress(Exception):
                table.close()
        self._drop_mirror()

    def _drop_mirror(self) -> None:
        if self._mirror is not None:
            self._mirror.cleanup()
            self._mirror = None

    def _sync_logs(self) -> None:
        try:
            self._db.flush_wal(True)
        except Exception as trouble:
            if not faults.is_refused_after_full(trouble):
                raise
            # The disk was full for a later commit; this one is in the log, which RocksDB no longer touches.
            for log in self._path.glob("*.log"):
                with open(log, "rb") as file:
                    os.fsync(file.fileno())

    def _failed_write(self, trouble: Exception) -> FairleadError:
        if faults.is_full(trouble):
            self._needs_reopen = True
            return StoreFull(str(self._path), faults.free_bytes(self._path), self._reserve)
        self._failure = StoreFailed(str(trouble))
        return self._failure

    def _make_writable(self) -> None:
        if self._closed:
            raise BrokerClosed
        if self._failure is not None:
            raise StoreFailed(self._failure.what)
        if self._read_only:
            raise InvalidRequest("store", "open for writing", "a store opened read-only")
        free, needed = faults.free_bytes(self._path), self._reserve + self._unflushed_bytes()
        if free < needed:
            raise StoreFull(str(self._path), free, needed)
        self._reopen()

    def _reopen(self) -> None:
        """After a full disk RocksDB refuses writes until it is opened again; everything confirmed is in its log."""
        confirmed = self._last_commit
        with self._sync_mutex, self._swapping:
            self._disconnect()
            try:
                self._connect(read_only=False)
            except StoreFull:
                self._answer_only()
                raise
            except FairleadError as trouble:
                self._failure = StoreFailed(f"could not be opened again after a full disk: {trouble.message}")
                raise self._failure from trouble
            if self._last_commit != confirmed:
                self._failure = StoreFailed(f"expected commit {confirmed} to be the last after a full disk, found {self._last_commit}")
                raise self._failure
            self._needs_reopen = False
            self._synced = confirmed

    def _answer_only(self) -> None:
        """Questions go on while there is too little room even to open."""
        try:
            self._connect(read_only=True)
        except (FairleadError, OSError) as trouble:
            self._failure = StoreFailed(f"could not be opened again after a full disk: {trouble}")
            raise self._failure from trouble

    def _unflushed_bytes(self) -> int:
        """What opening again may have to write: it turns the log, as far as it is not in tables yet, into tables."""
        in_log = sum(file.stat().st_size for file in self._path.glob("*.log"))
        in_memory = sum(table.property_int_value("rocksdb.cur-size-all-mem-tables") or 0 for table in self._tables.values())
        return min(in_log, in_memory) if in_memory else in_log
