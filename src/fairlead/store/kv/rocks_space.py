"""The disk reserve of an open database: the writes that are refused before the disk is full, and the
compactions that fit.

`store/rocks/reserve.py` explains the parts of the reserve. This object changes no row; it flushes memtables
and switches compactions on and off.
"""

from __future__ import annotations

import time
from pathlib import Path

from rocksdict import Rdict

from fairlead.errors import StoreFull
from fairlead.store.rocks import faults
from fairlead.store.rocks.options import COMPACTION_BYTES, COMPACTION_MODES
from fairlead.store.rocks.reserve import (
    FLOOR_BYTES,
    LOG_STEP_BYTES,
    MAX_LOG_BYTES,
    REOPEN_BYTES,
    live_bytes,
)

#: While writes are refused: how often deletions are flushed, or compactions checked for whether they fit.
#: Both read the properties of all tables.
_REGULATE_EVERY_S = 0.1
#: After a check that found this much more than the reserve, the next one waits longer: nothing fills as much
#: in that time.
_PLENTY_BYTES = 1 << 30
_PLENTY_S = 0.01


class DiskSpace:
    """`tables`: all column families, including the default one. The list is the database's own, and empty
    while it is closed.
    """

    def __init__(self, path: Path, reserve_bytes: int, tables: list[Rdict]) -> None:
        self._path = path
        self._reserve = reserve_bytes
        self._tables = tables
        #: Whether a write may meet a full disk: free space was short of the reserve and the longest logs at
        #: the last check.
        self.is_low = True
        #: False while RocksDB accepts no writes, flushes and options: read-only, before it is reopened, after
        #: a failure and once it is closed.
        self.is_writable = False
        #: How each table is compacted, by its index; empty: all as usual.
        self._compaction: dict[int, str] = {}
        self._regulated_at = self._flushed_at = float("-inf")
        #: The result of the last check, and when to check again.
        self._free, self._look_at = 0, float("-inf")
        self.begin(compacts=True)

    def begin(self, *, compacts: bool) -> None:
        """The database was opened. `compacts`: whether its compactions were allowed from the start."""
        #: How many bytes are written after a flush before free space is checked again; and how many more may
        #: be written before that, which every write counts down.
        self._next_look = self.quiet_bytes = LOG_STEP_BYTES
        self.deleted_since_flush = False
        self._compaction.clear()
        if not self._tables:
            return
        free = self.free_bytes()
        self.is_low = free <= self._reserve + MAX_LOG_BYTES
        if not compacts:
            self._compaction = dict.fromkeys(range(len(self._tables)), "off")
            self._regulate_compaction(free)

    def free_bytes(self) -> int:
        return faults.free_bytes(self._path)

    def _look(self) -> int:
        """For checks that every request makes. Where there is plenty, a recent answer is good enough."""
        self._free = self.free_bytes()
        if self._free > self._reserve + MAX_LOG_BYTES + _PLENTY_BYTES:
            self._look_at = time.monotonic() + _PLENTY_S
        return self._free

    def compacts_at_open(self) -> bool:
        """Whether the largest compaction fits. If not, none may start before `begin` has checked each."""
        return self.free_bytes() - FLOOR_BYTES >= COMPACTION_BYTES

    def room(self, in_reserve: bool) -> int:
        free = self._free if time.monotonic() < self._look_at else self._look()
        reserve = FLOOR_BYTES if in_reserve else self._reserve
        # The logs are measured only where they may matter, because callers ask often.
        unflushed = 0 if free > reserve + MAX_LOG_BYTES else self.unflushed_bytes()
        return (free - reserve - unflushed) // 2

    def check(self, incoming_bytes: int, in_reserve: bool) -> None:
        free = self._free if time.monotonic() < self._look_at else self._look()
        reserve = FLOOR_BYTES if in_reserve else self._reserve
        # A byte is written twice: to the log, and from there to a table, before the log is deleted.
        twice = 2 * incoming_bytes
        self.is_low = free <= self._reserve + MAX_LOG_BYTES + twice
        if free - twice > reserve + MAX_LOG_BYTES:
            return
        unflushed = self.unflushed_bytes()
        spare = free - twice - reserve - unflushed
        if spare < 2 * LOG_STEP_BYTES and self._flush_helps():
            self.flush()
        if spare < 0:
            self._compact_what_fits_now(free)
            raise StoreFull(str(self._path), free, reserve=reserve, logs=unflushed, request=twice)

    @property
    def _unflushed_writes(self) -> int:
        return self._next_look - self.quiet_bytes

    def before_write(self, size: int) -> None:
        """Called once no bytes are left that may be written without a check: refuse a batch that cannot fit,
        and keep the logs short while the disk is below its reserve.
        """
        self._next_look, self.quiet_bytes = self._unflushed_writes + LOG_STEP_BYTES, LOG_STEP_BYTES
        free = self.free_bytes()
        if self._compaction:
            self._regulate_compaction(free)
        self.is_low = free <= self._reserve + MAX_LOG_BYTES + 2 * size
        if not self.is_low:
            return
        if free < self._reserve + self.unflushed_bytes() + 2 * LOG_STEP_BYTES:
            self.flush()
        if size > LOG_STEP_BYTES and free < 2 * size + REOPEN_BYTES:
            raise StoreFull(str(self._path), free, reserve=REOPEN_BYTES, request=2 * size)

    def unflushed_bytes(self) -> int:
        """How much an opening may have to write: it turns the part of the log that is in no table into
        tables.
        """
        in_log = faults.log_bytes(self._path)
        in_memory = sum(
            table.property_int_value("rocksdb.cur-size-all-mem-tables") or 0 for table in self._tables
        )
        return min(in_log, in_memory) if in_memory else in_log

    def check_reopening(self, logs: int) -> None:
        free = self.free_bytes()
        if free < logs + REOPEN_BYTES:
            raise StoreFull(str(self._path), free, reserve=REOPEN_BYTES, logs=logs)

    def flush(self) -> None:
        """Turn memtables into tables in the background, so that RocksDB deletes the logs they came from."""
        self._next_look = self.quiet_bytes = LOG_STEP_BYTES
        self.deleted_since_flush = False
        self._flushed_at = time.monotonic()
        if not self.is_writable:
            return
        for table in list(self._tables):
            try:
                table.flush(False)
            except Exception as trouble:
                if not faults.is_full(trouble):
                    raise
        self._regulate_compaction(self.free_bytes())

    def _flush_helps(self) -> bool:
        """A few bytes of log can delete many rows: only a flush lets a compaction see the deletions."""
        if self._unflushed_writes >= LOG_STEP_BYTES:
            return True
        return self.deleted_since_flush and time.monotonic() - self._flushed_at >= _REGULATE_EVERY_S

    def _regulate_compaction(self, free: int) -> None:
        """Let only compactions run that fit: one that runs out of space takes it from writes that must fit.

        While the disk is below its reserve they run after every flush, because then they release space.
        """
        # Only a small one may use the floor: it releases more than it takes.
        spare = max(free - FLOOR_BYTES, free // 4)
        is_short = free < self._reserve + 2 * LOG_STEP_BYTES
        for index, table in enumerate(list(self._tables)):
            mode = _compaction_mode(table, spare, is_short=is_short)
            if self._compaction.get(index, "usual") != mode:
                _set_options(table, COMPACTION_MODES[mode])
                self._compaction[index] = mode
        if set(self._compaction.values()) == {"usual"}:
            self._compaction.clear()

    def _compact_what_fits_now(self, free: int) -> None:
        """A flush ends in the background. Only then do the tables hold the deletions, and a compaction that
        seemed too large may fit. No later write would check again, because writes are refused.
        """
        now = time.monotonic()
        if "off" not in self._compaction.values() or now - self._regulated_at < _REGULATE_EVERY_S:
            return
        self._regulated_at = now
        if self.is_writable:
            self._regulate_compaction(free)


def _compaction_mode(table: Rdict, spare: int, *, is_short: bool) -> str:
    if spare >= COMPACTION_BYTES:
        return "usual"
    size = table.property_int_value("rocksdb.total-sst-files-size") or 0
    live = live_bytes(size, table.property_value("rocksdb.aggregated-table-properties") or "")
    if min(live, COMPACTION_BYTES) > spare:
        return "off"
    return "eager" if is_short and size > LOG_STEP_BYTES else "usual"


def _set_options(table: Rdict, options: dict[str, str]) -> None:
    """RocksDB also writes them to a file that is never read: without room for the file they hold
    nevertheless.
    """
    try:
        table.set_options(options)
    except Exception as trouble:
        if not faults.is_full(trouble):
            raise
