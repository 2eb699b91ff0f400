"""Open, commit, sync, recover, close. Rows are made in `commit.py` and read in `questions.py`."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocksdict import AccessType, Cache, Checkpoint, ColumnFamily, Rdict, WriteBatch

from fairlead.errors import BrokerClosed, FairleadError, InvalidRequest, StoreCorrupt, StoreFailed, StoreFull
from fairlead.model.facts import Fact
from fairlead.model.queue import Counters, QueueRecord
from fairlead.store.modes import DIRECTORY_MODE
from fairlead.store.port import NO_EPOCHS
from fairlead.store.rocks import codec, faults
from fairlead.store.rocks.census import Census, examine, find_bad_checksum
from fairlead.store.rocks.commit import Draft
from fairlead.store.rocks.format import (
    check_format,
    is_new,
    make_directory,
    mirror,
    sync_directory,
    write_format,
)
from fairlead.store.rocks.layout import FAMILIES
from fairlead.store.rocks.marks import Mark, Marks, read_mark, write_mark
from fairlead.store.rocks.options import (
    CACHE_BYTES,
    COMPACTION_BYTES,
    COMPACTION_MODES,
    database_options,
    family_options,
)
from fairlead.store.rocks.questions import EVERYTHING, Questions
from fairlead.store.rocks.reserve import (
    DISK_RESERVE_BYTES,
    FLOOR_BYTES,
    LOG_STEP_BYTES,
    MAX_LOG_BYTES,
    REOPEN_BYTES,
    check_reserve,
    live_bytes,
)

#: Where the bytes of a queue's messages are among its counters.
_BYTES = Counters.__struct_fields__.index("bytes")
#: While writes are refused: how often to look whether a compaction fits, which reads the properties of all
#: tables.
_REGULATE_EVERY_S = 0.1

_log = logging.getLogger("fairlead.store")


class RocksStore(Questions):
    """One directory, one process. `open` makes it; two threads may `sync` or read bodies beside the one that
    commits.

    A commit that finds the disk full opens the database again and is written once more, or raises `StoreFull`
    and changes nothing; a later commit tries again. Any other failed write or sync is final: `StoreFailed`.
    """

    def __init__(self, path: Path, disk_reserve_bytes: int, cache_bytes: int, marks: Marks | None) -> None:
        """Without `marks` it is read-only."""
        read_only = marks is None
        self._path = path
        self._marks = marks
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
        #: Bytes written since the families were last flushed, and the count at which the free space is looked
        #: at next.
        self._unflushed_writes, self._next_look = 0, LOG_STEP_BYTES
        self._live_at_flush = 0
        #: How each family is compacted now; empty: all as usual.
        self._compaction: dict[str, str] = {}
        self._regulated_at = float("-inf")
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
        cls,
        path: str | os.PathLike[str],
        *,
        disk_reserve_bytes: int = DISK_RESERVE_BYTES,
        cache_bytes: int = CACHE_BYTES,
        read_only: bool = False,
    ) -> RocksStore:
        """Open or make the data directory. Raises `StoreLocked`, `StoreCorrupt`, `FormatTooNew`, `StoreFull`,
        `InvalidRequest`.

        Read-only answers questions from what a crash left, without a boot number and without changing the
        directory; it is for a directory that nobody writes to.
        """
        directory = Path(path).absolute()
        check_reserve(disk_reserve_bytes)
        marks = None
        try:
            if read_only:
                check_format(directory)
                return cls(directory, disk_reserve_bytes, cache_bytes, None)
            marks = _hold(directory)
            store = cls(directory, disk_reserve_bytes, cache_bytes, marks)
            store._count_boot()
        except BaseException as trouble:
            if marks is not None:
                marks.forget()
            if isinstance(trouble, OSError):
                raise faults.named(trouble, directory) from trouble
            raise
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
        try:
            return self._write(facts)
        except StoreFull:
            if not self._needs_reopen:
                raise
            # The reserve is kept for commits that must fit, but a compaction may have taken it for its
            # output. Closing the database ends the compaction and gives its output back.
            self._make_writable()
            return self._write(facts)

    def _write(self, facts: Sequence[Fact]) -> int:
        number = self._last_commit + 1
        draft = Draft(self._handles, self._counters, self._queues, self.dedup, self._floors)
        try:
            draft.add(facts)
            last_queue_id = max(self._last_queue_id, *draft.queues) if draft.queues else self._last_queue_id
            draft.finish(number, last_queue_id)
            self._check_batch(draft.batch.size_in_bytes())
        except BaseException:
            draft.let_go()
            raise
        try:
            self._db.write(draft.batch)
        except Exception as trouble:
            raise self._failed_write(trouble) from trouble
        self._last_commit, self._last_queue_id = number, last_queue_id
        if self._marks is not None:
            self._marks.keep_written(self._db.latest_sequence_number)
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

    def room(self, *, in_reserve: bool = False) -> int:
        free, reserve = faults.free_bytes(self._path), self._reserve_for(in_reserve)
        # The logs are read only where they may matter: this is asked at every enqueue and claim.
        unflushed = 0 if free > reserve + MAX_LOG_BYTES else self._unflushed_bytes()
        return (free - reserve - unflushed) // 2

    def check_room(self, incoming_bytes: int, *, in_reserve: bool = False) -> None:
        # A byte is written twice: to the log, and from there to a table, before the log goes.
        free, reserve, twice = (
            faults.free_bytes(self._path),
            self._reserve_for(in_reserve),
            2 * incoming_bytes,
        )
        if free - twice > reserve + MAX_LOG_BYTES:
            return
        unflushed = self._unflushed_bytes()
        spare = free - twice - reserve - unflushed
        if spare < 2 * LOG_STEP_BYTES and (self._unflushed_writes >= LOG_STEP_BYTES or self._freed_much()):
            self._flush_families()
        if spare < 0:
            self._compact_what_fits_now(free)
            raise StoreFull(str(self._path), free, reserve=reserve, logs=unflushed, request=twice)

    def _reserve_for(self, in_reserve: bool) -> int:
        return FLOOR_BYTES if in_reserve else self._reserve

    def _check_batch(self, size: int) -> None:
        """Before a write: refuse a batch that cannot fit, and keep the logs short while the disk is below its
        reserve.
        """
        self._unflushed_writes += size
        if self._unflushed_writes < self._next_look and size < LOG_STEP_BYTES:
            return
        self._next_look = self._unflushed_writes + LOG_STEP_BYTES
        free = faults.free_bytes(self._path)
        if self._compaction:
            self._regulate_compaction(free)
        if free > self._reserve + MAX_LOG_BYTES + 2 * size:
            return
        if free < self._reserve + self._unflushed_bytes() + 2 * LOG_STEP_BYTES:
            self._flush_families()
        if size > LOG_STEP_BYTES and free < 2 * size + REOPEN_BYTES:
            raise StoreFull(str(self._path), free, reserve=REOPEN_BYTES, request=2 * size)

    def _freed_much(self) -> bool:
        return self._live_bytes() + LOG_STEP_BYTES < self._live_at_flush

    def _live_bytes(self) -> int:
        return sum([counts[_BYTES] for counts in self._counters.values()])

    def _flush_families(self) -> None:
        """Turn memtables into tables in the background, so that RocksDB deletes the logs they came from."""
        self._unflushed_writes, self._next_look, self._live_at_flush = 0, LOG_STEP_BYTES, self._live_bytes()
        if self._needs_reopen or self._read_only:
            return
        for table in self._tables.values():
            try:
                table.flush(False)
            except Exception as trouble:
                if not faults.is_full(trouble):
                    raise
        self._regulate_compaction(faults.free_bytes(self._path))

    def _regulate_compaction(self, free: int) -> None:
        """A compaction that runs out of space takes it from the commits that must fit, so only those run that
        fit.

        While the disk is below its reserve they run after every flush, because then they bring space back.
        """
        # Into the floor goes only a small one: it brings back more than it takes.
        spare = max(free - FLOOR_BYTES, free // 4)
        is_low = free < self._reserve + 2 * LOG_STEP_BYTES
        for name, table in self._tables.items():
            mode = "usual"
            if spare < COMPACTION_BYTES:
                tables = table.property_int_value("rocksdb.total-sst-files-size") or 0
                live = live_bytes(tables, table.property_value("rocksdb.aggregated-table-properties") or "")
                mode = (
                    "off"
                    if min(live, COMPACTION_BYTES) > spare
                    else "eager"
                    if is_low and tables > LOG_STEP_BYTES
                    else "usual"
                )
            if self._compaction.get(name, "usual") != mode:
                self._set_options(table, COMPACTION_MODES[mode])
                self._compaction[name] = mode
        if set(self._compaction.values()) == {"usual"}:
            self._compaction.clear()

    def _compact_what_fits_now(self, free: int) -> None:
        """A flush ends in the background. Only then do the tables have the deletions in them, and a compaction
        that seemed too large may fit. No write follows that would look again: writes are refused.
        """
        now = time.monotonic()
        if "off" not in self._compaction.values() or now - self._regulated_at < _REGULATE_EVERY_S:
            return
        self._regulated_at = now
        if not self._needs_reopen and not self._read_only:
            self._regulate_compaction(free)

    def _set_options(self, table: Rdict, options: dict[str, str]) -> None:
        """RocksDB also writes them to a file, which nobody reads: without room for it they hold all the same."""
        try:
            table.set_options(options)
        except Exception as trouble:
            if not faults.is_full(trouble):
                raise

    def checkpoint(self, path: Path) -> None:
        target = Path(path).absolute()
        if self._closed:
            raise BrokerClosed
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
        # RocksDB makes a directory that everybody may enter: here nobody gets to it before that is mended.
        private = target.with_name(f".{target.name}.fairlead-checkpoint")
        unfinished = private / target.name
        shutil.rmtree(private, ignore_errors=True)
        try:
            private.mkdir(mode=DIRECTORY_MODE)
            Checkpoint(self._db).create_checkpoint(str(unfinished))
            unfinished.chmod(DIRECTORY_MODE)
            write_format(unfinished)
            _mark_copy(unfinished)
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
                last = self._sync_to_close()
                self._disconnect()
                if self._marks is not None:
                    self._marks.close(last)

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
        return faults.named(trouble, self._path, family)

    def _open_fault(self, trouble: Exception) -> FairleadError:
        fault = self._fault(trouble, str(self._path))
        if not isinstance(fault, StoreCorrupt) or fault.where != str(self._path):
            return fault
        if damage := find_bad_checksum(self._path):
            return StoreCorrupt(
                str(damage[0]), f"wrong checksum of the record at byte {damage[1]}; {trouble}"
            )
        logs = ", ".join(sorted(log.name for log in self._path.glob("*.log")))
        return StoreCorrupt(str(self._path), f"{trouble}, in one of its logs ({logs})")

    def _connect(self, read_only: bool) -> None:
        cache = Cache(self._cache_bytes)
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        opened = str(self._path)
        census = examine(self._path, read_mark(self._path))
        if read_only:
            self._mirror = tempfile.TemporaryDirectory(prefix="fairlead-")
            opened = self._mirror.name
            mirror(self._path, Path(opened))
            for cut in census.cuts if census else ():
                cut.copy_into(Path(opened))
        elif census is not None:
            _cut_unfinished(census)
        try:
            # Or a compaction would begin before anybody has looked whether it fits.
            compacts = faults.free_bytes(self._path) - FLOOR_BYTES >= COMPACTION_BYTES
            families = family_options(cache, compacts=compacts)
            missing = (
                set(FAMILIES) - set(Rdict.list_cf(opened, database_options(cache))) if read_only else set()
            )
            known = {name: options for name, options in families.items() if name not in missing}
            self._db = Rdict(
                opened, options=database_options(cache), column_families=known, access_type=access
            )
            self._handles = {name: self._db.get_column_family_handle(name) for name in known}
            self._tables = {name: self._db.get_column_family(name) for name in known}
            if missing:
                # Written before there were such rows, and nothing may be added to it: they are answered from
                # an empty database.
                empty = Rdict(
                    opened + "/empty",
                    options=database_options(cache),
                    column_families={name: families[name] for name in missing},
                )
                self._tables |= {name: empty.get_column_family(name) for name in missing} | {
                    "default of the empty": empty
                }
        except Exception as trouble:
            self._drop_mirror()
            raise self._open_fault(trouble) from trouble
        try:
            self._check_reached(census)
            self._load()
            if not read_only and not compacts:
                self._compaction = dict.fromkeys(self._tables, "off")
                self._regulate_compaction(faults.free_bytes(self._path))
        except BaseException:
            self._disconnect()
            raise

    def _check_reached(self, census: Census | None) -> None:
        reached = self._db.latest_sequence_number()
        if census is not None and reached != census.sequence:
            raise StoreCorrupt(
                str(self._path),
                f"expected RocksDB to come to sequence number {census.sequence}, got {reached}",
            )

    def _load(self) -> None:
        self._floors.clear()
        meta = {
            key: codec.decode_fixed("meta", key, raw, codec.META)[0]
            for key, raw in self._scan("meta", b"", None, EVERYTHING)
        }
        self._boot = meta.get(b"boot", 0)
        self._last_commit = meta.get(b"last_commit", 0)
        self._last_queue_id = meta.get(b"last_queue_id", 0)
        counted, queues = (
            self._scan("counters", b"", None, EVERYTHING),
            self._scan("queues", b"", None, EVERYTHING),
        )
        self._counters = {
            int.from_bytes(key, "big"): list(codec.decode_fixed("counters", key, raw, codec.COUNTERS))
            for key, raw in counted
        }
        self._queues = {int.from_bytes(key, "big"): codec.decode_queue(key, raw) for key, raw in queues}

    def continue_after(self, *, boot: int, commit: int) -> None:
        """Count on from another directory's numbers, so that none of its lease tokens and places comes again."""
        self._boot, self._last_commit = max(self._boot, boot), max(self._last_commit, commit)
        batch = WriteBatch(raw_mode=True)
        for name, value in ((b"boot", self._boot), (b"last_commit", self._last_commit)):
            batch.put(name, codec.META.pack(codec.VERSION, value), self._handles["meta"])
        try:
            self._db.write(batch)
        except Exception as trouble:
            raise self._failed_write(trouble) from trouble

    def _count_boot(self) -> None:
        """Synced before anything else, so that no lease token of a lost life can come again."""
        batch = WriteBatch(raw_mode=True)
        batch.put(b"boot", codec.META.pack(codec.VERSION, self._boot + 1), self._handles["meta"])
        try:
            self._db.write(batch)
            self._sync_logs()
        except Exception as trouble:
            self.close()
            raise self._fault(trouble, "meta") from trouble
        self._boot += 1
        self._synced = self._last_commit

    def _disconnect(self) -> None:
        """RocksDB lets go of the directory only when nothing refers to it any more: tables, handles and
        database.

        The handles are cleared in place, because the traceback of an error somebody keeps may still hold the
        mapping.
        """
        self._compaction.clear()
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
        assert self._marks is not None
        mark = self._marks.before_sync(self._db.latest_sequence_number())
        if not self._flush_log():
            # The disk was full for a later commit; this one is in the log, which RocksDB no longer touches.
            for log in self._path.glob("*.log"):
                with open(log, "rb") as file:
                    os.fsync(file.fileno())
        self._marks.keep(mark)

    def _flush_log(self) -> bool:
        """False when RocksDB does not write to its log any more, because the disk was full."""
        if self._mirror is not None:
            return False
        try:
            self._db.flush_wal(True)
        except Exception as trouble:
            if not faults.is_refused_after_full(trouble):
                raise
            return False
        return True

    def _sync_to_close(self) -> int | None:
        """The sequence number that the closed directory has to reach; None when the store cannot tell."""
        if (
            self._marks is None
            or self._failure is not None
            or self._needs_reopen
            or "_db" not in self.__dict__
        ):
            return None
        try:
            sequence = self._db.latest_sequence_number()
            self._sync_logs()
        except Exception:
            # Closing must go on. The last mark that was kept still holds.
            return None
        return sequence

    def _failed_write(self, trouble: Exception) -> FairleadError:
        if faults.is_full(trouble):
            self._needs_reopen = True
            return StoreFull(
                str(self._path),
                faults.free_bytes(self._path),
                reserve=REOPEN_BYTES,
                logs=self._unflushed_bytes(),
            )
        self._failure = StoreFailed(str(trouble))
        return self._failure

    def _make_writable(self) -> None:
        if self._closed:
            raise BrokerClosed
        if self._failure is not None:
            raise StoreFailed(self._failure.what)
        if self._read_only:
            raise InvalidRequest("store", "open for writing", "a store opened read-only")
        if self._mirror is not None:
            # It was closed and could not be opened: no compaction holds space that closing would give back.
            self._check_reopening(faults.log_bytes(self._path))
        self._reopen()

    def _check_reopening(self, logs: int) -> None:
        free = faults.free_bytes(self._path)
        if free < logs + REOPEN_BYTES:
            raise StoreFull(str(self._path), free, reserve=REOPEN_BYTES, logs=logs)

    def _reopen(self) -> None:
        """After a full disk RocksDB refuses writes until it is opened again; everything confirmed is in its
        log.
        """
        confirmed = self._last_commit
        with self._sync_mutex, self._swapping:
            logs = faults.log_bytes(self._path) if self._mirror is not None else self._unflushed_bytes()
            self._disconnect()
            try:
                self._check_reopening(logs)
                self._connect(read_only=False)
            except StoreFull:
                self._answer_only()
                raise
            except Exception as trouble:
                # Without tables every question would be answered as if nothing were stored.
                self._failure = StoreFailed(f"could not be opened again after a full disk: {trouble}")
                raise self._failure from trouble
            if self._last_commit != confirmed:
                self._failure = StoreFailed(
                    f"expected commit {confirmed} to be the last after a full disk, found {self._last_commit}"
                )
                raise self._failure
            self._needs_reopen = False
            self._unflushed_writes, self._next_look = 0, LOG_STEP_BYTES
            self._synced = confirmed

    def _answer_only(self) -> None:
        """Questions go on while there is too little room even to open."""
        try:
            self._connect(read_only=True)
        except Exception as trouble:
            self._failure = StoreFailed(f"could not be opened again after a full disk: {trouble}")
            raise self._failure from trouble

    def _unflushed_bytes(self) -> int:
        """What opening again may have to write: it turns the log, as far as it is not in tables yet, into
        tables.
        """
        in_log = faults.log_bytes(self._path)
        in_memory = sum(
            table.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
            for table in self._tables.values()
        )
        return min(in_log, in_memory) if in_memory else in_log


def _hold(path: Path) -> Marks:
    """Lock the directory, making it if it is new. Nothing in it is changed before it is locked."""
    make_directory(path)
    marks = Marks(path, create=is_new(path))
    try:
        # Asked again under the lock: another process may have made it in between.
        if is_new(path):
            marks.write_first()
            write_format(path)
        check_format(path)
    except BaseException:
        marks.forget()
        raise
    return marks


def _cut_unfinished(census: Census) -> None:
    for cut in census.cuts:
        _log.warning(
            "dropped %d bytes at the end of %s: a write that a crash cut short, confirmed by no sync",
            cut.drop_bytes,
            cut.file,
        )
        cut.carry_out()


def _mark_copy(path: Path) -> None:
    """A checkpoint holds whole records only, and all of it counts from the moment it gets its name."""
    census = examine(path, Mark())
    if census is None or census.cuts:
        raise StoreCorrupt(str(path), "RocksDB made a checkpoint that is not whole")
    for name in os.listdir(path):
        with open(path / name, "rb") as file:
            os.fsync(file.fileno())
    write_mark(path, Mark(census.log, census.sequence, census.manifest, census.manifest_bytes))
    sync_directory(path)
